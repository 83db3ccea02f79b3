"""What a backend offers to `polyarr tune`: work whose kernels can be chosen by measuring, and what was chosen."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Work(NamedTuple):
    """A call of an op for which the fastest kernel is wanted.

    matmul     shape (m, n, k); form "NN" is x @ y of row-major matrices, "NT" is x @ y.T, and "TN" is x.T @ y
    attention  shape (heads in all, queries, keys, length of a row), causal; form "forward" or "backward"
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    form: str

    def __str__(self) -> str:
        return f"{self.op} {self.form} {' x '.join(map(str, self.shape))} {self.dtype}"


class Step(NamedTuple):
    """How far the tuning of a piece of work has come: so many of all steps; the last one says what came of it."""

    done: int
    total: int
    outcome: str = ""


class Kept(NamedTuple):
    """What is kept of earlier tuning: for what, the parameters, what was measured; problem says why it is not used."""

    op: str
    dtype: str
    shape: str
    device: str
    parameters: dict[str, Any]
    figures: dict[str, Any]
    date: str
    problem: str = ""


class Tuning(NamedTuple):
    """How a backend measures its own parameters, and keeps them for the next process.

    ops         the names of the ops that it has parameters for
    shape       (work) -> the class of shapes that is tuned with it
    tune        (work, seconds) -> steps; every candidate is checked before it is timed, and the fastest is kept when
                the steps end, also if they end early. ValueError for work that it cannot measure
    kept        what is kept, used or not
    exported    what `imported` takes, on another machine too: a list that JSON can hold
    imported    keeps what `exported` gave; how many entries it took. ValueError for what is no such list
    """

    ops: tuple[str, ...]
    shape: Callable[[Work], str]
    tune: Callable[[Work, float], Iterator[Step]]
    kept: Callable[[], list[Kept]]
    exported: Callable[[], list[dict[str, Any]]]
    imported: Callable[[Any], int]
