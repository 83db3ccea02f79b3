"""Inputs for checks: arrays as short recipes, in every layout and with the values that have caught real faults.

A `Data` is one array input and a `Sample` all inputs of one call. Both are values whose repr is the Python that makes
them again, and they mean the same numbers on every machine, so that a failure can be typed in at a prompt.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from polyarr import ops, tree
from polyarr.core.array import Array, from_numpy
from polyarr.core.backend import Backend
from polyarr.core.spec import FLOATS, Spec, as_dtype
from polyarr.creation import finfo

# Lengths around 32 catch kernels that forget the last partial tile; 1 and 0 those that divide by n - 1 or by n. The
# first shape, the first values and so on are those that every check tries, however few examples it draws.
SHAPES = (
    (2, 33), (33,), (3,), (), (1,), (31,), (32,), (0,), (1000,), (2, 3), (1, 33), (33, 1), (5, 31), (0, 3), (3, 0),
    (130, 7), (1, 1), (2, 3, 4), (2, 1, 33), (3, 32, 2), (2, 0, 3), (2, 3, 1, 5),
)  # fmt: skip
PAIRS = (
    ((5, 33), (5, 33)), ((33,), (33,)), ((3,), (3,)), ((), ()), ((33,), ()), ((), (31,)), ((2, 3), (3,)),
    ((3,), (2, 3)), ((3, 1), (1, 4)), ((0, 3), (1, 3)), ((5, 1), (5, 33)), ((2, 3, 4), (3, 1)), ((1, 32), (31, 1)),
    ((2, 1, 5), (3, 1)), ((1,), (0,)),
)  # fmt: skip

# ---- values --------------------------------------------------------------------------------------------------


def _away(rng: np.random.Generator, size: int) -> np.ndarray:
    """Never within 0.1 of a whole number or a half: floor, round, abs and sign are smooth there."""
    return rng.integers(-3, 3, size) + rng.choice([0.0, 0.5], size) + rng.uniform(0.1, 0.4, size)


def _distinct(rng: np.random.Generator, size: int) -> np.ndarray:
    """No two alike, so that an order or a maximum does not change under a small step."""
    return (rng.permutation(size) - size / 2 + 0.25) * (6 / max(size, 3))


def _lopsided(rng: np.random.Generator, size: int) -> np.ndarray:
    """One number, and many that a narrow float loses when they are added to it one by one."""
    return np.where(np.arange(size) == 0, 128.0, 0.03)


def _all_but_the_last(most: float, last: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """One element that decides, where a kernel that forgets its last tile does not look."""
    return lambda rng, size: np.where(np.arange(size) == size - 1, last, most)


def _with_some(*odd: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """A tenth of the elements are odd ones."""

    def values(rng: np.random.Generator, size: int) -> np.ndarray:
        found, where = rng.standard_normal(size), rng.random(size) < 0.1
        found[where] = rng.choice(odd, where.sum())
        return found

    return values


def _masked(rng: np.random.Generator, size: int) -> np.ndarray:
    """-inf here and there, and all over the first row of a square."""
    found = _with_some(np.nan, -np.inf, -np.inf)(rng, size)
    return np.where(np.arange(size) < size**0.5, -np.inf, found)


def _hidden(rng: np.random.Generator, size: int) -> np.ndarray:
    """What is added to scores: -inf for a third of them, among these all of the first rows."""
    return np.where((np.arange(size) < size // 3) | (rng.random(size) < 0.2), -np.inf, rng.standard_normal(size))


# How float values are drawn, by name. Integer arrays hold the same numbers, tripled and rounded.
VALUES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "offset": lambda rng, size: rng.standard_normal(size) + 100,
    "wide": lambda rng, size: rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size),
    "ties": lambda rng, size: rng.integers(-2, 3, size).astype(np.float64),
    "positive": lambda rng, size: rng.uniform(0.2, 3.0, size),
    "unit": lambda rng, size: rng.uniform(-0.9, 0.9, size),
    "above one": lambda rng, size: rng.uniform(1.2, 4.0, size),
    # Exact in every dtype, and never 0: a cotangent of 0 hides every fault.
    "eighths": lambda rng, size: (np.floor(np.clip(rng.standard_normal(size), -3, 3) * 4) * 2 + 1) / 8,
    "counts": lambda rng, size: rng.integers(1, 9, size).astype(np.float64),
    "near one": lambda rng, size: rng.choice([-1, 1], size) * rng.uniform(0.95, 1.05, size),
    "away": _away,
    "distinct": _distinct,
    "lopsided": _lopsided,
    "hundreds": lambda rng, size: rng.standard_normal(size) * 100,  # whose squares leave few bits of float16
    "tenths": lambda rng, size: np.full(size, 0.1),  # whose sum drifts where it is kept in one float32
    "one true": _all_but_the_last(0.0, 1.0),
    "one false": _all_but_the_last(1.0, 0.0),
    "nonfinite": _with_some(np.nan, np.inf, -np.inf, -0.0),
    "masked": _masked,
    "hidden": _hidden,
    "nan": _with_some(np.nan),
}


def _rotation(rng: np.random.Generator, lead: tuple, n: int, columns: int) -> np.ndarray:
    """The first columns of orthogonal matrices, of either sign."""
    drawn, signs = rng.standard_normal((*lead, n, n)), rng.choice([-1, 1], (*lead, 1, n))
    return np.linalg.qr(drawn[..., :columns])[0] * signs[..., :columns]


def _regular(rng: np.random.Generator, shape: tuple) -> np.ndarray:
    """Matrices far from singular ones, whose singular values are far from each other."""
    *lead, m, n = shape
    sizes = np.linspace(1.75, 0.5, min(m, n))
    left, right = (_rotation(rng, tuple(lead), k, len(sizes)) for k in (m, n))
    return left * sizes @ right.swapaxes(-1, -2)


def _definite(rng: np.random.Generator, shape: tuple) -> np.ndarray:
    """Matrices whose symmetric part has positive eigenvalues, which are far from each other."""
    turn, rest = _rotation(rng, shape[:-2], shape[-1], shape[-1]), rng.standard_normal(shape) / (8 * shape[-1])
    return turn * np.linspace(1.75, 0.5, shape[-1]) @ turn.swapaxes(-1, -2) + rest - rest.swapaxes(-1, -2)


# How matrices are drawn that are more than their elements, by name.
MATRICES = {"regular": _regular, "definite": _definite}
ORDINARY = {*VALUES, *MATRICES, "mixed", "special", "edges"} - {
    "distinct",
    "hidden",
}  # what may be anything: not indices, masks or targets
MIXED = ("special", "normal", "special", "ties", "wide")  # what "mixed" arrays hold, side by side


def _special(rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    """nan, infinities, both zeros, denormals and the limits of dtype; the extremes of an integer dtype."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        chosen = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, 2, *([-1, -2] if info.min else [])]
        return np.array(chosen, dtype)[rng.permutation(size) % len(chosen)]
    info = finfo(dtype)
    tiny, large = info.smallest_normal, 4 * float(info.max) ** 0.5  # whose square overflows
    chosen = [np.nan, np.inf, 0.0, tiny, tiny * info.eps, tiny / 2, info.max, large, info.eps, 1.0, 0.5, 2.5, 1e-4, 20]
    return np.array(chosen)[rng.permutation(size) % len(chosen)] * rng.choice([-1.0, 1.0], size)


APART = 600  # elements: more than a kernel takes at once
BESIDE = {"infinite": (np.nan, np.inf, -np.inf), "endless": (np.nan, np.inf), "zero": (np.nan, 0.0, -0.0)}


def _alone(data: "Data", rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    """Usual numbers, and here and there, far from each other, one that is special."""
    usual, _, kind = data.values.partition(" beside ")
    found, places = replace(data, values=usual)._drawn(rng, size, dtype), size // APART
    if kind == "special":
        with np.errstate(all="ignore"):
            chosen = np.sort(_special(rng, places, dtype).astype(dtype))
    else:
        chosen = np.resize(BESIDE[kind], places)
    found[APART // 2 :: APART][:places] = chosen
    return found


def _edges(rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    """Whole numbers around those that a float or a narrower integer cannot hold, as far as dtype holds them."""
    powers = [sign * 2**bits + step for bits in (24, 31, 32, 53, 63) for step in (-1, 0, 1, 2) for sign in (1, -1)]
    info = np.iinfo(dtype)
    chosen = [n for n in powers if info.min <= n <= info.max] or [info.min, info.max, 1]
    return np.array(chosen, dtype)[rng.permutation(size) % len(chosen)]


def _spread(data: "Data", rng: np.random.Generator, size: int) -> np.ndarray:
    """Numbers of every size below the limit, from the limit itself, which is negative for those of both signs."""
    dtype = as_dtype(data.dtype)
    top = min(float(abs(data.limit)) * (1 - float(finfo(dtype).eps)), float(finfo(dtype).max))
    found = top ** rng.uniform(0, 1, size) * np.where(np.arange(size) == 0, 1.0, 0.99)
    found = np.where(np.arange(size) == 1, top, found)
    return found * rng.choice([-1.0, 1.0], size) if data.limit < 0 else found


FAR = (0, 1, 1000, 2**31, 2**32 - 1, 2**32, 2**40, 2**63)


def wrong_numbers(values: str, n: int, dtype: str) -> list[int]:
    """What is no index of n elements: beyond either end, by little and by much; "no class": a negative one is none."""
    first = 0 if values == "no class" else -n
    info = np.iinfo(dtype)
    return [b for far in FAR for b in (n + far, first - 1 - far) if info.min <= b <= info.max]


def _wrong(data: "Data", size: int) -> np.ndarray:
    """Valid indices, both ends among them, and one that is not; the seed says which."""
    bad = wrong_numbers(data.values, data.limit, data.dtype)
    found = np.where(np.arange(size) % 2 == 0, data.limit - 1, 0).astype(as_dtype(data.dtype))
    found[size // 2] = bad[data.seed % len(bad)]
    return found


def _integers(data: "Data", rng: np.random.Generator, size: int) -> np.ndarray | None:
    """Values that only make sense below a limit, or as bits; None if data asks for none of these."""
    limit = data.limit
    if data.values == "index":  # both signs
        found = rng.integers(-limit, limit, size) if limit else np.zeros(size, np.int64)
        return np.where((np.arange(size) == 1) & (found > 0), -found, found)
    if data.values == "unique":  # no index twice
        return rng.permutation(max(limit, size))[:size]
    if data.values == "below":
        return rng.integers(0, max(limit, 1), size)
    if data.values == "targets":  # classes, some of them the default ignore_index
        return np.where(rng.random(size) < 0.2, -100, rng.integers(0, limit, size))
    if data.values in ("wrong", "no class"):
        return _wrong(data, size)
    if data.values == "mask":  # whose first rows are False altogether
        return (rng.random(size) < 0.6) & (np.arange(size) >= size // 3)
    return None


# ---- layouts -------------------------------------------------------------------------------------------------


def _filler(dtype: np.dtype) -> Any:
    """What lies between and around the elements of a view: a kernel that reads it shows."""
    return np.nan if dtype in FLOATS else True if dtype.kind == "b" else np.iinfo(dtype).max


def _plain(host: np.ndarray, axis: int, upload: Callable) -> Array:
    return upload(host)


def _transposed(host: np.ndarray, axis: int, upload: Callable) -> Array:
    return ops.permute_dims(upload(host.transpose()), axes=tuple(reversed(range(host.ndim))))


def _stepped(host: np.ndarray, axis: int, upload: Callable) -> Array:
    window = (slice(1, None, 2),) * host.ndim
    wide = np.full([2 * n + 1 for n in host.shape], _filler(host.dtype), host.dtype)
    wide[window] = host
    return upload(wide)[window]


def _reversed(host: np.ndarray, axis: int, upload: Callable) -> Array:
    backwards = (slice(None, None, -1),) * host.ndim
    return upload(host[backwards])[backwards]


def _offset(host: np.ndarray, axis: int, upload: Callable) -> Array:
    longer = np.full((host.shape[0] + 3, *host.shape[1:]) if host.ndim else (3,), _filler(host.dtype), host.dtype)
    window = slice(2, 2 + host.shape[0]) if host.ndim else 1
    longer[window] = host
    return upload(longer)[window]


def _broadcast(host: np.ndarray, axis: int, upload: Callable) -> Array:
    return ops.broadcast_to(upload(_first(host, axis)), shape=host.shape)


def _transposed_offset(host: np.ndarray, axis: int, upload: Callable) -> Array:
    return _transposed(host, axis, lambda a: _offset(a, axis, upload))


def _broadcast_offset(host: np.ndarray, axis: int, upload: Callable) -> Array:
    return ops.broadcast_to(_offset(_first(host, axis), axis, upload), shape=host.shape)


def _first(host: np.ndarray, axis: int) -> np.ndarray:
    return host.take(range(min(1, host.shape[axis])), axis=axis) if host.ndim and host.size else host


# How an array lies in memory: made with polyarr's own views, so that kernels meet strides and offsets.
LAYOUTS: dict[str, Callable[[np.ndarray, int, Callable], Array]] = {
    "plain": _plain,
    "transposed": _transposed,
    "stepped": _stepped,
    "reversed": _reversed,
    "offset": _offset,
    "broadcast": _broadcast,
    "transposed, offset": _transposed_offset,
    "broadcast, offset": _broadcast_offset,
}


REPEATING = ("broadcast", "broadcast, offset")  # the layouts whose elements are not all their own


# ---- inputs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Data:
    """One array input.

    values  a key of VALUES or MATRICES, or "mixed", "special", "edges", "spread", "index", "unique", "below",
            "targets", "wrong", "no class", "mask"; "normal beside special", say, is the first with some of the second
            far from each other; so is what a key of BESIDE names
    layout  a key of LAYOUTS; one of REPEATING repeats the first slice along the axis that the seed picks
    limit   for values that are indices: how many elements there are to index; for "spread": the largest number,
            negative where there are to be both signs
    flushed  whether what is below the smallest normal number is 0, among floats
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    values: str = "normal"
    layout: str = "plain"
    seed: int = 0
    limit: int = 0
    flushed: bool = False

    def __repr__(self) -> str:
        named = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[1:] if getattr(self, f.name) != f.default)
        return f"Data({', '.join([repr(self.shape), *named])})"

    @property
    def is_floating(self) -> bool:
        """True where a gradient may flow."""
        return as_dtype(self.dtype) in FLOATS

    def numpy(self) -> np.ndarray:
        """The values, in the dtype."""
        host = _made(self if self.layout == "plain" else replace(self, layout="plain"))
        return np.broadcast_to(_first(host, self._axis), self.shape) if self.layout in REPEATING else host.copy()

    @property
    def repeats_along_rows(self) -> bool:
        """True where all elements of a row (the last axis) are alike."""
        return self.layout in REPEATING and self._axis == max(len(self.shape) - 1, 0)

    @property
    def _axis(self) -> int:
        return self.seed % max(len(self.shape), 1)

    def _drawn(self, rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
        if " beside " in self.values:
            return _alone(self, rng, size, dtype)
        if self.values == "special" and dtype.kind != "b":
            with np.errstate(all="ignore"):
                return _special(rng, size, dtype).astype(dtype)
        if self.values == "edges" and dtype.kind in "iu":
            return _edges(rng, size, dtype)
        if self.values == "spread":
            return _spread(self, rng, size).astype(dtype)
        if self.values == "mixed":
            each = [replace(self, values=v, seed=self.seed + i)._drawn(rng, size, dtype) for i, v in enumerate(MIXED)]
            return np.choose(rng.integers(0, len(MIXED), size), each) if size else each[0]
        if (found := _integers(self, rng, size)) is not None:
            return found.astype(dtype)
        if dtype.kind == "b":
            return rng.random(size) < 0.5
        if self.values in MATRICES and size:
            found = MATRICES[self.values](rng, self.shape).reshape(-1)
        else:
            found = VALUES.get(self.values, VALUES["normal"])(rng, size)
        if dtype in FLOATS:
            return found.astype(dtype)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        whole = np.rint(found if self.values in ("offset", "ties") else found * 3)
        return np.clip(np.nan_to_num(whole, posinf=100, neginf=-100), low, min(high, 2**52)).astype(dtype)

    def wide(self) -> np.ndarray:
        """The values, floats widened to float64."""
        host = self.numpy()
        return host.astype(np.float64) if self.is_floating else host

    def array(self, backend: Backend, wide: bool = False) -> Array:
        """The values on a backend, in the layout."""
        host = self.wide() if wide else self.numpy()
        return LAYOUTS[self.layout](
            host, self._axis, lambda a: from_numpy(np.ascontiguousarray(a).reshape(a.shape), backend)
        )


@functools.lru_cache(maxsize=32)
def _made(data: Data) -> np.ndarray:
    """The values before they lie in a layout. A check makes its inputs some ten times: in layouts, wide, as bounds."""
    dtype, rng = as_dtype(data.dtype), np.random.default_rng(data.seed)
    host = data._drawn(rng, math.prod(data.shape), dtype).reshape(data.shape)
    if data.flushed and data.is_floating:
        host = np.where(np.abs(host) < finfo(dtype).smallest_normal, np.copysign(dtype.type(0), host), host)
    return host


@dataclass(frozen=True, repr=False)
class Sample:
    """One call: inputs (Data, Python numbers, None, or tuples of Data), parameters, and the cotangent's layout.

    Inputs that are made by the same recipe are one and the same array.
    """

    inputs: tuple
    params: dict[str, Any] = field(default_factory=dict)
    g: str = "plain"

    def __repr__(self) -> str:
        return f"Sample({self.inputs!r}, {self.params!r}" + (f", g={self.g!r})" if self.g != "plain" else ")")

    def _mapped(self, fn: Callable[[Data], Any]) -> tuple:
        return tree.map(lambda leaf: fn(leaf) if isinstance(leaf, Data) else leaf, self.inputs)

    def arrays(self, backend: Backend, wide: bool = False) -> tuple:
        """The inputs on a backend; wide: floats as float64."""
        made: dict[Data, Array] = {}

        def array(data: Data) -> Array:
            if data not in made:
                made[data] = data.array(backend, wide)
            return made[data]

        return self._mapped(array)

    def hosts(self, wide: bool = True) -> tuple:
        """The inputs as NumPy arrays; wide: floats as float64."""
        return self._mapped(Data.wide if wide else Data.numpy)

    def with_layout(self, layout: str) -> "Sample":
        """The same values (as long as layout is not one of REPEATING) in another layout."""
        return replace(self, inputs=self._mapped(lambda d: replace(d, layout=layout)))

    def flushed(self, dtypes: frozenset[np.dtype]) -> "Sample":
        """The same call without numbers that a backend may take as 0, in these dtypes."""
        if not dtypes:
            return self
        return replace(
            self, inputs=self._mapped(lambda d: replace(d, flushed=True) if as_dtype(d.dtype) in dtypes else d)
        )

    def with_values(self, values: str, only: str = "") -> "Sample":
        """The same call with other values in the place of the only ones, or of all but indices, masks and targets."""
        changed = {only} if only else ORDINARY
        return replace(self, inputs=self._mapped(lambda d: replace(d, values=values) if d.values in changed else d))

    def with_other_numbers(self, times: int = 1) -> "Sample":
        """A call of the same shapes, indices, masks and targets."""
        more = 50 * times
        return replace(
            self, inputs=self._mapped(lambda d: replace(d, seed=d.seed + more) if d.values in ORDINARY else d)
        )

    def with_dtype(self, dtype: str, usual: str) -> "Sample":
        """The same call, with inputs of the usual dtype in another one."""
        return replace(self, inputs=self._mapped(lambda d: replace(d, dtype=dtype) if d.dtype == usual else d))

    def with_twins(self) -> Iterator["Sample"]:
        """The same call, each time with one array in two places."""
        flat = [(path, d) for path, d in tree.items(self.inputs) if isinstance(d, Data)]
        for (where, first), (path, second) in itertools.combinations(flat, 2):
            if (first.shape, first.dtype) == (second.shape, second.dtype) and second.values in ORDINARY:
                # Of positive numbers and others, the positive ones are within both domains.
                places = (where, second) if first.values == "normal" else (path, first)
                yield replace(self, inputs=_placed(self.inputs, *places))

    def dtypes(self) -> frozenset[np.dtype]:
        """The dtypes of the inputs, and the one that a parameter asks for."""
        named = [d.dtype for d in tree.leaves(self.inputs) if isinstance(d, Data)]
        return frozenset(map(as_dtype, filter(None, (*named, self.params.get("dtype")))))

    def specs(self) -> tuple:
        """The inputs without their values."""
        return self._mapped(lambda d: Spec(d.shape, as_dtype(d.dtype)))

    def wide_params(self) -> dict[str, Any]:
        """The parameters for a calculation in float64."""
        return {
            name: "float64" if name == "dtype" and value and as_dtype(value) in FLOATS else value
            for name, value in self.params.items()
        }


def _placed(inputs: tuple, path: tuple, data: Data) -> tuple:
    """The inputs, with data at the path."""
    found = list(inputs)
    found[path[0]] = _placed(found[path[0]], path[1:], data) if len(path) > 1 else data
    return tuple(found)


# ---- strategies ----------------------------------------------------------------------------------------------

VIEWS = tuple(LAYOUTS)


@functools.cache
def datas(
    shape: tuple[int, ...],
    dtype: str,
    values: Sequence[str] = ("normal",),
    layouts: Sequence[str] = VIEWS,
    limit: int = 0,
) -> SearchStrategy[Data]:
    """One array input. Distinct values and matrices are not broadcast: that would repeat them."""
    if {"distinct", *MATRICES} & {*values}:
        layouts = tuple(layout for layout in layouts if layout not in REPEATING)
    return st.builds(
        Data,
        st.just(shape),
        st.just(dtype),
        st.sampled_from(values),
        st.sampled_from(layouts),
        st.integers(0, 30),
        st.just(limit),
    )


def remembered(fn: Callable) -> Callable:
    """fn, which builds a strategy, called once per argument: building strategies is most of drawing from them."""
    found: dict[Any, SearchStrategy] = {}

    def build(argument: Any) -> SearchStrategy:
        if argument not in found:
            found[argument] = fn(argument)
        return found[argument]

    return build


_NONE: SearchStrategy[dict] = st.just({})


def samples(*inputs: SearchStrategy, params: SearchStrategy | None = None) -> SearchStrategy[Sample]:
    """A call with these inputs."""
    layouts = st.sampled_from(("plain", "plain", "transposed", "broadcast", "stepped"))
    return st.builds(Sample, st.tuples(*inputs).map(_apart), _NONE if params is None else params, layouts)


def _apart(inputs: tuple) -> tuple:
    """The inputs, each with a seed of its own: what mixes two up does not show if they are alike."""
    more = itertools.count()
    return tree.map(lambda a: replace(a, seed=a.seed + next(more)) if isinstance(a, Data) else a, inputs)


def one_axis(shape: tuple) -> SearchStrategy[int]:
    """An axis, counted from either end, most often one that has several elements; the last one first."""
    all_axes = (*range(-1, -len(shape) - 1, -1), *range(len(shape)))
    longer = [axis for axis in all_axes if shape[axis] > 1]
    return st.sampled_from((*longer, *longer, *all_axes))


def axes(shape: tuple) -> SearchStrategy:
    """One axis (counted from either end), None or several."""
    if not shape:
        return st.sampled_from((None, ()))
    some = st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=len(shape)).map(tuple)
    return st.one_of(one_axis(shape), st.none(), some)
