"""Every case of the conformance kit: one check of one op, or of the backend itself, derived from the list of ops.

A case belongs to a level, and each level contains those before it:

    core      the primitives: values, dtypes, layouts, habits; copies, random bits, threads, the cache of programs
    autograd  the gradients of the primitives, to the second order
    nn        every other op, its gradients and its Fused pair; layers
    gpt       a small GPT trains to NumPy's losses, and draws NumPy's tokens

What a backend says that it lacks raises Lacking: a dtype, a pair, a report of its memory; NotOffered: a group of ops.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from polyarr import ops
from polyarr.core.backend import Backend
from polyarr.core.groups import NOT_OFFERED, offer
from polyarr.core.op import Op
from polyarr.core.spec import FLOATS, as_dtype
from polyarr.testing import backend_checks, capturing, checks, held, state, tape
from polyarr.testing.compare import CheckFailure, Lacking, NotOffered
from polyarr.testing.report import LEVELS
from polyarr.testing.samples import SAMPLES, Entry, elementwise, takes_numbers
from polyarr.testing.strategies import Sample

FAST, THOROUGH = 12, 200  # examples of the cases that try most


class Effort(NamedTuple):
    """How much to try: the most examples that a case draws, and what the drawing begins with."""

    examples: int = FAST
    seed: int = 0


def effort_of(option: Callable[[str], Any]) -> Effort:
    """What the options ask for: option gives the value of one by its name.

    The first example of a case is the simplest one, and has the shape that those of most other cases have. So a backend
    that compiles a program for every shape compiles few where a case tries one example only.
    """
    few, thorough = option("polyarr_few_shapes"), option("polyarr_thorough")
    return Effort(1 if few else THOROUGH if thorough else FAST, option("polyarr_seed"))


class Case(NamedTuple):
    """One thing that a backend must do.

    level    the first level that it belongs to
    check    what is checked: a column of the report's matrix
    subject  of what: an op's name, or what a check of the backend itself is about
    run      raises CheckFailure if it does not hold, Lacking if the backend says that it cannot
    """

    level: str
    check: str
    subject: str
    run: Callable[[Backend, Effort], None]

    @property
    def name(self) -> str:
        """What a test of it, a known failure and the report call it."""
        return f"{self.check}-{self.subject}"


class Kind(NamedTuple):
    """A sort of case that there is one of for every op.

    check      a function of polyarr.testing.checks
    draws      how to call the op, in one dtype; None: not for this op
    share      of the examples, how many; 0: the simplest one, from which the check makes its own
    gradients  whether the level is that of gradients
    changed    an op's entry and a drawn call -> what the check gets
    """

    check: Callable
    draws: Callable[[Op, Entry, str], SearchStrategy[Sample] | None]
    share: float = 1.0
    gradients: bool = False
    changed: Callable[[Entry, Sample], Sample] | None = None


@cache
def _any(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample]:
    return entry.cases(dtype)


@cache
def _smooth(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    return entry.smooth(dtype) if entry.smooth and as_dtype(dtype) in FLOATS else None


def _either(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample]:
    smooth = _smooth(op, entry, dtype)
    return _any(op, entry, dtype) if smooth is None else smooth


def _various(entry: Entry, sample: Sample) -> Sample:
    """Ordinary numbers, of which the next call has others: not the same ones reordered, no nan that hides all."""
    return sample.with_values("normal", only="distinct").with_values("normal", only="mixed")


def _special(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    return _any(op, entry, dtype) if entry.special else None


def _with_special(entry: Entry, sample: Sample) -> Sample:
    return sample.with_values(entry.special)


def _composed(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    return _smooth(op, entry, dtype) if op.body else None


def _beside_others(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    has_special = dtype != "bool" and op is not ops.astype  # of which huge numbers are undefined
    return _either(op, entry, dtype) if op in elementwise.SAMPLES and has_special else None


def _numbers(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    return _any(op, entry, dtype) if takes_numbers(op, entry) else None


def _held(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    return _any(op, entry, dtype) if op.numbers else None


def _indices(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    return _any(op, entry, dtype) if op.indices else None


def _array_inputs(op: Op) -> int:
    """How many inputs are arrays of one sort."""
    return len({*op.inputs} - {"key", "counter", "like", "rtol", "start", "starts", "step"}) - len(op.indices)


def _twins(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    """Calls in which two inputs are alike, if there are any."""
    if op in (ops.bitwise_left_shift, ops.bitwise_right_shift):  # by itself, most numbers cannot be shifted
        return None
    if op is ops.cross_entropy_and_gradient:  # a number and a matrix
        return None
    found = _either(op, entry, dtype).filter(lambda sample: any(True for _ in sample.with_twins()))
    return found if _array_inputs(op) > 1 or op.inputs == ("arrays",) else None


KINDS = {
    "forward": Kind(checks.check_forward, _any),
    "special": Kind(checks.check_forward, _special, 1 / 2, changed=_with_special),
    "alone": Kind(checks.check_alone, _beside_others, 0),
    "layout": Kind(checks.check_layout, _any, 1 / 6),
    "large": Kind(checks.check_large, _either, 0),
    "numbers": Kind(checks.check_numbers, _numbers, 0),
    "held": Kind(held.check_held, _held, 0),
    "indices": Kind(checks.check_indices, _indices, 0),
    "alias": Kind(checks.check_alias, _twins, 1 / 6),
    "bounds": Kind(checks.check_bounds, _either, 1 / 6),
    "purity": Kind(checks.check_purity, _either, 1 / 3),
    "determinism": Kind(checks.check_determinism, _either, 1 / 3),
    "captured": Kind(capturing.check_captured, _either, 0, changed=_various),
    "lasting": Kind(state.check_lasting, _either, 0, changed=_various),
    "caches": Kind(state.check_caches, _either, 0, changed=_various),
    "threads": Kind(state.check_threads, _either, 0, changed=_various),
    "transfers": Kind(checks.check_no_transfers, _either, 1 / 3),
    "memory": Kind(checks.check_memory, _either, 1 / 6),
    "backward": Kind(checks.check_backward, _smooth, gradients=True),
    "second-order": Kind(checks.check_second_order_agrees, _smooth, 1 / 3, gradients=True),
    "pair": Kind(checks.check_fused_pair, _composed, gradients=True),
    "wanted": Kind(tape.check_wanted, _composed, 1 / 6, gradients=True),
    "tape": Kind(tape.check_tape, _smooth, 0, gradients=True),
}
OF_BACKEND = {
    "complete": ("core", backend_checks.check_complete),
    "copies": ("core", backend_checks.check_copies),
    "hosts": ("core", backend_checks.check_hosts),
    "synchronize": ("core", backend_checks.check_synchronize),
    "random-bits": ("core", backend_checks.check_random_bits),
    "bad-indices": ("core", backend_checks.check_bad_indices),
    "threads": ("core", backend_checks.check_threads),
    "program-cache": ("core", backend_checks.check_program_cache),
    "joined": ("core", capturing.check_joined),
    "precisions": ("nn", backend_checks.check_precisions),
    "transforms": ("autograd", backend_checks.check_transforms),
    "training": ("gpt", backend_checks.check_training),
    "generation": ("gpt", backend_checks.check_generation),
}
OTHER_DTYPES = 1 / 6  # of the examples, how many for each dtype that is not the usual one


@cache
def cases() -> tuple[Case, ...]:
    """Every case, in the order of the levels."""
    found = [*_of_the_backend(), *_of_ops(), *_of_dtypes()]
    return tuple(sorted(found, key=lambda case: LEVELS.index(case.level)))


def columns() -> list[str]:
    """The checks that ops are put to: the columns of a matrix."""
    dtypes = [d for entry in SAMPLES.values() for d in entry.dtypes]
    return [*KINDS, *dict.fromkeys(dtypes)]


def _of_ops() -> Iterator[Case]:
    for name, kind in KINDS.items():
        for op, entry in SAMPLES.items():
            strategy = kind.draws(op, entry, entry.usual)
            if strategy is not None:
                level = "nn" if op.body else "autograd" if kind.gradients else "core"
                changed = partial(kind.changed, entry) if kind.changed else None
                run = partial(_examine, kind.check, op, strategy, kind.share, changed)
                yield Case(level, name, op.name, run)


def _of_dtypes() -> Iterator[Case]:
    for op, entry in SAMPLES.items():
        for dtype in entry.dtypes:
            if dtype != entry.usual:
                yield Case("nn" if op.body else "core", dtype, op.name, partial(_run_dtype, op, entry, dtype))


def _run_dtype(op: Op, entry: Entry, dtype: str, backend: Backend, effort: Effort) -> None:
    """The value and, of floats, the gradients."""
    _check_offered(op, backend)
    if as_dtype(dtype) not in backend.dtypes:
        raise Lacking(f"{backend.name} holds no {dtype}")
    few = effort._replace(examples=_part(effort.examples, OTHER_DTYPES))
    _examine(checks.check_forward, op, _any(op, entry, dtype), 1, None, backend, few)
    smooth = _smooth(op, entry, dtype)
    if smooth is not None:
        _examine(checks.check_backward, op, smooth, 1, None, backend, few)


def _check_offered(op: Op, backend: Backend) -> None:
    if op.group and op not in backend.kernels and offer(backend, op.group) == NOT_OFFERED:
        raise NotOffered(f"{backend.name} does not offer the group {op.group}")


def _of_the_backend() -> Iterator[Case]:
    for subject, (level, check) in OF_BACKEND.items():
        yield Case(level, "backend", subject, partial(_run_of_backend, check))
    for layer in backend_checks.LAYERS:
        yield Case("nn", "layer", layer, partial(_run_layer, layer))


def _run_of_backend(check: Callable[[Backend, int], None], backend: Backend, effort: Effort) -> None:
    check(backend, effort.examples)


def _run_layer(layer: str, backend: Backend, effort: Effort) -> None:
    backend_checks.check_layer(layer, backend)


class _Drawing(NamedTuple):
    """Which examples hypothesis is to draw: of a strategy, those in a backend's dtypes."""

    strategy: SearchStrategy[Sample]
    dtypes: frozenset
    seed: int
    examples: int

    def given_to(self, check: Callable[[Sample], None], phases: tuple[Phase, ...]) -> None:
        """Put a check to them."""
        return seeded(self.seed)(
            settings(
                max_examples=self.examples,
                deadline=None,  # compiling takes its time
                database=None,
                verbosity=Verbosity.quiet,  # the error's note says what to type
                print_blob=False,
                report_multiple_bugs=False,  # one failure, with its note
                suppress_health_check=list(HealthCheck),
                phases=phases,
            )(given(self.strategy.filter(lambda s: s.dtypes() <= self.dtypes))(lambda sample: check(sample)))
        )()


@lru_cache(maxsize=4096)  # of all cases; an example is a few words, its arrays are made anew
def _drawn(drawing: _Drawing) -> list[Sample]:
    """The examples: drawing takes as long as many a check, and so do the programs that their shapes need.

    Every check of an op is put to the same ones, on every backend. That there are none is found last.
    """
    found: list[Sample] = []
    with suppress(Unsatisfiable):
        drawing.given_to(found.append, (Phase.generate,))
    return found


def _part(examples: int, share: float) -> int:
    return max(1, round(examples * share))


def _examine(
    check: Callable, op: Op, strategy: SearchStrategy[Sample], share: float,
    changed: Callable[[Sample], Sample] | None, backend: Backend, effort: Effort,
) -> None:  # fmt: skip
    """Put a check to the examples that hypothesis finds; the smallest one that fails is what the error tells of."""
    _check_offered(op, backend)
    drawing = _Drawing(strategy, backend.dtypes, zlib.crc32(op.name.encode()) + effort.seed, effort.examples)
    drawn = _drawn(drawing)[: _part(effort.examples, share)]
    if not drawn:
        raise Lacking(f"{backend.name} does not hold the dtypes that {op.name} needs")
    try:
        for sample in map(changed, drawn) if changed else drawn:
            check(op, backend, sample)
    except Lacking:
        raise
    except Exception as error:
        if share:
            if changed:
                drawing = drawing._replace(strategy=strategy.map(changed))
            _shrink(drawing, partial(check, op, backend), f"{op.name} on {backend.name}", sample, error)
        raise


def _shrink(drawing: _Drawing, check: Callable[[Sample], None], where: str, sample: Sample, first: Exception) -> None:
    """Raise the error of the smallest example that fails, or of sample; the first one, if it fails now and then."""
    try:
        drawing.given_to(check, (Phase.generate, Phase.shrink))
    except Flaky as error:
        first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
    else:
        check(sample)
    what = str(first) if isinstance(first, CheckFailure) else f"{type(first).__name__}: {first}"
    failure = CheckFailure(f"{where}: not the same every time; once: {what}")
    failure.__notes__ = [*getattr(first, "__notes__", ())]
    raise failure from first
