"""The cases of the conformance kit: one check of one op, or of the backend itself, derived from the list of ops.

A case belongs to a level, and each level includes those before it:

    core      the primitives: values, dtypes, layouts, side effects; copies, random bits, threads, the program cache
    autograd  the gradients of the primitives, to the second order
    nn        every other op, its gradients and its Fused kernels; layers
    gpt       a small GPT trains to NumPy's losses, and generates NumPy's tokens
    huge      calls beyond every size at which kernels change, and large calls in other dtypes and with other values
    endurance many calls and many threads; takes minutes and runs only on request

A case raises Lacking (a skip) if the backend declares that it lacks a dtype, Fused kernels or a memory report, and
NotOffered if it lacks a whole group of ops.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from polyarr import ops, tree
from polyarr.core.backend import Backend
from polyarr.core.groups import NOT_OFFERED, offer
from polyarr.core.op import Op
from polyarr.core.spec import COMPLEX, INEXACT, as_dtype
from polyarr.testing import (
    adapters,
    backend_checks,
    batching,
    capturing,
    checks,
    contract,
    cotangents,
    endurance,
    extremes,
    held,
    matrices,
    programs,
    state,
    tape,
)
from polyarr.testing.compare import CheckFailure, Lacking, NotOffered
from polyarr.testing.report import LEVELS
from polyarr.testing.samples import SAMPLES, Entry, elementwise, is_promised, is_swept, takes_numbers
from polyarr.testing.strategies import Data, Sample

FAST, THOROUGH = 12, 200  # most examples per case


class Effort(NamedTuple):
    """Effort of a run: the largest number of examples per case, and the seed that they are drawn from."""

    examples: int = FAST
    seed: int = 0


def effort_of(option: Callable[[str], Any]) -> Effort:
    """Return the effort that options ask for; `option` returns the value of an option by its name.

    The first example of a case is the simplest one, and its shape is common to most cases. A backend that compiles a
    program for every shape therefore compiles few of them if each case tries only one example.
    """
    few, thorough = option("polyarr_few_shapes"), option("polyarr_thorough")
    return Effort(1 if few else THOROUGH if thorough else FAST, option("polyarr_seed"))


class Case(NamedTuple):
    """One requirement that a backend must meet.

    Attributes:
        level: First level that includes the case.
        check: Name of the check; a column of the report's table.
        subject: Name of the op, or the subject of a check of the backend itself.
        run: Runs the case. Raises CheckFailure if the backend is wrong, Lacking if it declares that it lacks what the
            case needs.
    """

    level: str
    check: str
    subject: str
    run: Callable[[Backend, Effort], None]

    @property
    def name(self) -> str:
        """Name of the case in test ids, in files of known failures and in the report."""
        return f"{self.check}-{self.subject}"


class Kind(NamedTuple):
    """A kind of case that exists for every op.

    Attributes:
        check: A function of polyarr.testing.checks or of one of its neighbors.
        draws: Returns the strategy for calls of an op in one dtype; None if this kind does not apply to the op.
        share: Fraction of the examples that the check tries; 0: only the simplest one, from which the check
            derives its own.
        gradients: Whether the cases of primitives belong to the level "autograd".
        changed: Maps an op's entry and a drawn call to the call that the check gets.
        level: The level, if it does not follow from the op.
        is_alone: Whether no other kind draws from the same strategy, so that only the examples it tries are drawn.
    """

    check: Callable
    draws: Callable[[Op, Entry, str], SearchStrategy[Sample] | None]
    share: float = 1.0
    gradients: bool = False
    changed: Callable[[Entry, Sample], Sample] | None = None
    level: str = ""
    is_alone: bool = False


@cache
def _any(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample]:
    found = entry.cases(dtype)
    return found.map(_without_special) if as_dtype(dtype) in COMPLEX else found


@cache
def _smooth(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    return entry.smooth(dtype) if entry.smooth and as_dtype(dtype) in INEXACT else None


def _without_special(sample: Sample) -> Sample:
    """Return the call with ordinary numbers: what complex functions give for infinities differs between libraries."""
    for values in ("mixed", "special", "nonfinite"):
        sample = sample.with_values("normal", only=values)
    return sample


def _either(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample]:
    smooth = _smooth(op, entry, dtype)
    return _any(op, entry, dtype) if smooth is None else smooth


def _various(entry: Entry, sample: Sample) -> Sample:
    """Return the call with ordinary numbers: the next call has others, and no nan hides an error."""
    return sample.with_values("normal", only="distinct").with_values("normal", only="mixed")


def _if(applies: Callable[[Op, Entry], Any]) -> Callable[[Op, Entry, str], SearchStrategy[Sample] | None]:
    """Return the strategy for any calls of the ops to which a kind applies."""
    return lambda op, entry, dtype: _any(op, entry, dtype) if applies(op, entry) else None


def _with_special(entry: Entry, sample: Sample) -> Sample:
    return sample.with_values(entry.special)


def _composed(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    return _smooth(op, entry, dtype) if op.decomposition else None


def _beside_others(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    """Return the strategy for elementwise ops that have special values."""
    has_special = dtype != "bool" and op is not ops.astype  # whose conversion of huge numbers is undefined
    return _either(op, entry, dtype) if op in elementwise.SAMPLES and has_special else None


def _array_inputs(op: Op) -> int:
    """Return the number of inputs that are interchangeable arrays."""
    return len({*op.inputs} - {"key", "counter", "like", "rtol", "start", "starts", "step"}) - len(op.indices)


def _twins(op: Op, entry: Entry, dtype: str) -> SearchStrategy[Sample] | None:
    """Return the strategy for calls in which two inputs have the same shape and dtype, if the op has such calls."""
    if op in (ops.bitwise_left_shift, ops.bitwise_right_shift):  # most numbers cannot be shifted by themselves
        return None
    if op is ops.cross_entropy_and_gradient:  # a number and a matrix
        return None
    if op is ops.quantized_grouped_linear:  # codes, scales and numbers of groups are no inputs like x
        return None
    found = _either(op, entry, dtype).filter(lambda sample: any(True for _ in sample.with_twins()))
    return found if _array_inputs(op) > 1 or op.inputs == ("arrays",) else None


KINDS = {
    "forward": Kind(checks.check_forward, _any),
    "special": Kind(checks.check_forward, _if(lambda op, entry: entry.special), 1 / 2, changed=_with_special),
    "alone": Kind(checks.check_alone, _beside_others, 0),
    "layout": Kind(checks.check_layout, _any, 1 / 6),
    "large": Kind(checks.check_large, _either, 0),
    "sweep": Kind(extremes.check_sweep, _if(lambda op, entry: is_swept(op)), 0),
    "promised": Kind(extremes.check_promised, _if(lambda op, entry: is_promised(op)), 0),
    "numbers": Kind(checks.check_numbers, _if(takes_numbers), 0),
    "held": Kind(held.check_held, _if(lambda op, entry: op.numbers), 0),
    "indices": Kind(checks.check_indices, _if(lambda op, entry: op.indices), 0),
    "matrices": Kind(matrices.check_defined, _if(lambda op, entry: op in matrices.REFUSED), 0),
    "refused": Kind(matrices.check_refused, _if(lambda op, entry: op in matrices.REFUSED), 0),
    "alias": Kind(checks.check_alias, _twins, 1 / 6, is_alone=True),
    "bounds": Kind(checks.check_bounds, _either, 1 / 6),
    "purity": Kind(checks.check_purity, _either, 1 / 3),
    "determinism": Kind(checks.check_determinism, _either, 1 / 3),
    "captured": Kind(capturing.check_captured, _either, 0, changed=_various),
    "batched": Kind(batching.check_batched, _either, 0, changed=_various),
    "lasting": Kind(state.check_lasting, _either, 0, changed=_various),
    "caches": Kind(state.check_caches, _either, 0, changed=_various),
    "threads": Kind(state.check_threads, _either, 0, changed=_various),
    "transfers": Kind(checks.check_no_transfers, _either, 1 / 3),
    "memory": Kind(checks.check_memory, _either, 1 / 6),
    "backward": Kind(checks.check_backward, _smooth, gradients=True),
    "second-order": Kind(checks.check_second_order_agrees, _smooth, 1 / 3, gradients=True),
    "cotangents": Kind(cotangents.check_cotangents, _smooth, 0, gradients=True),
    "fused": Kind(checks.check_fused, _composed, gradients=True),
    "wanted": Kind(tape.check_wanted, _composed, 1 / 6, gradients=True),
    "tape": Kind(tape.check_tape, _smooth, 0, gradients=True),
    "huge": Kind(extremes.check_huge, _either, 0, level="huge"),
    "crossed": Kind(extremes.check_crossed, _either, 0, level="huge"),
    "endurance": Kind(endurance.check_endurance, _either, 0, changed=_various, level="endurance"),
    "concurrent": Kind(endurance.check_concurrent, _either, 0, changed=_various, level="endurance"),
}
def check_first_calls(backend: Backend, examples: int) -> None:
    """Check that in a new process an op's first call gives the same bits even if four threads make it at once."""
    endurance.first_calls(backend, first_examples(backend))


BACKEND_CHECKS = {
    "complete": ("core", backend_checks.check_complete),
    "copies": ("core", backend_checks.check_copies),
    "hosts": ("core", backend_checks.check_hosts),
    "synchronize": ("core", backend_checks.check_synchronize),
    "random-bits": ("core", backend_checks.check_random_bits),
    "bad-indices": ("core", backend_checks.check_bad_indices),
    "threads": ("core", backend_checks.check_threads),
    "overlaps": ("core", state.check_overlaps),
    "program-cache": ("core", backend_checks.check_program_cache),
    "joined": ("core", capturing.check_joined),
    "captures": ("core", programs.check_captures),
    "runs": ("core", programs.check_runs),
    **contract.CHECKS,
    "precisions": ("nn", backend_checks.check_precisions),
    "transforms": ("autograd", backend_checks.check_transforms),
    "training": ("gpt", backend_checks.check_training),
    "generation": ("gpt", backend_checks.check_generation),
    "large-copies": ("huge", backend_checks.check_large_copies),
    "large-precisions": ("huge", backend_checks.check_large_precisions),
    "calls": ("endurance", endurance.check_calls),
    "first-calls": ("endurance", check_first_calls),
}
OTHER_DTYPES = 1 / 6  # fraction of the examples for each dtype other than the usual one


@cache
def cases(level: str = LEVELS[-1]) -> tuple[Case, ...]:
    """Return the cases of a level and of those before it, in the order of the levels."""
    wanted = LEVELS[: LEVELS.index(level) + 1]
    found = [case for case in (*_of_the_backend(), *_of_ops(), *_of_dtypes()) if case.level in wanted]
    return tuple(sorted(found, key=lambda case: LEVELS.index(case.level)))


def columns() -> list[str]:
    """Return the names of the checks of ops: the columns of the report's table."""
    dtypes = [d for entry in SAMPLES.values() for d in entry.dtypes]
    return [*KINDS, *dict.fromkeys(dtypes)]


def _of_ops() -> Iterator[Case]:
    for name, kind in KINDS.items():
        for op, entry in SAMPLES.items():
            strategy = kind.draws(op, entry, entry.usual)
            if strategy is not None:
                level = kind.level or ("nn" if op.decomposition else "autograd" if kind.gradients else "core")
                changed = partial(kind.changed, entry) if kind.changed else None
                run = partial(_examine, kind.check, op, strategy, kind.share, changed, is_alone=kind.is_alone)
                yield Case(level, name, op.name, run)


def _of_dtypes() -> Iterator[Case]:
    for op, entry in SAMPLES.items():
        for dtype in entry.dtypes:
            if dtype != entry.usual:
                yield Case("nn" if op.decomposition else "core", dtype, op.name, partial(_run_dtype, op, entry, dtype))


def _run_dtype(op: Op, entry: Entry, dtype: str, backend: Backend, effort: Effort) -> None:
    """Check the values in one dtype and, for floating-point dtypes, the gradients."""
    _check_offered(op, backend)
    if as_dtype(dtype) not in backend.dtypes:
        raise Lacking(f"{backend.name} holds no {dtype}")
    few = effort._replace(examples=_part(effort.examples, OTHER_DTYPES))
    _examine(checks.check_forward, op, _any(op, entry, dtype), 1, None, backend, few)
    smooth = _smooth(op, entry, dtype)
    if smooth is not None:
        _examine(checks.check_backward, op, smooth, 1, None, backend, few)


def _check_offered(op: Op, backend: Backend) -> None:
    """Raise NotOffered if the backend lacks the op's whole group, Lacking if it is an adapter without the op."""
    if adapters.is_adapter(backend.name) and op not in backend.kernels:
        raise Lacking(f"{backend.name} has no function for {op.name}")
    if op.group and op not in backend.kernels and offer(backend, op.group) == NOT_OFFERED:
        raise NotOffered(f"{backend.name} does not offer the group {op.group}")


def _of_the_backend() -> Iterator[Case]:
    for subject, (level, check) in BACKEND_CHECKS.items():
        yield Case(level, "backend", subject, partial(_run_of_backend, check))
    for layer in backend_checks.LAYERS:
        yield Case("nn", "layer", layer, partial(_run_layer, layer))


def first_examples(backend: Backend) -> dict[Op, Sample]:
    """Return the simplest call of every op that the backend can run."""
    offered = [op for op in SAMPLES if not op.group or op in backend.kernels or offer(backend, op.group) != NOT_OFFERED]
    found = {op: first_example(op, backend) for op in offered}
    return {op: sample for op, sample in found.items() if sample is not None}


def first_example(op: Op, backend: Backend) -> Sample | None:
    """Return the simplest call of an op in dtypes that the backend holds, or None if there is no such call."""
    entry = SAMPLES[op]
    drawn = _drawn(_Drawing(op, _either(op, entry, entry.usual), backend.dtypes, zlib.crc32(op.name.encode()), FAST))
    return _various(entry, drawn[0]) if drawn else None


def _run_of_backend(check: Callable[[Backend, int], None], backend: Backend, effort: Effort) -> None:
    with _with_note(check, f"get_backend({backend.name!r}), {effort.examples}"):
        check(backend, effort.examples)


def _run_layer(layer: str, backend: Backend, effort: Effort) -> None:
    with _with_note(backend_checks.check_layer, f"{layer!r}, get_backend({backend.name!r})"):
        backend_checks.check_layer(layer, backend)


@contextmanager
def _with_note(check: Callable, arguments: str) -> Iterator[None]:
    """Add a note to any exception: the Python code that repeats the check."""
    try:
        yield
    except Exception as error:
        home = check.__module__.rpartition(".")[2]
        error.add_note(
            f"{checks.TO_REPRODUCE}:\n    from polyarr import get_backend\n    from polyarr.testing import {home}\n"
            f"    {home}.{check.__name__}({arguments})"
        )
        raise


class _Drawing(NamedTuple):
    """The examples that hypothesis draws: calls of an op, of a strategy, that use only a backend's dtypes."""

    op: Op
    strategy: SearchStrategy[Sample]
    dtypes: frozenset
    seed: int
    examples: int

    def apply(self, check: Callable[[Sample], Any], phases: tuple[Phase, ...]) -> None:
        """Run a check on the examples."""

        def run(sample: Sample) -> None:
            check(sample)

        return seeded(self.seed)(
            settings(
                max_examples=self.examples,
                deadline=None,  # compiling takes long
                database=None,
                verbosity=Verbosity.quiet,  # the exception's note has the code that repeats the check
                print_blob=False,
                report_multiple_bugs=False,  # one failure, with its note
                suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]  # its own __iter__
                phases=phases,
            )(given(self.strategy.filter(lambda s: s.is_held(self.op, self.dtypes)))(run))
        )()


@lru_cache(maxsize=4096)  # enough for all cases; a Sample is small, its arrays are created on use
def _drawn(drawing: _Drawing) -> list[Sample]:
    """Return the examples, which are cached because drawing them takes as long as many a check.

    Every check of an op gets the same examples on every backend, so that compiled programs are shared. The simplest
    comes first, then one with the most axes: a check that tries two examples sees more than rows. An empty list means
    that hypothesis found no example.
    """
    found: list[Sample] = []
    with suppress(Unsatisfiable):
        drawing.apply(found.append, (Phase.generate,))
    second = max(found[1:], key=_axes, default=None)
    return found if second is None else [found[0], second, *(a for a in found[1:] if a is not second)]


def _axes(sample: Sample) -> int:
    """Return the largest number of axes of an array input."""
    return max((len(d.shape) for d in tree.leaves(sample.inputs) if isinstance(d, Data)), default=0)


def _part(examples: int, share: float) -> int:
    return max(1, round(examples * share))


def _examine(
    check: Callable, op: Op, strategy: SearchStrategy[Sample], share: float,
    changed: Callable[[Sample], Sample] | None, backend: Backend, effort: Effort, is_alone: bool = False,
) -> None:  # fmt: skip
    """Run a check on the drawn examples; report the smallest failing example that hypothesis finds."""
    _check_offered(op, backend)
    tried = _part(effort.examples, share)
    examples = tried if is_alone else effort.examples
    drawing = _Drawing(op, strategy, backend.dtypes, zlib.crc32(op.name.encode()) + effort.seed, examples)
    drawn = _drawn(drawing)[:tried]
    if not drawn:
        raise Lacking(f"{backend.name} does not hold the dtypes that {op.name} needs")
    has_calls, sample = False, drawn[0]
    try:
        for sample in map(changed, drawn) if changed else drawn:
            has_calls |= _is_tried(check, op, backend, sample)
        if not has_calls:
            raise Lacking(f"{backend.name} has no counterpart of the calls of {op.name}")
    except Lacking:
        raise
    except Exception as error:
        if share:
            if changed:
                drawing = drawing._replace(strategy=strategy.map(changed))
            _shrink(drawing, partial(_is_tried, check, op, backend), f"{op.name} on {backend.name}", sample, error)
        raise


def _is_tried(check: Callable, op: Op, backend: Backend, sample: Sample) -> bool:
    """Run a check; return False for a call that an adapter leaves out."""
    try:
        check(op, backend, sample)
    except adapters.Absent:
        return False
    return True


def _shrink(drawing: _Drawing, check: Callable[[Sample], Any], where: str, sample: Sample, first: Exception) -> None:
    """Raise the error of the smallest failing example, or of `sample`; the first error if it is not deterministic."""
    try:
        drawing.apply(check, (Phase.generate, Phase.shrink))
    except Flaky as error:
        first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
    else:
        check(sample)
    what = str(first) if isinstance(first, CheckFailure) else f"{type(first).__name__}: {first}"
    failure = CheckFailure(f"{where}: not the same every time; once: {what}")
    failure.__notes__ = [*getattr(first, "__notes__", ())]
    raise failure from first
