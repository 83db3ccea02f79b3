"""What of a tree goes from rank to rank: arrays, by dtype, and Python numbers."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from polyarr import tree
from polyarr.core.array import Array
from polyarr.core.current import stand_in
from polyarr.core.errors import CaptureError, GradientError
from polyarr.core.spec import told
from polyarr.core.tape import records

NUMBERS = (int, float)


class Parts(NamedTuple):
    """The leaves of a tree, and which of them go together.

    groups   the places of the arrays of one dtype on one backend
    numbers  the places of Python numbers
    said     what is done with what, a line each: equal on all ranks, or nothing goes anywhere
    """

    leaves: list[Any]
    groups: list[list[int]]
    numbers: list[int]
    said: str

    def arrays(self) -> Iterator[tuple[list[int], list[Array]]]:
        """Each group's places and arrays."""
        for places in self.groups:
            yield places, [self.leaves[i] for i in places]


def parts_of(op: str, how: str, given: Any, others: bool = False) -> Parts:
    """The parts of a tree.

    op      the name of what is done, for errors
    how     its parameters, which are to be equal on all ranks, too
    others  whether leaves of any other kind are left as they are

    Errors:  CaptureError within a compiled function, GradientError within one that is differentiated; TypeError for a
             leaf that is no array and no number
    """
    named = tree.by_name(given)
    if stand_in.get() is not None:
        raise CaptureError(f"{op}: it is called in a compiled function; call it between two of them")
    if records() and any(type(leaf) is Array and leaf.node is not None for leaf in named.values()):
        raise GradientError(f"{op}: it is called in a function that is differentiated; give it the gradients")
    groups, numbers, lines = dict[Any, list[int]](), list[int](), [f"{op} {how}".rstrip()]
    backends: dict[Any, int] = {}
    for i, (name, leaf) in enumerate(named.items()):
        if type(leaf) is Array:
            where = backends.setdefault(leaf.backend.name, len(backends))
            groups.setdefault((leaf.dtype, where), []).append(i)
            lines.append(f"{leaf.spec} at {name or 'its root'}{f' on its backend {where}' if where else ''}")
        elif type(leaf) in NUMBERS:
            numbers.append(i)
            lines.append(f"{type(leaf).__name__} at {name or 'its root'}")
        elif not others:
            raise TypeError(f"{op}: {name or 'the tree'} is {told(leaf)}; leaves must be arrays, ints and floats")
    return Parts([*named.values()], [*groups.values()], numbers, "\n".join(lines))
