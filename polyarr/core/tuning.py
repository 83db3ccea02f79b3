"""The interface of `polyarr tune`: calls whose kernels are chosen by measurement, and the stored choices."""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple


class Work(NamedTuple):
    """A call of an op for which the fastest kernel is searched.

    The meaning of `shape` and `form` depends on the op:
    - "matmul": shape (m, n, k); form "NN" is x @ y of row-major matrices, "NT" x @ y.T, "TN" x.T @ y.
    - "attention": shape (batch x heads, queries, keys, head size), with a causal mask; form "forward" or "backward".

    Attributes:
        op: Name of the op.
        dtype: Name of the dtype.
        shape: Sizes.
        form: Variant of the op.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    form: str

    def __str__(self) -> str:
        return f"{self.op} {self.form} {' x '.join(map(str, self.shape))} {self.dtype}"


class Step(NamedTuple):
    """Progress of tuning: `done` of `total` steps; `outcome` of the last step describes the result."""

    done: int
    total: int
    outcome: str = ""


class Kept(NamedTuple):
    """Stored result of tuning: its key, parameters, measurements, and in `problem` why it is not used ("": it is)."""

    op: str
    dtype: str
    shape: str
    device: str
    parameters: dict[str, Any]
    figures: dict[str, Any]
    date: str
    problem: str = ""


class Tuning(NamedTuple):
    """Tuning by measurement: searches for a backend's fastest parameters and stores them for later processes.

    Attributes:
        ops: Names of the ops that have parameters.
        shape: (work) -> name of the class of shapes that shares one result.
        tune: (work, seconds) -> Steps. Each candidate is checked before it is timed. The fastest is stored when the
            iteration ends, also if it ends early. Raises ValueError for work that it cannot measure.
        kept: () -> stored results, used or not.
        exported: () -> JSON-compatible list of the stored results, for `imported` on any machine.
        imported: (list) -> number of results stored. Raises ValueError for anything but such a list.
    """

    ops: tuple[str, ...]
    shape: Callable[[Work], str]
    tune: Callable[[Work, float], Generator[Step, None, None]]
    kept: Callable[[], list[Kept]]
    exported: Callable[[], list[dict[str, Any]]]
    imported: Callable[[Any], int]
