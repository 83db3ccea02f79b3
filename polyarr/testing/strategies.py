"""Inputs of checks: arrays as short recipes, in every memory layout and with values that have caught real errors.

A `Data` is a recipe for one array input and a `Sample` one for all inputs of a call. The repr of either is the Python
code that creates it again. A recipe gives the same numbers on every machine, so a failure can be repeated at a prompt.
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

from polyarr import tree
from polyarr.core.array import Array, flatten, from_numpy
from polyarr.core.backend import Backend
from polyarr.core.spec import COMPLEX, DTYPES, FLOATS, INEXACT, Spec, as_dtype, real_of
from polyarr.creation import finfo
from polyarr.testing.layouts import LAYOUTS, REPEATING, first_slice
from polyarr.testing.shaped import OF_COMPLEX, SHAPED_VALUES
from polyarr.testing.sweeps import corners, quiet, sweep, with_nans

# Lengths around 32 catch kernels that forget the last partial tile; 1 and 0 those that divide by n - 1 or by n. Every
# check tries the first shape, the first values and so on, even if it draws only one example.
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
    """Return numbers at least 0.1 from whole numbers and halves: floor, round, abs and sign are smooth there."""
    return rng.integers(-3, 3, size) + rng.choice([0.0, 0.5], size) + rng.uniform(0.1, 0.4, size)


def _distinct(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return numbers of which no two are equal, so that a small step changes no order and no maximum."""
    return (rng.permutation(size) - size / 2 + 0.25) * (6 / max(size, 3))


def _lopsided(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return one large number and many that a narrow float loses if they are added to it one by one."""
    return np.where(np.arange(size) == 0, 128.0, 0.03)


def _all_but_the_last(most: float, last: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Return a rule that sets only the last element apart, which a kernel that forgets its last tile does not read."""
    return lambda rng, size: np.where(np.arange(size) == size - 1, last, most)


def _with_some(*odd: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Return a rule by which a tenth of the elements are one of `odd`; each nan becomes one of NANS."""

    def values(rng: np.random.Generator, size: int) -> np.ndarray:
        found, where = rng.standard_normal(size), rng.random(size) < 0.1
        found[where] = rng.choice(odd, where.sum())
        return with_nans(rng, found)

    return values


def _sparse(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return zeros, with ones on both sides of every power of two and at both ends: a sum that skips one is wrong."""
    powers = 2 ** np.arange(size.bit_length())
    ones = np.concatenate([[0, size - 1], powers - 1, powers])
    return np.isin(np.arange(size), ones).astype(np.float64)


def _lone(odd: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Return a rule for normal numbers and one `odd` number in the last eighth."""

    def values(rng: np.random.Generator, size: int) -> np.ndarray:
        found = rng.standard_normal(size)
        found[size - 1 - size // 9 :][:1] = odd
        return found

    return values


def _masked(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return numbers with -inf in some places, and in the whole first row of a square."""
    found = _with_some(np.nan, -np.inf, -np.inf)(rng, size)
    return np.where(np.arange(size) < size**0.5, -np.inf, found)


def _hidden(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return additive attention masks: -inf for a third of the scores or more, among them all of the first rows."""
    return np.where((np.arange(size) < size // 3) | (rng.random(size) < 0.2), -np.inf, rng.standard_normal(size))


# Rules by which floating-point values are drawn. Integer arrays hold the same numbers, tripled and rounded.
VALUES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "offset": lambda rng, size: rng.standard_normal(size) + 100,
    "deep": lambda rng, size: rng.standard_normal(size) - 200,  # exponentials of these numbers are 0 in float32
    "wide": lambda rng, size: rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size),
    "ties": lambda rng, size: rng.integers(-2, 3, size).astype(np.float64),
    "positive": lambda rng, size: rng.uniform(0.2, 3.0, size),
    "unit": lambda rng, size: rng.uniform(-0.9, 0.9, size),
    "share": lambda rng, size: rng.uniform(0.05, 0.95, size),
    "above one": lambda rng, size: rng.uniform(1.2, 4.0, size),
    # Exact in every dtype, and never 0: a cotangent of 0 would hide any error.
    "eighths": lambda rng, size: (np.floor(np.clip(rng.standard_normal(size), -3, 3) * 4) * 2 + 1) / 8,
    "counts": lambda rng, size: rng.integers(1, 9, size).astype(np.float64),
    "sparse": _sparse,
    # float16 holds each of these numbers, but not the sum of the first half
    "swings": lambda rng, size: np.where(np.arange(size) < size // 2, 1, -1) * rng.uniform(2e4, 3e4, size),
    "zeros": lambda rng, size: np.zeros(size),
    "ramp": lambda rng, size: np.arange(size, dtype=np.float64),
    "few": lambda rng, size: np.resize([0.5, 1, 1.5, 2, 3, 7, 10, -1, -0.5, -2, -3, -7, 16, -16], size),
    "near one": lambda rng, size: rng.choice([-1, 1], size) * rng.uniform(0.95, 1.05, size),
    "away": _away,
    "distinct": _distinct,
    "lopsided": _lopsided,
    "hundreds": lambda rng, size: rng.standard_normal(size) * 100,  # their squares keep few bits in float16
    "tenths": lambda rng, size: np.full(size, 0.1),  # their sum drifts in a single float32 accumulator
    "one true": _all_but_the_last(0.0, 1.0),
    "one false": _all_but_the_last(1.0, 0.0),
    "nonfinite": _with_some(np.nan, np.inf, -np.inf, -0.0),
    "masked": _masked,
    "hidden": _hidden,
    "nan": _with_some(np.nan),
    "lone nan": _lone(-np.nan),
    "lone inf": _lone(np.inf),
    "lone -inf": _lone(-np.inf),
}

ORDINARY = {*VALUES, *SHAPED_VALUES, "mixed", "special", "edges"} - {
    "distinct",
    "hidden",
}  # values without a meaning of their own, unlike indices, masks and targets
MIXED = ("special", "normal", "special", "ties", "wide")  # rules from which the elements of "mixed" arrays are chosen


def _special(rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    """Return nan, infinities, both zeros, denormals and limits of a float dtype; the extremes of an integer dtype."""
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        whole = [ends.min, ends.max, 0, 1, ends.max - 1, ends.min + 1, 2, *([-1, -2] if ends.min else [])]
        return np.array(whole, dtype)[rng.permutation(size) % len(whole)]
    info = finfo(dtype)
    tiny, large = info.smallest_normal, 4 * float(info.max) ** 0.5  # the square of `large` overflows
    chosen = [np.nan, np.inf, 0.0, tiny, tiny * info.eps, tiny / 2, info.max, large, info.eps, 1.0, 0.5, 2.5, 1e-4, 20]
    drawn = np.array(chosen)[rng.permutation(size) % len(chosen)] * rng.choice([-1.0, 1.0], size)
    return with_nans(rng, drawn)


SPECIAL_SPACING = 600  # elements between special values: more than a kernel processes at once
BESIDE = {"infinite": (np.nan, np.inf, -np.inf), "endless": (np.nan, np.inf), "zero": (np.nan, 0.0, -0.0)}


def _with_isolated_special(data: "Data", rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    """Return normal numbers with a special one every SPECIAL_SPACING elements."""
    usual, _, kind = data.values.partition(" beside ")
    found, places = replace(data, values=usual)._drawn(rng, size, dtype), size // SPECIAL_SPACING
    if kind == "special":
        with np.errstate(all="ignore"):
            chosen = np.sort(_special(rng, places, dtype).astype(dtype))
    else:
        chosen = np.resize(BESIDE[kind], places)
    found[SPECIAL_SPACING // 2 :: SPECIAL_SPACING][:places] = chosen
    return found


def _edges(rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    """Return whole numbers next to those that a float or a narrower integer cannot represent, if dtype holds them."""
    powers = [sign * 2**bits + step for bits in (24, 31, 32, 53, 63) for step in (-2, -1, 0, 1, 2) for sign in (1, -1)]
    info = np.iinfo(dtype)
    chosen = [n for n in powers if info.min <= n <= info.max] or [info.min, info.max, 1]
    return np.array(chosen, dtype)[rng.permutation(size) % len(chosen)]


def _spread(data: "Data", rng: np.random.Generator, size: int) -> np.ndarray:
    """Return numbers of every magnitude up to |limit|, log-uniform; of both signs if the limit is negative."""
    dtype = as_dtype(data.dtype)
    top = min(float(abs(data.limit)) * (1 - float(finfo(dtype).eps)), float(finfo(dtype).max))
    found = top ** rng.uniform(0, 1, size) * np.where(np.arange(size) == 0, 1.0, 0.99)
    found = np.where(np.arange(size) == 1, top, found)
    return found * rng.choice([-1.0, 1.0], size) if data.limit < 0 else found


DISTANCES = (0, 1, 1000, 2**31, 2**32 - 1, 2**32, 2**40, 2**63)


def wrong_numbers(values: str, n: int, dtype: str) -> list[int]:
    """Return numbers that are no index of n elements, by little and by much; for "no class", negative ones included."""
    first = 0 if values == "no class" else -n
    info = np.iinfo(dtype)
    return [b for far in DISTANCES for b in (n + far, first - 1 - far) if info.min <= b <= info.max]


def _wrong(data: "Data", size: int) -> np.ndarray:
    """Return valid indices with one invalid index, which the seed selects, in the middle."""
    bad = wrong_numbers(data.values, data.limit, data.dtype)
    found = np.where(np.arange(size) % 2 == 0, data.limit - 1, 0).astype(as_dtype(data.dtype))
    found[size // 2] = bad[data.seed % len(bad)]
    return found


def _integers(data: "Data", rng: np.random.Generator, size: int) -> np.ndarray | None:
    """Return values that need a limit or stand for bits; None if `data` asks for none of these."""
    limit = data.limit
    if data.values == "index":  # of both signs
        found = rng.integers(-limit, limit, size) if limit else np.zeros(size, np.int64)
        return np.where((np.arange(size) == 1) & (found > 0), -found, found)
    if data.values == "unique":  # no index twice
        return rng.permutation(max(limit, size))[:size]
    if data.values == "below":
        return rng.integers(0, max(limit, 1), size)
    if data.values == "ignored":
        return np.full(size, -100)
    if data.values == "none":
        return np.zeros(size)
    if data.values == "targets":  # classes, some of them the default ignore_index
        return np.where(rng.random(size) < 0.2, -100, rng.integers(0, limit, size))
    if data.values in ("wrong", "no class"):
        return _wrong(data, size)
    if data.values == "mask":  # the first rows are all False
        return (rng.random(size) < 0.6) & (np.arange(size) >= size // 3)
    return None


# ---- inputs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Data:
    """A recipe for one array input of a check.

    Attributes:
        shape: Shape of the array.
        dtype: Name of its dtype.
        values: Rule for the values: a key of VALUES or SHAPED_VALUES, or "mixed", "special", "edges", "sweep",
            "quiet sweep", "corners", "spread", "index", "unique", "below", "ignored", "none", "targets", "wrong",
            "no class", "mask". "normal beside special" means normal values with special ones far apart; the keys of
            BESIDE work in the same way.
        layout: Memory layout, a key of LAYOUTS. Those in REPEATING repeat the first slice along an axis that the seed
            selects.
        seed: Seed of the values.
        limit: For indices: the number of elements to index. For "spread": the largest magnitude, negative for values
            of both signs. For sweeps and "corners": the number of values after which they begin again, unless 0.
        flushed: Whether floating-point values below the smallest normal number are replaced with 0.

    Examples:
        >>> from polyarr.testing import Data
        >>> Data((3,), "int64", "index", limit=5).numpy().shape
        (3,)
        >>> Data((2, 3), values="ramp").numpy().tolist()
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
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
        """True if the dtype is a floating-point or complex one, so that a gradient may flow."""
        return as_dtype(self.dtype) in INEXACT

    def numpy(self) -> np.ndarray:
        """Return the values as a host array of the dtype."""
        host = _values_of(self if self.layout == "plain" else replace(self, layout="plain"))
        return np.broadcast_to(first_slice(host, self._axis), self.shape) if self.layout in REPEATING else host.copy()

    @property
    def repeats_along_rows(self) -> bool:
        """True if all elements of a row (along the last axis) are equal."""
        return self.layout in REPEATING and self._axis == max(len(self.shape) - 1, 0)

    @property
    def _axis(self) -> int:
        return self.seed % max(len(self.shape), 1)

    def _drawn(self, rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
        if dtype in COMPLEX and self.values not in OF_COMPLEX:  # both parts by the same rule
            return np.stack([self._drawn(rng, size, real_of(dtype)) for _ in range(2)], axis=-1).view(dtype).reshape(-1)
        if " beside " in self.values:
            return _with_isolated_special(self, rng, size, dtype)
        if self.values == "special" and dtype.kind != "b":
            with np.errstate(all="ignore"):
                return _special(rng, size, dtype).astype(dtype)
        if self.values == "edges" and dtype.kind in "iu":
            return _edges(rng, size, dtype)
        if self.values in ("sweep", "quiet sweep"):
            swept = np.resize(sweep(dtype, self.seed, self.limit or size), size)
            return swept if self.values == "sweep" else quiet(swept)
        if self.values == "corners":
            return np.resize(np.resize(corners(dtype), self.limit or size), size)
        if self.values == "spread":
            return _spread(self, rng, size).astype(dtype)
        if self.values == "mixed":
            each = [replace(self, values=v, seed=self.seed + i)._drawn(rng, size, dtype) for i, v in enumerate(MIXED)]
            return np.choose(rng.integers(0, len(MIXED), size), each) if size else each[0]
        if (found := _integers(self, rng, size)) is not None:
            return found.astype(dtype)
        if dtype.kind == "b":
            return rng.random(size) < 0.5
        if self.values in SHAPED_VALUES and size:
            found = SHAPED_VALUES[self.values](rng, self.shape, dtype).reshape(-1)
        else:
            found = VALUES.get(self.values, VALUES["normal"])(rng, size)
        if dtype in INEXACT:
            return found.astype(dtype)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        whole = np.rint(found if self.values in ("offset", "ties", "ramp") else found * 3)
        return np.clip(np.nan_to_num(whole, posinf=100, neginf=-100), low, min(high, 2**52)).astype(dtype)

    def wide(self) -> np.ndarray:
        """Return the values as a host array, with floats widened to float64."""
        host = self.numpy()
        with np.errstate(invalid="ignore"):  # the product makes signaling nans quiet; a cast need not
            if host.dtype in COMPLEX:
                return host.astype(np.complex128)
            return np.asarray(host.astype(np.float64) * 1.0) if self.is_floating else host

    def array(self, backend: Backend, wide: bool = False) -> Array:
        """Return the values as an array on a backend, in the layout."""
        host = self.wide() if wide else self.numpy()
        return LAYOUTS[self.layout](
            host, self._axis, lambda a: from_numpy(np.ascontiguousarray(a).reshape(a.shape), backend)
        )


@functools.lru_cache(maxsize=32)
def _values_of(data: Data) -> np.ndarray:
    """Return the values before they are laid out, cached: a check needs its inputs about ten times."""
    dtype, rng = as_dtype(data.dtype), np.random.default_rng(data.seed)
    host = data._drawn(rng, math.prod(data.shape), dtype).reshape(data.shape)
    if data.flushed and dtype in FLOATS:
        host = np.where(np.abs(host) < finfo(dtype).smallest_normal, np.copysign(dtype.type(0), host), host)
    return host


@dataclass(frozen=True, repr=False)
class Sample:
    """A recipe for one call: inputs, parameters and the layout of the cotangent.

    Inputs made by equal recipes are one and the same array.

    Attributes:
        inputs: Tuple of Data, Python numbers, None, or tuples of Data.
        params: Keyword parameters of the op.
        g: Layout of the cotangent, a key of LAYOUTS.

    Examples:
        >>> from polyarr import get_backend, ops
        >>> from polyarr.testing import Data, Sample
        >>> sample = Sample((Data((2, 3), values="ramp"),), {"axis": 1})
        >>> ops.sum(*sample.arrays(get_backend("numpy")), **sample.params).tolist()
        [3.0, 12.0]
    """

    inputs: tuple
    params: dict[str, Any] = field(default_factory=dict)
    g: str = "plain"

    def __repr__(self) -> str:
        return f"Sample({self.inputs!r}, {self.params!r}" + (f", g={self.g!r})" if self.g != "plain" else ")")

    def mapped(self, fn: Callable[[Data], Any]) -> tuple:
        """Return the inputs with `fn` applied to each Data."""
        return tree.map(lambda leaf: fn(leaf) if isinstance(leaf, Data) else leaf, self.inputs)

    def arrays(self, backend: Backend, wide: bool = False) -> tuple:
        """Return the inputs as arrays on a backend; with `wide`, floats are float64, complex numbers complex128."""
        made: dict[Data, Array] = {}

        def array(data: Data) -> Array:
            if data not in made:
                made[data] = data.array(backend, wide)
            return made[data]

        return self.mapped(array)

    def hosts(self, wide: bool = True) -> tuple:
        """Return the inputs as NumPy arrays; with `wide`, floats are float64."""
        return self.mapped(Data.wide if wide else Data.numpy)

    def with_layout(self, layout: str) -> "Sample":
        """Return the call in another layout; the values stay, unless the layout is one of REPEATING."""
        return replace(self, inputs=self.mapped(lambda d: replace(d, layout=layout)))

    def flushed(self, dtypes: frozenset[np.dtype]) -> "Sample":
        """Return the call without denormal numbers in the given dtypes, which a backend may flush to 0."""
        if not dtypes:
            return self
        return replace(
            self, inputs=self.mapped(lambda d: replace(d, flushed=True) if as_dtype(d.dtype) in dtypes else d)
        )

    def with_values(self, values: str, only: str = "") -> "Sample":
        """Return the call with another rule where the rule is `only`, or for all but indices, masks and targets."""
        changed = {only} if only else ORDINARY
        return replace(self, inputs=self.mapped(lambda d: replace(d, values=values) if d.values in changed else d))

    def with_other_numbers(self, times: int = 1) -> "Sample":
        """Return a call with the same shapes, indices, masks and targets and other numbers."""
        more = 50 * times
        return replace(
            self, inputs=self.mapped(lambda d: replace(d, seed=d.seed + more) if d.values in ORDINARY else d)
        )

    def with_dtype(self, dtype: str, usual: str) -> "Sample":
        """Return the call with the inputs of the dtype `usual` in another dtype."""
        return replace(self, inputs=self.mapped(lambda d: replace(d, dtype=dtype) if d.dtype == usual else d))

    def with_twins(self) -> Iterator["Sample"]:
        """Yield calls in which one array is passed as two inputs, for every pair of inputs that allows it."""
        flat = [(path, d) for path, d in tree.items(self.inputs) if isinstance(d, Data)]
        for (where, first), (path, second) in itertools.combinations(flat, 2):
            if (first.shape, first.dtype) == (second.shape, second.dtype) and second.values in ORDINARY:
                # Positive numbers are within the domains of both inputs.
                places = (where, second) if first.values == "normal" else (path, first)
                yield replace(self, inputs=_placed(self.inputs, *places))

    def changed_at(self, path: tuple, change: Callable[[Data], Data]) -> "Sample":
        """Return the call with the input at a path changed."""
        found: Any = self.inputs
        for i in path:
            found = found[i]
        return replace(self, inputs=_placed(self.inputs, path, change(found)))

    def dtypes(self) -> frozenset[np.dtype]:
        """Return the dtypes of the inputs, and that of the parameter dtype."""
        named = [d.dtype for d in tree.leaves(self.inputs) if isinstance(d, Data)]
        return frozenset(map(as_dtype, filter(None, (*named, self.params.get("dtype")))))

    def is_held(self, op: Callable, dtypes: frozenset[np.dtype]) -> bool:
        """Return whether the inputs and the results of the call of an op have these dtypes, those of a backend."""
        if not self.dtypes() <= dtypes:
            return False
        if dtypes >= {*DTYPES}:
            return True
        try:
            found = op(*self.specs(), **self.params)
        except (TypeError, ValueError, IndexError):  # polyarr's own exceptions are subclasses; the check is about this
            return True
        return {spec.dtype for spec in flatten((found,)) if spec is not None} <= dtypes

    def specs(self) -> tuple:
        """Return the inputs as Specs, without values."""
        return self.mapped(lambda d: Spec(d.shape, as_dtype(d.dtype)))

    def wide_params(self) -> dict[str, Any]:
        """Return the parameters for a computation in float64 or complex128."""
        return {name: _widest(value) if name == "dtype" and value else value for name, value in self.params.items()}


def _widest(dtype: Any) -> Any:
    found = as_dtype(dtype)
    return "complex128" if found in COMPLEX else "float64" if found in FLOATS else dtype


def _placed(inputs: tuple, path: tuple, data: Data) -> tuple:
    """Return the inputs with `data` at the path."""
    found, (first, *rest) = list(inputs), path
    found[first] = _placed(found[first], tuple(rest), data) if rest else data
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
    """Return the strategy for one array input. Distinct values and matrices are not broadcast: it repeats them."""
    if {"distinct", *SHAPED_VALUES} & {*values}:
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


def memoized(fn: Callable) -> Callable:
    """Return `fn`, which builds a strategy, with a cache by its argument: building takes longer than drawing."""
    found: dict[Any, SearchStrategy] = {}

    def build(argument: Any) -> SearchStrategy:
        if argument not in found:
            found[argument] = fn(argument)
        return found[argument]

    return build


_NONE: SearchStrategy[dict] = st.just({})


def samples(*inputs: SearchStrategy, params: SearchStrategy | None = None) -> SearchStrategy[Sample]:
    """Return the strategy for calls with these inputs."""
    layouts = st.sampled_from(("plain", "plain", "transposed", "broadcast", "stepped"))
    return st.builds(Sample, st.tuples(*inputs).map(_with_distinct_seeds), _NONE if params is None else params, layouts)


def _with_distinct_seeds(inputs: tuple) -> tuple:
    """Return the inputs with distinct seeds: a kernel that confuses two equal inputs would not be noticed."""
    more = itertools.count()
    return tree.map(lambda a: replace(a, seed=a.seed + next(more)) if isinstance(a, Data) else a, inputs)


def one_axis(shape: tuple) -> SearchStrategy[int]:
    """Return the strategy for an axis, counted from either end; the last axis first, axes longer than 1 more often."""
    all_axes = (*range(-1, -len(shape) - 1, -1), *range(len(shape)))
    longer = [axis for axis in all_axes if shape[axis] > 1]
    return st.sampled_from((*longer, *longer, *all_axes))


def axes(shape: tuple) -> SearchStrategy:
    """Return the strategy for an axis (counted from either end), None or several axes."""
    if not shape:
        return st.sampled_from((None, ()))
    some = st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=len(shape)).map(tuple)
    return st.one_of(one_axis(shape), st.none(), some)
