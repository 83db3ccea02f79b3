"""Splitting trees for collectives: arrays grouped by dtype and backend, and Python numbers."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from polyarr import tree
from polyarr.core.array import Array
from polyarr.core.current import capturing
from polyarr.core.errors import CaptureError, GradientError
from polyarr.core.spec import shown
from polyarr.core.tape import records

NUMBERS = (int, float)


class Parts(NamedTuple):
    """The leaves of a tree, grouped for collectives.

    Attributes:
        leaves: All leaves in order.
        groups: Indices of the arrays of each dtype and backend.
        numbers: Indices of the Python numbers.
        description: Text of the operation and its arguments, one line each; must be equal on all ranks.
    """

    leaves: list[Any]
    groups: list[list[int]]
    numbers: list[int]
    description: str

    def arrays(self) -> Iterator[tuple[list[int], list[Array]]]:
        """Yield the indices and the arrays of each group."""
        for places in self.groups:
            yield places, [self.leaves[i] for i in places]


def parts_of(op: str, how: str, given: Any, device: str, others: bool = False) -> Parts:
    """Group the leaves of a tree.

    Args:
        op: Name of the collective, for errors.
        how: Its parameters, which must be equal on all ranks.
        given: The tree.
        device: Name of this rank's backend. Arrays elsewhere are sent in another way, on all ranks.
        others: Whether leaves of other types are allowed and left as they are.

    Raises:
        CaptureError: Called in a compiled function.
        GradientError: Called in a function that is differentiated.
        TypeError: A leaf is neither an array nor a number.
    """
    named = tree.by_name(given)
    if capturing.get() is not None:
        raise CaptureError(f"{op}: it is called in a compiled function; call it between two of them")
    if records() and any(type(leaf) is Array and leaf.node is not None for leaf in named.values()):
        raise GradientError(f"{op}: it is called in a function that is differentiated; give it the gradients")
    groups, numbers, lines = dict[Any, list[int]](), list[int](), [f"{op} {how}".rstrip()]
    backends: dict[str, int] = {}
    for i, (name, leaf) in enumerate(named.items()):
        if type(leaf) is Array:
            where = backends.setdefault(leaf.device, len(backends))
            groups.setdefault((leaf.dtype, where), []).append(i)
            among = f" on its backend {where}" if where else ""
            apart = "" if leaf.device == device else f" on a device of {leaf.backend.family!r} that is not its own"
            lines.append(f"{leaf.spec} at {name or 'its root'}{among}{apart}")
        elif type(leaf) in NUMBERS:
            numbers.append(i)
            lines.append(f"{type(leaf).__name__} at {name or 'its root'}")
        elif not others:
            raise TypeError(f"{op}: {name or 'the tree'} is {shown(leaf)}; leaves must be arrays, ints and floats")
    return Parts([*named.values()], [*groups.values()], numbers, "\n".join(lines))
