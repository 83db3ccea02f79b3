"""The conformance kit as pytest tests, one per case and backend:

    pytest --pyargs polyarr.testing.conformance --polyarr-backend=NAME [--polyarr-level LEVEL] [-n auto]

`polyarr conformance NAME` runs the same cases in a pytest of its own. A backend's test suite includes all of them with
the line `from polyarr.testing.conformance import *`. polyarr/testing/cases.py defines the cases.
"""

import contextlib
import json
import traceback
from collections.abc import Callable

import pytest

from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.op import Op
from polyarr.testing import backend_checks, covered
from polyarr.testing.cases import Case, Effort, cases, effort_of, first_example
from polyarr.testing.checks import TO_REPRODUCE, gradients_of, recording_calls
from polyarr.testing.compare import CheckFailure, Lacking, NotOffered
from polyarr.testing.samples import SAMPLES

__all__ = [
    "copies_hold",
    "effort",
    "test_autograd",
    "test_core",
    "test_endurance",
    "test_gpt",
    "test_huge",
    "test_nn",
    "untrusted",
]

CASES = cases()
FRAMES = 4  # of the traceback shown for an error that is not a CheckFailure


@pytest.fixture(scope="session")
def effort(pytestconfig: pytest.Config) -> Effort:
    """Number of examples and seed, from pytest's options."""
    return effort_of(pytestconfig.getoption)


@pytest.fixture(scope="session")
def untrusted() -> dict[str, str]:
    """Reasons, by backend, why copies fail; "" for a backend whose copies work."""
    return {}


@pytest.fixture
def copies_hold(polyarr_backend: Backend, untrusted: dict[str, str], request: pytest.FixtureRequest) -> None:
    """Skip all cases but the two that report it if arrays do not survive a round trip: all would fail for it."""
    case, name = request.node.callspec.params["case"], polyarr_backend.name
    if case.name not in ("backend-complete", "backend-copies"):
        if name not in untrusted:
            untrusted[name] = backend_checks.why_copies_fail(polyarr_backend)
        if untrusted[name]:
            pytest.skip(f"nothing else was tried, for copies fail: {untrusted[name]}")


def _test(level: str, doc: str) -> Callable:
    """Return the pytest test of a level, with one parameter per case."""

    @pytest.mark.usefixtures("copies_hold")
    @pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.level == level])
    def test(case: Case, polyarr_backend: Backend, effort: Effort, request: pytest.FixtureRequest) -> None:
        _run_case(case, polyarr_backend, effort, request)

    test.__doc__ = doc
    return test


test_core = _test("core", "Check the primitives and the functions of the backend itself.")
test_autograd = _test("autograd", "Check the gradients of the primitives.")
test_nn = _test("nn", "Check composed ops and layers.")
test_gpt = _test("gpt", "Check training and generation with a small GPT.")
test_huge = _test("huge", "Check calls beyond every size at which kernels change, and large ones in other dtypes.")
test_endurance = _test("endurance", "Check many calls and many threads.")


def _run_case(case: Case, backend: Backend, effort: Effort, request: pytest.FixtureRequest) -> None:
    """Run a case and report its outcome through pytest, without the frames of the kit in the traceback."""
    found: Exception | None = None
    with covered.recording() as extents:
        try:
            case.run(backend, effort)
        except Exception as error:
            found = error
    facts = request.node.user_properties
    if found is None:
        facts.append(("polyarr_covered", json.dumps(extents)))
        if why := _unchecked(case, backend):
            facts += [("polyarr_outcome", "partly"), ("polyarr_reason", why)]
    if isinstance(found, NotOffered):
        facts.append(("polyarr_outcome", "not offered"))
    if isinstance(found, Lacking):
        pytest.skip(str(found))
    if found:
        reason, where, snippet = _described(case, backend, found)
        # The fixture record_property does the same, and warns with pytest's own default for --junitxml.
        facts += [("polyarr_reason", reason), ("polyarr_snippet", snippet)]
        facts.append(("polyarr_uses", " ".join(sorted(op.name for op in _uses(case, backend)))))
        pytest.fail("\n".join(filter(None, (reason, where, snippet))), pytrace=False)


def _unchecked(case: Case, backend: Backend) -> str:
    """Return what a case that passed could not check because the backend does not report it; "" if nothing."""
    if case.check == "bounds" and backend.guarded is None:
        return f"{backend.name} reports no writes out of bounds: only memory next to inputs was checked"
    if case.check == "memory" and not backend.memory():
        return f"{backend.name} does not report its memory: only buffers were watched"
    return ""


OUT_OF_PROCESS = ("program-cache", "first-calls", "calls")  # checks that run in other processes, or for minutes
WITH_OTHERS = ("backend", "layer", "captured", "batched")  # checks that call ops beside the one that they are about


def _uses(case: Case, backend: Backend) -> set[Op]:
    """Return the ops whose kernels a case calls, judged by one example."""
    called: set[Op] = set()
    recording = recording_calls(backend, called)
    with contextlib.suppress(Exception):
        if case.check in WITH_OTHERS:
            if case.subject not in OUT_OF_PROCESS:
                case.run(recording, Effort(1))
        else:
            op = next(op for op in SAMPLES if op.name == case.subject)
            if (sample := first_example(op, backend)) is None:
                return called
            with use_backend(recording):
                args = sample.arrays(recording)
                op(*args, **sample.params)
                gradients_of(op, args, sample)
    return called


def _described(case: Case, backend: Backend, error: Exception) -> tuple[str, str, str]:
    """Return the reason of a failure, the last frames if a kernel raised, and the code that repeats the case."""
    reason, where = str(error), ""
    if not isinstance(error, CheckFailure):
        reason = f"{case.subject} on {backend.name}: {type(error).__name__}: {error}"
        where = "".join(traceback.format_tb(error.__traceback__)[-FRAMES:]).rstrip()
    notes = getattr(error, "__notes__", [])
    return reason, where, next((note for note in notes if note.startswith(TO_REPRODUCE)), "")
