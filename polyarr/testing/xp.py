"""Graph breaks: places where values or gradients of arrays leave the namespace in silence.

    from polyarr.testing import graph_breaks
    with graph_breaks() as found:
        value, grads = pa.value_and_grad(loss)(x)
    print(found)            # file, line and function of each, what was called, and what left

Code that is written for arrays of any library may still convert them to NumPy or to Python numbers, or cast them to
integers. It goes on to work, but on the host, or without a gradient. The methods of Array that read values are replaced
while a block runs, so nothing costs anything otherwise.
"""

import contextlib
import functools
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation
from polyarr.autograd import transforms
from polyarr.core import watch
from polyarr.core.array import Array, flatten
from polyarr.core.number import PACKAGE
from polyarr.core.spec import INEXACT
from polyarr.core.tape import records

VALUES, GRADIENT, BOTH, DEVICE = "values", "gradient", "values, gradient", "device"
READS = {  # methods of Array -> how they are called
    "__array__": "np.asarray()", "__bool__": "bool()", "__complex__": "complex()", "__dlpack__": "__dlpack__()",
    "__float__": "float()", "__format__": "format()", "__index__": "index()", "__int__": "int()",
    "__reduce__": "pickle", "__repr__": "repr()", "__round__": "round()", "item": "item()", "numpy": "numpy()",
    "tolist": "tolist()",
}  # fmt: skip
EXPLAINED = creation.asarray.__code__  # that of every function with this decorator
_SKIPPED = (PACKAGE, f"{Path(np.__file__).parent}/", contextlib.__file__)
_ASSERTS = re.compile(r"_*(xp_)?assert")


class GraphBreak(NamedTuple):
    """A place where values or gradients leave the namespace.

    Attributes:
        file: Path of the file, of the first caller outside of polyarr and NumPy.
        line: Number of the line.
        function: Name of the function that the line is in.
        call: What was called, such as "float()", "np.sort()" or "astype()".
        leaves: "values", "gradient", "values, gradient" or, for a move to another backend, "device".
    """

    file: str
    line: int
    function: str
    call: str
    leaves: str

    @property
    def where(self) -> str:
        """File and line, from the folder that Python imports the file from."""
        file = Path(self.file)
        folders = sorted((folder for folder in map(Path, sys.path) if file.is_relative_to(folder)), key=_length)
        return f"{file.relative_to(folders[-1]) if folders else file}:{self.line}"


class GraphBreaks:
    """The graph breaks of a `graph_breaks` block: iterable, empty and therefore false without any, a table as text.

    Attributes:
        counts: Number of times that each GraphBreak happened.
    """

    def __init__(self) -> None:
        self.counts: Counter[GraphBreak] = Counter()

    def __iter__(self) -> Iterator[GraphBreak]:
        return iter(sorted(self.counts))

    def __len__(self) -> int:
        return len(self.counts)

    def __str__(self) -> str:
        return "\n".join(lines_of([((self.counts[place],), place) for place in self], "times"))


class _Recorder(watch.Observer):
    takes_programs = True

    def __init__(self, ignored: Collection[str]) -> None:
        self.found, self._ignored, self._lock = GraphBreaks(), ignored, threading.Lock()

    def ended(self, call: watch.Call, value: Any) -> None:
        """Record an op that a gradient does not pass, unless its result is of bool or of indices, as of argmax."""
        if call.outer is None and call.error is None and call.is_tracked and not _here.is_reading:
            results = [a for a in flatten((value,)) if type(a) is Array]
            is_cast = call.op.name == "astype"
            # `fill` takes shape and dtype only of an array, as in zeros_like.
            if call.op.name != "fill" and all(a.node is None and (is_cast or a.dtype in INEXACT) for a in results):
                _add(f"{call.name}()", GRADIENT, self)

    def add(self, place: GraphBreak) -> None:
        """Count a graph break."""
        if place.file not in self._ignored:
            with self._lock:
                self.found.counts[place] += 1


class _Here(threading.local):
    is_reading = False


_here = _Here()
_recorders: tuple[_Recorder, ...] = ()
_lock = threading.Lock()


@contextlib.contextmanager
def graph_breaks(*, ignored: Collection[str] = ()) -> Iterator[GraphBreaks]:
    """Record where values or gradients of arrays leave the namespace in silence, in all threads, within this block.

    Values leave by conversions to NumPy arrays and Python numbers, by DLPack, and as text. A gradient leaves with the
    values of an array that it is recorded for, and by operations whose result has none: casts to integers, rounding,
    signs and `stop_gradient`. Comparisons and indices (`argmax`) have none in any library and are not listed. Moves to
    another backend are. What functions called `assert...` read is not listed. Copies that would raise GradientError are
    made and listed. Inside of vmap and of compiled functions reads are errors, and gradients are recorded when such a
    function is captured.

    Args:
        ignored: Paths of files whose own lines are not listed.

    Yields:
        GraphBreaks, which grows while the block runs.

    Examples:
        >>> import polyarr as pa
        >>> from polyarr.testing import graph_breaks
        >>> def half(x):
        ...     return x * float(x) / 2
        >>> with graph_breaks() as found:
        ...     slope = pa.grad(half)(pa.asarray(3.0))  # 1.5 instead of 3
        >>> [(place.function, place.call, place.leaves) for place in found]
        [('half', 'float()', 'values, gradient')]
    """
    global _recorders
    recorder = _Recorder(ignored)
    with _lock:
        _recorders += (recorder,)
    try:
        with watch.observing(recorder):
            yield recorder.found
    finally:
        with _lock:
            _recorders = tuple(other for other in _recorders if other is not recorder)


def lines_of(rows: list[tuple[tuple[int, ...], GraphBreak]], *counted: str) -> Iterator[str]:
    """Yield the lines of a table of graph breaks, each after its counts, whose titles are `counted`."""
    if not rows:
        yield "no graph breaks"
        return
    cells = [(*counted, "where", "in", "call", "leaves")]
    cells += [(*map(str, counts), place.where, place.function, place.call, place.leaves) for counts, place in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        padded[: len(counted)] = [cell.rjust(width) for cell, width in zip(row, widths[: len(counted)], strict=False)]
        yield "  ".join(padded).rstrip()


# ---- what is recorded ----------------------------------------------------------------------------------------


def _add(call: str, leaves: str, *recorders: _Recorder) -> None:
    """Record a graph break of the code that called into polyarr, unless that is an assertion."""
    frame: FrameType | None = sys._getframe(2)
    entry: tuple[str, ...] = ()
    through = ""
    while frame is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        if frame.f_code is EXPLAINED:
            pass  # around the function
        elif frame.f_code.co_filename.startswith(PACKAGE):
            entry = frame.f_globals["__name__"], frame.f_code.co_name
        else:
            through = frame.f_code.co_name
        frame = frame.f_back
    if frame is None:
        return
    if through and call == READS["__array__"]:
        home = "linalg." if not hasattr(np, through) and hasattr(np.linalg, through) else ""
        call = f"np.{home}{through}()"
    elif entry and leaves in (VALUES, BOTH):
        if entry[0] != creation.__name__:  # a function that reads what it needs, such as nonzero, or writes files
            return
        call = f"{entry[1]}()"  # of arrays in a deque, for example
    place = GraphBreak(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, call, leaves)
    asserting = _ASSERTS.match(through)
    while frame is not None and not asserting:
        asserting, frame = _ASSERTS.match(frame.f_code.co_name), frame.f_back
    for recorder in () if asserting else recorders:
        recorder.add(place)


def _length(folder: Path) -> int:
    return len(folder.parts)


def _observe(owner: Any, name: str, call: str, leaves: Callable[[Array, Any], str]) -> None:
    """Have calls of a method or function recorded while a block runs, if they are not made by another one, or by an op.

    `leaves` says what leaves, from the array and what was returned; "" if nothing does.
    """

    @functools.wraps(getattr(owner, name))
    def observed(a: Any, *args: Any, **params: Any) -> Any:
        if not _recorders or _here.is_reading or watch.innermost() is not None:
            return plain(a, *args, **params)
        _here.is_reading = True
        try:
            # Array refuses some of these reads where a gradient would be lost; here that is recorded instead.
            value = plain(a.untracked() if name in READS and a.node else a, *args, **params)
        finally:
            _here.is_reading = False
        if lost := leaves(a, value):
            _add(call, lost, *_recorders)
        return value

    plain = watch.replace_while_observed(owner, name, observed)


def _is_tracked(a: Any) -> bool:
    return type(a) is Array and a.node is not None and records()


for _name, _call in READS.items():
    _observe(Array, _name, _call, lambda a, value: BOTH if _is_tracked(a) else VALUES)
_observe(Array, "to", "to()", lambda a, value: DEVICE if value is not a else "")
_observe(transforms, "_stopped", "stop_gradient()", lambda a, value: GRADIENT if _is_tracked(a) else "")
