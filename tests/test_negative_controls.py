"""The conformance kit on backends with a planted fault: a case must catch it, and say what is needed to find it.

The faults are in tests/negative_controls; each is planted in a copy of a backend that the same case passes.
"""

import functools
import textwrap
import types

import pytest

from polyarr.core.current import get_backend
from polyarr.core.errors import BackendError
from polyarr.testing import checks, conformance
from polyarr.testing.cases import KINDS, OF_BACKEND, Effort, cases, columns
from polyarr.testing.checks import TO_SEE_IT_AGAIN
from polyarr.testing.compare import CheckFailure
from tests.negative_controls import (  # they fill the table
    aliases,  # noqa: F401
    gradients,  # noqa: F401
    habits,  # noqa: F401
    indices,  # noqa: F401
    matrices,  # noqa: F401
    moving,  # noqa: F401
    norms,  # noqa: F401
    on_opencl,  # noqa: F401
    pairs,
    precisions,
    sizes,  # noqa: F401
    state,  # noqa: F401
    values,  # noqa: F401
    whole_numbers,  # noqa: F401
    windows,  # noqa: F401
)
from tests.negative_controls.table import FAULTS, with_kernels

CASES = {case.name: case for case in cases()}
OF_PAIRS = [c.name for c in CASES.values() if c.subject in {op.name for op in pairs.PAIRS}]


@functools.cache
def good(name):
    """A backend without faults."""
    if name == "opencl":
        return get_backend(name)
    if name == "telling":
        return precisions.telling(checks.reference())
    return with_kernels(checks.reference(), pairs.PAIRS if name == "pairs" else {})


def verdict(name, backend):
    """What a user of the kit is told: why a case fails, and what to type; None and None if it holds."""
    request = types.SimpleNamespace(node=types.SimpleNamespace(user_properties=[]))
    try:
        conformance.test_core(CASES[name], backend, Effort(), request)
    except pytest.fail.Exception:
        assert request.node.user_properties
    except pytest.skip.Exception as skipped:
        raise AssertionError(f"{name} was skipped: {skipped}") from skipped
    found = dict(request.node.user_properties)
    return found.get("polyarr_reason"), found.get("polyarr_snippet")


@functools.cache
def hold(name, backend):
    """A good backend passes."""
    assert verdict(name, good(backend)) == (None, None)


def planted(*places):
    """The faults that are planted in these backends, once for each case that must catch them."""
    each = [(fault, name) for fault in FAULTS if fault.good in places for name in fault.caught]
    return pytest.mark.parametrize(("fault", "name"), [pytest.param(*p, id=f"{p[0].name}: {p[1]}") for p in each])


@planted("numpy", "pairs", "telling")
def test_a_planted_fault_is_caught(fault, name):
    caught(fault, name)


@planted("opencl")
@pytest.mark.polyarr_backend("opencl")
def test_a_fault_that_is_planted_in_kernels_is_caught(fault, name):
    caught(fault, name)


def caught(fault, name):
    """The message names the op (or what is checked), the backend, what differs, where and by how much."""
    case = CASES[name]
    hold(name, fault.good)
    with fault.within():
        faulty = fault.plant(good(fault.good))
        reason, snippet = verdict(name, faulty)
        assert reason, f"{name} does not catch it"
    if case.check == "backend":
        assert faulty.name in reason
        assert snippet == ""
    else:
        assert reason.startswith(f"{case.subject} on {faulty.name}: ")
    matches(fault.caught[name], reason)
    if case.check in columns():
        assert snippet.startswith(TO_SEE_IT_AGAIN)
        if fault.steady:
            with pytest.raises((CheckFailure, BackendError, TypeError, IndexError)):
                typed(snippet, faulty)


def matches(pattern, reason):
    """The message says it."""
    with pytest.raises(CheckFailure, match=pattern):
        raise CheckFailure(reason)


def typed(snippet, backend):
    """What the failure says to type; the faulty backend has no name of its own."""
    lines = textwrap.dedent(snippet.partition("\n")[2])
    assert lines.count(repr(backend.name)) == 1
    exec(lines.replace(repr(backend.name), "faulty"), {"faulty": backend})


@pytest.mark.parametrize("name", OF_PAIRS)
def test_the_pairs_that_faults_are_planted_in_hold(name):
    hold(name, "pairs")


def test_there_are_many_faults():
    names = [fault.name for fault in FAULTS]
    assert len(set(names) - {f.name for f in FAULTS if f.good == "opencl"}) >= 200
    assert sum(fault.good == "opencl" for fault in FAULTS) >= 6


def test_many_faults_at_once_do_not_hide_each_other():
    """All faults that only calls past the usual sizes, numbers, inputs and counts show, in one backend."""
    classes = {"large", "numbers", "indices", "alias", "lasting", "caches", "threads"}
    found = [f for f in FAULTS if f.good != "opencl" and all(CASES[name].check in classes for name in f.caught)]
    assert len(found) >= 100
    backend = functools.reduce(lambda planted, fault: fault.plant(planted), found, good("pairs"))
    names = {name for fault in found for name in fault.caught if CASES[name].check != "large"}
    missed = [name for name in sorted(names) if verdict(name, backend) == (None, None)]
    assert not missed


def test_every_check_catches_a_fault():
    """A check that never catches anything is not tested. What the tape keeps is core's: see test_tape.py for `tape`."""
    catchers = [CASES[name] for fault in FAULTS for name in fault.caught]
    found = {case.subject if case.check == "backend" else case.check for case in catchers}
    assert {*KINDS, *OF_BACKEND, "layer"} - {"tape"} <= found
    assert len(found & {*columns()} - {*KINDS}) >= 5  # dtypes
