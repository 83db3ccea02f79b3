"""Parameters per spatial axis, which ops of images and sequences share. Every error names its op."""

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

from polyarr.core.errors import ShapeError
from polyarr.core.spec import Spec, shown
from polyarr.ops.create import fill
from polyarr.ops.joining import pad
from polyarr.ops.shape import slice
from polyarr.ops.validation import wholes

CONV = "conv"  # name of the group

Lengths = tuple[int, ...]
Padding = tuple[tuple[int, int], ...]


class Geometry(NamedTuple):
    """Positions of sliding windows on an array, with an entry per spatial axis."""

    stride: Lengths
    padding: Padding
    dilation: Lengths
    out: Lengths  # number of windows

    @property
    def params(self) -> dict[str, Any]:
        """Canonical parameters of an op."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}


def per_axis(op: str, name: str, value: Any, axes: int, least: int = 1, left: Lengths = ()) -> Lengths:
    """Return an int per spatial axis, from one int or as many as axes.

    left holds what None stands for, if None may be given.

    Raises:
        ShapeError: There is another number of ints, or one is below `least`.
        TypeError: One is not an int.
    """
    each = tuple(value) if isinstance(value, (tuple, list, range)) else (value,)
    each = each * axes if len(each) == 1 else each
    if len(each) == len(left):
        each = tuple(n if m is None else m for m, n in zip(each, left, strict=True))
    try:
        found = tuple(map(operator.index, each))
    except TypeError:
        raise TypeError(f"{op}: {name} is {shown(value)}; it must be an int or a tuple of ints") from None
    if len(found) != axes or any(n < least for n in found):
        required = f"be an int or {axes} of them, at least {least}"
        raise ShapeError(f"{op}: {name} is {shown(value)}; it must {required}")
    return found


def check_whole(op: str, **params: Any) -> None:
    """Raise TypeError for a float or a string among ints; padding may be a string.

    An op that was called with an equal int before would find its cached plan and not notice a float.
    """
    for name, value in params.items():
        if any(isinstance(n, float) or (isinstance(n, str) and name != "padding") for n in _leaves(value)):
            raise TypeError(f"{op}: {name} is {shown(value)}; it must be an int or a tuple of ints")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def spans(kernel: Lengths, dilation: Lengths) -> Lengths:
    """Return the length that a window with its dilation covers, per axis."""
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))


def paddings(op: str, padding: Any, lengths: Lengths, reach: Lengths, stride: Lengths) -> Padding:
    """Return a pair (before, after) per spatial axis, from "same", "valid", an int, one per axis, or such pairs."""
    if padding == "valid":
        return ((0, 0),) * len(lengths)
    if padding == "same":  # as many windows as steps; an odd element comes after
        around = [max((-(-n // s) - 1) * s + w - n, 0) for n, w, s in zip(lengths, reach, stride, strict=True)]
        return tuple((p // 2, p - p // 2) for p in around)
    if isinstance(padding, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in padding):
        pairs = tuple(wholes(op, "padding", p) for p in padding)
        if len(pairs) == len(lengths) and all(len(p) == 2 and min(p) >= 0 for p in pairs):
            return pairs  # type: ignore[return-value]
    elif not isinstance(padding, str):
        found = wholes(op, "padding", padding)
        if len(found) in (1, len(lengths)) and min(found) >= 0:
            return tuple((p, p) for p in (found * len(lengths))[: len(lengths)])
    required = f"'same', 'valid', an int, {len(lengths)} of them, or as many (before, after), none negative"
    raise ShapeError(f"{op}: padding is {shown(padding)}; it must be {required}")


def geometry(
    op: str, x: Spec, lengths: Lengths, kernel: Lengths, stride: Any, padding: Any, dilation: Any, *, ceil: bool = False
) -> Geometry:
    """Return the positions of windows on axes of these lengths; raise ShapeError if not one window fits."""
    n = len(lengths)
    steps, gaps = per_axis(op, "stride", stride, n), per_axis(op, "dilation", dilation, n)
    reach = spans(kernel, gaps)
    pairs = paddings(op, padding, lengths, reach, steps)
    room = [m + sum(p) - w for m, p, w in zip(lengths, pairs, reach, strict=True)]
    if min(room) < 0:
        padded = [m + sum(p) for m, p in zip(lengths, pairs, strict=True)]
        reached = f"a window reaches over {list(reach)}"
        raise ShapeError(f"{op}: x is {x}, {reached}; x with its padding has {list(padded)}, which must be as much")
    counts = [r // s + 1 for r, s in zip(room, steps, strict=True)]
    if ceil:  # one more window for elements left over, unless it would start in the padding after
        more = [-(-r // s) + 1 for r, s in zip(room, steps, strict=True)]
        starts = [(m - 1) * s for m, s in zip(more, steps, strict=True)]
        ends = [m + before for m, (before, _) in zip(lengths, pairs, strict=True)]
        counts = [m if at < end else c for m, at, end, c in zip(more, starts, ends, counts, strict=True)]
    # With one window the stride has no effect; clamp it to the array.
    far = [max(r + 1, m + before) for r, m, (before, _) in zip(room, lengths, pairs, strict=True)]
    steps = tuple(min(s, f) if c == 1 else s for s, f, c in zip(steps, far, counts, strict=True))
    return Geometry(steps, pairs, gaps, tuple(counts))


def padded(x: Any, padding: Padding, value: float = 0) -> Any:
    """Return x (b, *lengths, c) with value around its spatial axes."""
    if not any(map(any, padding)):
        return x
    return pad(x, pad_width=((0, 0), *padding, (0, 0)), constant_values=value)


def unpadded(x: Any, padding: Padding) -> Any:
    """Return x (b, *lengths, c) without the padding around its spatial axes: the transpose of padded."""
    if not any(map(any, padding)):
        return x
    shape = [n - sum(p) for n, p in zip(x.shape[1:-1], padding, strict=True)]
    if 0 in shape:
        return fill(0, x, shape=(x.shape[0], *shape, x.shape[-1]), dtype=x.dtype)
    starts = (0, *(before for before, _ in padding), 0)
    return slice(x, starts=starts, steps=(1,) * len(x.shape), shape=(x.shape[0], *shape, x.shape[-1]))


def images(op: str, name: str, x: Spec, axes: int | None = None) -> Lengths:
    """Return the lengths of the spatial axes of x, which are all but the first and the last."""
    if x.is_number or x.ndim not in ((axes + 2,) if axes else (3, 4, 5)):
        required = f"{axes + 2} axes" if axes else "3, 4 or 5 axes"
        raise ShapeError(f"{op}: {name} is {x}; it must have {required}, batch first and channels last")
    return x.shape[1:-1]
