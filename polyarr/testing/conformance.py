"""The conformance kit as tests, one per case and backend:

    pytest --pyargs polyarr.testing.conformance --polyarr-backend=NAME [--polyarr-level core|autograd|nn|gpt] [-n auto]

`polyarr conformance NAME` is the same without pytest's other options. A backend's own tests have all of it by the line
`from polyarr.testing.conformance import *` in a file. See polyarr/testing/cases.py for what is tried.
"""

import traceback
from collections.abc import Callable

import pytest

from polyarr.core.backend import Backend
from polyarr.testing import backend_checks
from polyarr.testing.cases import Case, Effort, cases, effort_of
from polyarr.testing.checks import TO_SEE_IT_AGAIN
from polyarr.testing.compare import CheckFailure, Lacking, NotOffered

__all__ = ["copies_hold", "effort", "test_autograd", "test_core", "test_gpt", "test_nn", "untrusted"]

CASES = cases()
FRAMES = 4  # of the traceback of an error that is no verdict


@pytest.fixture(scope="session")
def effort(pytestconfig: pytest.Config) -> Effort:
    """How much to try, as the options say."""
    return effort_of(pytestconfig.getoption)


@pytest.fixture(scope="session")
def untrusted() -> dict[str, str]:
    """Backend -> why nothing that it gives can be believed, or nothing."""
    return {}


@pytest.fixture
def copies_hold(polyarr_backend: Backend, untrusted: dict[str, str], request: pytest.FixtureRequest) -> None:
    """Skip all but what tells of it, where arrays do not come back as they went: every case would fail for that."""
    case, name = request.node.callspec.params["case"], polyarr_backend.name
    if case.name not in ("backend-complete", "backend-copies"):
        if name not in untrusted:
            untrusted[name] = backend_checks.why_copies_fail(polyarr_backend)
        if untrusted[name]:
            pytest.skip(f"nothing else was tried, for copies fail: {untrusted[name]}")


def _each(level: str) -> Callable:
    each = pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if c.level == level])
    return lambda test: pytest.mark.usefixtures("copies_hold")(each(test))


@_each("core")
def test_core(case: Case, polyarr_backend: Backend, effort: Effort, request: pytest.FixtureRequest) -> None:
    """The primitives, and what the backend itself promises."""
    _hold(case, polyarr_backend, effort, request)


@_each("autograd")
def test_autograd(case: Case, polyarr_backend: Backend, effort: Effort, request: pytest.FixtureRequest) -> None:
    """The gradients of the primitives."""
    _hold(case, polyarr_backend, effort, request)


@_each("nn")
def test_nn(case: Case, polyarr_backend: Backend, effort: Effort, request: pytest.FixtureRequest) -> None:
    """Composed ops, and layers."""
    _hold(case, polyarr_backend, effort, request)


@_each("gpt")
def test_gpt(case: Case, polyarr_backend: Backend, effort: Effort, request: pytest.FixtureRequest) -> None:
    """The training of a small GPT."""
    _hold(case, polyarr_backend, effort, request)


def _hold(case: Case, backend: Backend, effort: Effort, request: pytest.FixtureRequest) -> None:
    """Run a case; its verdict is what the test says, without the frames of the kit."""
    found: Exception | None = None
    try:
        case.run(backend, effort)
    except Exception as error:
        found = error
    if isinstance(found, NotOffered):
        request.node.user_properties.append(("polyarr_outcome", "not offered"))
    if isinstance(found, Lacking):
        pytest.skip(str(found))
    if found:
        reason, where, snippet = _told(case, backend, found)
        # The fixture record_property does the same, and warns with pytest's own default for --junitxml.
        request.node.user_properties += [("polyarr_reason", reason), ("polyarr_snippet", snippet)]
        pytest.fail("\n".join(filter(None, (reason, where, snippet))), pytrace=False)


def _told(case: Case, backend: Backend, error: Exception) -> tuple[str, str, str]:
    """What failed; where, if a kernel raised something of its own; and what to type to see it again."""
    reason, where = str(error), ""
    if not isinstance(error, CheckFailure):
        reason = f"{case.subject} on {backend.name}: {type(error).__name__}: {error}"
        where = "".join(traceback.format_tb(error.__traceback__)[-FRAMES:]).rstrip()
    notes = getattr(error, "__notes__", [])
    return reason, where, next((note for note in notes if note.startswith(TO_SEE_IT_AGAIN)), "")
