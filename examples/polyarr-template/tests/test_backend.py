"""Every op against polyarr's reference. What is known to fail stands in KNOWN, with its reason; a stale entry fails."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyarr.core.backend import Fused
from polyarr.plugins import get_backend
from polyarr.testing import SAMPLES, checks

NAME = "template"
KNOWN = {}  # op name -> why it fails
THOROUGH = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


def cases(chosen):
    marks = {name: pytest.mark.xfail(reason=reason, strict=True) for name, reason in KNOWN.items()}
    return [pytest.param(op, id=op.name, marks=marks.get(op.name, ())) for op in SAMPLES if chosen(op)]


def usual(op):
    return "float32" if "float32" in SAMPLES[op].dtypes else SAMPLES[op].dtypes[-1]


@pytest.mark.parametrize("op", cases(lambda op: True))
@THOROUGH
@given(data=st.data())
def test_forward(op, data):
    checks.check_forward(op, NAME, data.draw(SAMPLES[op].cases(usual(op))))


@pytest.mark.parametrize("op", cases(lambda op: SAMPLES[op].smooth))
@THOROUGH
@given(data=st.data())
def test_backward(op, data):
    checks.check_backward(op, NAME, data.draw(SAMPLES[op].smooth("float32")))


@pytest.mark.parametrize("op", cases(lambda op: True))
@settings(THOROUGH, max_examples=2)
@given(data=st.data())
def test_habits(op, data):
    """No input changes, strides do not matter, and the same inputs give the same bits."""
    sample = data.draw((SAMPLES[op].smooth or SAMPLES[op].cases)(usual(op)))
    checks.check_purity(op, NAME, sample)
    checks.check_layout(op, NAME, sample)
    checks.check_determinism(op, NAME, sample)


@pytest.mark.parametrize("op", cases(lambda op: type(get_backend(NAME).kernels.get(op)) is Fused))
@THOROUGH
@given(data=st.data())
def test_fused_pair(op, data):
    checks.check_fused_pair(op, NAME, data.draw(SAMPLES[op].smooth("float32")))
