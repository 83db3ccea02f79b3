"""The fixtures xp and device, and --xp-breaks, in a project of its own."""

import pytest

pytest_plugins = ["pytester"]

LIBRARY = """
import numpy as np

def middle(v):
    return np.median(v)
"""
TESTS = """
import numpy as np
import polyarr as pa
from library import middle

def test_middle(xp, device):
    v = xp.asarray([1.0, 2.0], device=device)
    assert float(middle(v)) == 1.5 and np.asarray(v)[0] == 1
    if xp is pa:
        assert v.device == pa.get_backend().name == device
"""


@pytest.fixture
def project(pytester):
    """Run the tests of a project that has a library, without the settings of this one."""
    pytester.makepyfile(library=LIBRARY, test_middle=TESTS)
    pytester.syspathinsert()
    return lambda *options: pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)


def test_each_namespace_runs_a_test_and_breaks_are_listed(project):
    done = project("--xp", "polyarr:numpy, numpy", "--xp", "array_api_strict,numpy", "--xp-breaks", "-v")
    done.assert_outcomes(passed=3)
    names = ("polyarr:numpy", "numpy", "array_api_strict")
    done.stdout.fnmatch_lines([f"*test_middle?{name}? PASSED*" for name in names])
    rows = [line.split() for line in done.outlines]
    (head,) = (i for i, row in enumerate(rows) if row[:2] == ["tests", "times"])
    assert rows[head + 1] == ["1", "1", "library.py:4", "middle", "np.median()", "values"]
    assert rows[head + 2][0].startswith("===")


def test_polyarr_is_that_on_the_default_backend(project):
    done = project("--xp", "polyarr", "-v")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*test_middle?polyarr? PASSED*"])
    done.stdout.no_fnmatch_line("*graph breaks*")


def test_without_the_option_there_are_no_fixtures(project):
    """Plugins of others have fixtures of these names."""
    done = project()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["E *fixture 'xp' not found"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("polyarr:", "no backend called ''; installed: *"),
        ("polyarr:toy", "no backend called 'toy'; installed: *"),
        ("numpy:0", "only polyarr has backends; write numpy"),
        ("no_such_module", "No module named 'no_such_module'"),
    ],
)
def test_a_wrong_namespace_is_an_error_of_one_line(project, name, message):
    done = project("--xp", name)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([f"--xp {name}: {message}"])
    done.stdout.no_fnmatch_line("*During handling*")


def test_a_fixture_of_the_project_overrides_and_may_take_ours(project, pytester):
    pytester.makeconftest(
        "import pytest, types\n@pytest.fixture\ndef xp(xp):\n    return types.SimpleNamespace(asarray=xp.asarray)\n"
        "@pytest.fixture\ndef device():\n    return None\n"
    )
    project("--xp", "polyarr:numpy,numpy").assert_outcomes(passed=2)


def test_breaks_come_from_other_processes(project, request):
    if not request.config.getoption("polyarr_thorough"):
        pytest.skip("starts two processes: with --polyarr-thorough")
    pytest.importorskip("xdist")
    done = project("--xp", "polyarr:numpy,polyarr", "--xp-breaks", "-n", "2")
    done.stdout.fnmatch_lines(["    2      2  library.py:4  *"])
