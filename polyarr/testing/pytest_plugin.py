"""What polyarr adds to pytest: a fixture that runs a test on every backend, and the options of the conformance kit.

    def test_loss(polyarr_backend): ...                         # once per backend that starts, as the current one

    @pytest.mark.polyarr_backend("numpy", "opencl")             # on these, fixture or not; unknown names are errors
    def test_gradient(): ...

pytest loads this wherever polyarr is installed, so it imports nothing that is not always there.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polyarr.core.backend import Backend
from polyarr.core.current import get_backend, use_backend
from polyarr.core.errors import BackendError
from polyarr.diagnosis import status
from polyarr.testing import LEVELS
from polyarr.testing.report import Recorder, load

FIXTURE = "polyarr_backend"
PROPERTY = "polyarr_"  # begins the names of a case's properties in reports


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare --polyarr-backend and the options of the conformance kit."""
    group = parser.getgroup("polyarr", "polyarr")
    group.addoption(
        "--polyarr-backend",
        metavar="NAMES",
        help="the backends that the fixture polyarr_backend runs a test on, separated by commas; every one must "
        "start (by default: all that start)",
    )
    group.addoption(
        "--polyarr-level",
        choices=LEVELS,
        default=LEVELS[-1],
        help="conformance: how far to go; each level contains those before it (default: %(default)s)",
    )
    group.addoption("--polyarr-seed", type=int, default=0, metavar="N", help="conformance: draw other examples")
    group.addoption("--polyarr-thorough", action="store_true", help="conformance: draw many more examples")
    group.addoption(
        "--polyarr-few-shapes",
        action="store_true",
        help="conformance: one example for a case, most of one shape, for a backend that compiles for every shape",
    )
    group.addoption(
        "--polyarr-known-failures",
        metavar="FILE",
        help="conformance: a TOML file of what is known to fail: a table `failures` from a case's name to the reason",
    )
    group.addoption("--polyarr-report", metavar="FILE", help="conformance: write the results as JSON")
    group.addoption("--polyarr-html", metavar="FILE", help="conformance: write the results as a page")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and record what the kit finds."""
    config.addinivalue_line("markers", f"{FIXTURE}(*names): run the test on each of these polyarr backends")
    if not hasattr(config, "workerinput"):  # not in a worker of pytest-xdist: they report to the first process
        _check_known_failures(config)
        config.pluginmanager.register(Recorder(config, _chosen(config)), "polyarr-recorder")


# ---- the fixture ---------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per backend."""
    marker = metafunc.definition.get_closest_marker(FIXTURE)
    if marker and FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(FIXTURE)
    if FIXTURE in metafunc.fixturenames:
        names = marker.args if marker else _chosen(metafunc.config) or [row.name for row in status()]
        metafunc.parametrize(FIXTURE, [*dict.fromkeys(names)], indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A marked test has the fixture, whether it takes it or not; of those parametrized, pytest kept the arguments."""
    names = getattr(item, "fixturenames", None)
    if names is not None and FIXTURE not in names and item.get_closest_marker(FIXTURE):
        names.insert(0, FIXTURE)


def _chosen(config: pytest.Config) -> list[str]:
    return [name.strip() for name in (config.getoption("polyarr_backend") or "").split(",") if name.strip()]


@pytest.fixture
def polyarr_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend, which is the current one for the length of the test.

    One that --polyarr-backend names must start; of the others, those that do not are skipped. A name that no installed
    plugin knows is an error: it would be skipped for ever.
    """
    try:
        backend = get_backend(request.param)
    except BackendError as error:
        is_unknown = error.__cause__ is None  # what is installed and does not work comes with the reason
        if is_unknown or request.param in _chosen(request.config):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    with use_backend(backend):
        yield backend


# ---- the cases of the kit ------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the levels that are not asked for, mark what is known to fail, and say in reports what a case is."""
    cases = {item: item.callspec.params["case"] for item in items if _is_case(item)}
    if not cases:
        return
    known = _known_failures(config)
    wanted = LEVELS[: LEVELS.index(config.getoption("polyarr_level")) + 1]
    left_out = [item for item, case in cases.items() if case.level not in wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if cases.get(item) is None or cases[item].level in wanted]
    items[:] = _by_case(items, cases)
    for item, case in cases.items():
        facts = {"backend": item.callspec.params[FIXTURE], "level": case.level, "check": case.check}
        facts["subject"] = case.subject
        item.user_properties += [(PROPERTY + key, value) for key, value in facts.items()]
        if case.name in known:
            item.add_marker(pytest.mark.xfail(reason=known[case.name], strict=True))


def _by_case(items: list[pytest.Item], cases: dict) -> list[pytest.Item]:
    """The cases by what they are of, each on all backends: what is drawn and compiled for one serves them all."""
    subjects = {subject: i for i, subject in enumerate(dict.fromkeys(case.subject for case in cases.values()))}
    order = {name: i for i, name in enumerate(dict.fromkeys(case.name for case in cases.values()))}

    def place(item: pytest.Item) -> tuple[int, int]:
        return subjects[cases[item].subject], order[cases[item].name]

    turns = iter(sorted((item for item in items if item in cases), key=place))
    return [next(turns) if item in cases else item for item in items]


def _is_case(item: pytest.Item) -> bool:
    """True for the kit's own tests, also where another file has imported them."""
    return getattr(getattr(item, "function", None), "__module__", "") == "polyarr.testing.conformance"


def _check_known_failures(config: pytest.Config) -> None:
    """Before any test, and not in workers, whose errors of usage pytest-xdist does not understand.

    Errors:  pytest.UsageError if the file is malformed, or names a case that there is not
    """
    known = _known_failures(config)
    if known:
        cases = load("polyarr.testing.cases", "--polyarr-known-failures").cases()
        unknown = sorted(known.keys() - {case.name for case in cases})
        if unknown:
            raise pytest.UsageError(f"known failures: there is no case {unknown[0]!r}")


def _known_failures(config: pytest.Config) -> dict[str, str]:
    """Case -> why it fails.

    Errors:  pytest.UsageError if the file cannot be read, or is not a table of reasons
    """
    name = config.getoption("polyarr_known_failures")
    if not name:
        return {}
    try:
        tables: Any = tomllib.loads(Path(name).read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise pytest.UsageError(f"known failures: {name}: {error}") from error
    found = tables.get("failures", {})
    if (
        tables.keys() - {"failures"}
        or not isinstance(found, dict)
        or not all(isinstance(reason, str) and reason for reason in found.values())
    ):
        raise pytest.UsageError(f'known failures: {name}: [failures] must hold lines like "forward-exp" = "reason"')
    return found
