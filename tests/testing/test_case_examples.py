"""Examples that the conformance kit draws for a case, and the message of a failing one."""

import pytest
from hypothesis import strategies as st

import polyarr
from polyarr import ops
from polyarr.core.spec import DTYPES
from polyarr.testing import CheckFailure, Data, Sample
from polyarr.testing import cases as drawing
from polyarr.testing.cases import KINDS

pytestmark = pytest.mark.imports_only


def test_of_each_op_with_a_case_of_aliases_some_inputs_are_alike():
    """Otherwise the case would be skipped on every backend with a wrong reason."""
    for op, entry in drawing.SAMPLES.items():
        strategy = KINDS["alias"].draws(op, entry, entry.usual)
        if strategy is not None:
            assert drawing._drawn(drawing._Drawing(op, strategy, frozenset(DTYPES), 0, 4)), op.name


def test_an_example_that_fails_whenever_it_is_tried_is_not_called_unsteady(monkeypatch):
    """Hypothesis may draw other examples while it searches for a smaller one."""
    bad, good = (Sample((Data((n,)),)) for n in (5, 1))
    tried = []

    def check(op, backend, sample):
        tried.append(sample)
        if sample == bad:
            raise CheckFailure("the fault")

    monkeypatch.setattr(drawing, "_drawn", lambda _: [good, bad])
    effort = drawing.Effort(4, 0)
    with pytest.raises(CheckFailure, match=r"^the fault$"):
        drawing._examine(check, ops.exp, st.just(good), 1, None, polyarr.get_backend("numpy"), effort)
    assert tried.count(good) > 1 and tried.count(bad) == 2

    def now_and_then(op, backend, sample):
        if sample == bad and not tried:
            check(op, backend, sample)

    tried.clear()
    with pytest.raises(CheckFailure, match="not the same every time; once: the fault"):
        drawing._examine(now_and_then, ops.exp, st.just(good), 1, None, polyarr.get_backend("numpy"), effort)
