"""The conformance kit on backends with a planted fault: a case must catch it, with a message that locates it.

The faults are in tests/testing/negative_controls; each is planted in a copy of a backend that passes the same case.
"""

import functools
import textwrap
import types
from unittest.mock import patch

import pytest

from polyarr.core.current import get_backend
from polyarr.core.errors import BackendError
from polyarr.testing import cases as kit
from polyarr.testing import checks, conformance, contract
from polyarr.testing.cases import BACKEND_CHECKS, KINDS, Effort, cases, columns
from polyarr.testing.checks import TO_REPRODUCE
from polyarr.testing.compare import CheckFailure
from tests.testing.negative_controls import (  # they fill the table
    aliases,  # noqa: F401
    combinations,  # noqa: F401
    convolutions,  # noqa: F401
    cotangents,  # noqa: F401
    endurance,  # noqa: F401
    extremes,  # noqa: F401
    fields,
    fused_kernels,
    gradients,  # noqa: F401
    indices,  # noqa: F401
    matrices,  # noqa: F401
    moving,  # noqa: F401
    norms,  # noqa: F401
    on_opencl,  # noqa: F401
    precisions,
    programs,  # noqa: F401
    side_effects,  # noqa: F401
    sizes,  # noqa: F401
    state,  # noqa: F401
    unusual_calls,  # noqa: F401
    values,  # noqa: F401
    whole_numbers,  # noqa: F401
)
from tests.testing.negative_controls.table import FAULTS, with_kernels

pytestmark = pytest.mark.imports_only

CASES = {case.name: case for case in cases()}
NAMES = {op.name for op in fused_kernels.FUSED}
OF_PAIRS = [c.name for c in CASES.values() if c.subject in NAMES and c.level not in ("huge", "endurance")]


@functools.cache
def good(name):
    """Return a backend without faults."""
    if name == "opencl":
        return get_backend(name)
    if name == "telling":
        return precisions.telling(checks.reference())
    if name == "reporting":
        return fields.noting()(fields.metered()(checks.reference()))
    return with_kernels(checks.reference(), fused_kernels.FUSED if name == "fused" else {})


def verdict(name, backend, is_smallest=False):
    """Return the kit's reason and snippet for a failing case; None and None if it passes.

    The kit's list of the ops that a failing case calls, for which it runs the case once more, is left out, and so is
    the search for the smallest failing example unless it is asked for.
    """
    request = types.SimpleNamespace(node=types.SimpleNamespace(user_properties=[]))
    smallest = kit._shrink if is_smallest else lambda *given: None
    try:
        with patch.object(conformance, "_uses", return_value=set()), patch.object(kit, "_shrink", smallest):
            conformance.test_core(CASES[name], backend, Effort(), request)
    except pytest.fail.Exception:
        assert request.node.user_properties
    except pytest.skip.Exception as skipped:
        raise AssertionError(f"{name} was skipped: {skipped}") from skipped
    found = dict(request.node.user_properties)
    if found.get("polyarr_outcome") == "partly":
        return None, None
    return found.get("polyarr_reason"), found.get("polyarr_snippet")


@functools.cache
def hold(name, backend):
    """Check that a good backend passes."""
    assert verdict(name, good(backend)) == (None, None)


def planted(*places, slow=False):
    """Parametrize a test with the faults of these backends, once for each case that must catch them."""
    each = [(fault, name) for fault in FAULTS if fault.good in places for name in fault.caught]
    each = [(fault, name) for fault, name in each if (CASES[name].level == "huge") == slow]
    return pytest.mark.parametrize(("fault", "name"), [pytest.param(*p, id=f"{p[0].name}: {p[1]}") for p in each])


@planted("numpy", "fused", "telling", "reporting")
def test_a_planted_fault_is_caught(fault, name):
    caught(fault, name)


@planted("numpy", "fused", "telling", slow=True)
def test_a_fault_that_takes_huge_calls_is_caught(fault, name, pytestconfig):
    """Each takes seconds: these run with --polyarr-level=huge."""
    if pytestconfig.getoption("polyarr_level") != "huge":
        pytest.skip("needs --polyarr-level=huge")
    caught(fault, name)


@planted("opencl")
@pytest.mark.polyarr_backend("opencl")
def test_a_fault_that_is_planted_in_kernels_is_caught(fault, name):
    caught(fault, name)


@pytest.mark.parametrize(("name", "ops"), [
    ("forward-log", {"log", "divide"}),  # the gradient divides
    ("backward-softmax", {"softmax"}),
    ("layer-Linear", {"linear"}),
    ("backend-random-bits", {"random_bits"}),
    ("backend-calls", set()),  # it would take minutes
])  # fmt: skip
def test_the_ops_that_a_failing_case_calls_are_listed(name, ops):
    assert {op.name for op in conformance._uses(CASES[name], good("fused"))} == ops


@pytest.mark.parametrize(("name", "op"), [("captured-negative", "slice_update"), ("batched-multiply", "concat")])
def test_the_ops_that_a_check_calls_itself_are_listed(name, op):
    """Otherwise an in-place slice_update is blamed on every op that is captured."""
    assert {op, name.partition("-")[2]} <= {op.name for op in conformance._uses(CASES[name], good("fused"))}


def caught(fault, name):
    """Check that the message has the op (or subject), the backend, what differs, where and by how much."""
    with fault.within():
        hold(name, fault.good)
        is_told(fault, name, fault.plant(good(fault.good)))


def is_told(fault, name, faulty):
    case, (reason, snippet) = CASES[name], verdict(name, faulty, is_smallest=not fault.steady)
    assert reason, f"{name} does not catch it"
    if case.check == "backend":
        assert faulty.name in reason
    else:
        assert reason.startswith(f"{case.subject} on {faulty.name}: ")
    matches(fault.caught[name], reason)
    assert snippet.startswith(TO_REPRODUCE)
    if fault.steady and (case.check in columns() or case.subject in contract.CHECKS):
        with pytest.raises((CheckFailure, BackendError, TypeError, IndexError)):
            typed(snippet, faulty)


def matches(pattern, reason):
    """Return whether the message has the expected text."""
    with pytest.raises(CheckFailure, match=pattern):
        raise CheckFailure(reason)


def typed(snippet, backend):
    """Run the failure's snippet on the faulty backend, which has no name of its own."""
    lines = textwrap.dedent(snippet.partition("\n")[2])
    assert lines.count(repr(backend.name)) == 1
    exec(lines.replace(repr(backend.name), "faulty"), {"faulty": backend})


@pytest.mark.parametrize("name", OF_PAIRS)
def test_the_fused_kernels_without_faults_pass(name):
    hold(name, "fused")


def test_there_are_many_faults():
    names = [fault.name for fault in FAULTS]
    assert len(set(names) - {f.name for f in FAULTS if f.good == "opencl"}) >= 200
    assert sum(fault.good == "opencl" for fault in FAULTS) >= 6


def test_many_faults_at_once_do_not_hide_each_other():
    """All faults that need unusual sizes, numbers, inputs or counts of calls, in one backend."""
    classes = {"large", "numbers", "indices", "alias", "lasting", "caches", "threads"}
    found = [f for f in FAULTS if f.good != "opencl" and all(CASES[name].check in classes for name in f.caught)]
    assert len(found) >= 100
    backend = functools.reduce(lambda planted, fault: fault.plant(planted), found, good("fused"))
    names = {name for fault in found for name in fault.caught if CASES[name].check != "large"}
    tries = range(3)  # a race between threads need not show at once
    missed = [name for name in sorted(names) if all(verdict(name, backend) == (None, None) for _ in tries)]
    assert not missed


def test_every_check_catches_a_fault():
    """A check that never fails is not tested. test_tape.py covers `tape`, which tests the core."""
    catchers = [CASES[name] for fault in FAULTS for name in fault.caught]
    found = {case.subject if case.check == "backend" else case.check for case in catchers}
    assert {*KINDS, *BACKEND_CHECKS, "layer"} - {"tape", "large-copies", "large-precisions"} <= found
    assert len(found & {*columns()} - {*KINDS}) >= 5  # dtypes
