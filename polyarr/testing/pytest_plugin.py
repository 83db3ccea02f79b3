"""The pytest plugin: a fixture that runs a test on several backends, and the options of the conformance kit.

    def test_loss(polyarr_backend): ...                         # runs once per backend that starts

    @pytest.mark.polyarr_backend("numpy", "opencl")             # runs on these, with or without the fixture
    def test_gradient(): ...

    def test_distance(xp, device): ...                          # runs once per namespace of --xp; see namespaces.py

During the test the backend is the current one. pytest loads this module wherever polyarr is installed, so it imports
only what polyarr always depends on.
"""

import tomllib
from collections.abc import Iterator
from typing import Any, TypeGuard

import pytest

from polyarr.core.backend import Backend
from polyarr.core.current import use_backend
from polyarr.core.errors import BackendError
from polyarr.files import read_regular
from polyarr.plugins.diagnosis import status
from polyarr.testing import LEVELS, USUAL_LEVEL, adapters, namespaces
from polyarr.testing.report import Recorder, load

FIXTURE = "polyarr_backend"
PROPERTY = "polyarr_"  # prefix of the properties of a case in reports


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare --polyarr-backend, --xp and the options of the conformance kit."""
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
        default=USUAL_LEVEL,
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
    group.addoption(
        "--xp",
        action="append",
        default=[],
        metavar="NAMESPACES",
        help="the array namespaces that the fixture xp runs a test with, separated by commas: polyarr:opencl, "
        "polyarr:opencl:1, numpy, array_api_strict or any other module",
    )
    group.addoption(
        "--xp-breaks",
        action="store_true",
        help="list where values or gradients of polyarr's arrays leave the namespace in the code that is tested",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, check the file of known failures, and register the fixture xp and what records results."""
    config.addinivalue_line("markers", f"{FIXTURE}(*names): run the test on each of these polyarr backends")
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist report to the first process
        _check_known_failures(config)
        config.pluginmanager.register(Recorder(config, _chosen(config)), "polyarr-recorder")
    if names := namespaces.names_of(config.option.xp):  # other plugins have fixtures of these names
        config.pluginmanager.register(namespaces.plugin_of(names), "polyarr-xp")
    if config.getoption("xp_breaks"):
        config.pluginmanager.register(namespaces.Breaks(), "polyarr-xp-breaks")


# ---- the fixture ---------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test over its backends: those of its marker, of --polyarr-backend, or all that are installed."""
    marker = metafunc.definition.get_closest_marker(FIXTURE)
    if marker and FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(FIXTURE)
    if FIXTURE in metafunc.fixturenames:
        names = marker.args if marker else _chosen(metafunc.config) or [row.name for row in status()]
        metafunc.parametrize(FIXTURE, [*dict.fromkeys(names)], indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the fixture to marked tests that do not take it; those that pytest parametrized keep their arguments."""
    names = getattr(item, "fixturenames", None)
    if names is not None and FIXTURE not in names and item.get_closest_marker(FIXTURE):
        names.insert(0, FIXTURE)


def _chosen(config: pytest.Config) -> list[str]:
    """Return the names given to --polyarr-backend."""
    return [name.strip() for name in (config.getoption("polyarr_backend") or "").split(",") if name.strip()]


@pytest.fixture
def polyarr_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Backend that is the current one for the duration of the test.

    A backend that --polyarr-backend names must start; any other that does not start is skipped. A name that no
    installed plugin registers is a failure, because the test would always be skipped.
    """
    try:
        backend = adapters.find(request.param)
    except BackendError as error:
        is_unknown = error.__cause__ is None  # a backend that is installed but fails to start has a cause
        if is_unknown or request.param in _chosen(request.config):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    with use_backend(backend):
        yield backend


# ---- the cases of the kit ------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect cases above the level, mark known failures as xfail, and attach each case's facts to its reports."""
    cases: dict[pytest.Function, Any] = {item: item.callspec.params["case"] for item in items if _is_case(item)}
    if not cases:
        return
    known = _known_failures(config)
    wanted = LEVELS[: LEVELS.index(config.getoption("polyarr_level")) + 1]
    none_of_it = [i for i, case in cases.items() if not adapters.applies(case.check, str(i.callspec.params[FIXTURE]))]
    left_out = {*none_of_it, *(item for item, case in cases.items() if case.level not in wanted)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items[:] = _by_case(items, cases)
    for item, case in cases.items():
        facts = {"backend": item.callspec.params[FIXTURE], "level": case.level, "check": case.check}
        facts["subject"] = case.subject
        item.user_properties += [(PROPERTY + key, value) for key, value in facts.items()]
        if case.name in known:
            item.add_marker(pytest.mark.xfail(reason=known[case.name], strict=True))


def _by_case(items: list[pytest.Item], cases: dict) -> list[pytest.Item]:
    """Order the cases by subject, each on all backends in turn, to share drawn examples and compiled kernels."""
    subjects = {subject: i for i, subject in enumerate(dict.fromkeys(case.subject for case in cases.values()))}
    order = {name: i for i, name in enumerate(dict.fromkeys(case.name for case in cases.values()))}

    def place(item: pytest.Item) -> tuple[int, int]:
        return subjects[cases[item].subject], order[cases[item].name]

    turns = iter(sorted((item for item in items if item in cases), key=place))
    return [next(turns) if item in cases else item for item in items]


def _is_case(item: pytest.Item) -> TypeGuard[pytest.Function]:
    """Return whether a test is one of the kit's cases, also if another file has imported it."""
    return getattr(getattr(item, "function", None), "__module__", "") == "polyarr.testing.conformance"


def _check_known_failures(config: pytest.Config) -> None:
    """Check the file of known failures before any test; not in workers, whose usage errors pytest-xdist mishandles.

    Raises:
        pytest.UsageError: The file is malformed, or names a case that does not exist.
    """
    known = _known_failures(config)
    if known:
        cases = load("polyarr.testing.cases", "--polyarr-known-failures").cases()
        unknown = sorted(known.keys() - {case.name for case in cases})
        if unknown:
            raise pytest.UsageError(f"known failures: there is no case {unknown[0]!r}")


def _known_failures(config: pytest.Config) -> dict[str, str]:
    """Return the reasons by case name from the file of known failures; empty without the option.

    Raises:
        pytest.UsageError: The file cannot be read, or is not a table of reasons.
    """
    name = config.getoption("polyarr_known_failures")
    if not name:
        return {}
    try:
        tables: Any = tomllib.loads(read_regular(name, 2**20).decode())
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"known failures: {name}: {error}") from error
    found = tables.get("failures", {})
    if (
        tables.keys() - {"failures"}
        or not isinstance(found, dict)
        or not all(isinstance(reason, str) and reason for reason in found.values())
    ):
        raise pytest.UsageError(f'known failures: {name}: [failures] must hold lines like "forward-exp" = "reason"')
    return found
