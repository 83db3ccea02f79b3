"""A backend with the required dtypes only passes the kit: calls whose result has another dtype are left out."""

import pytest

from polyarr import ops
from polyarr.backends import numpy as built_in
from polyarr.core.current import use_backend
from polyarr.testing import Data, Sample
from polyarr.testing.backend_checks import NEEDED
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import Lacking

pytestmark = pytest.mark.imports_only

NARROW = built_in.start()._replace(name="narrow", dtypes=frozenset(NEEDED))
OPS = (
    ops.sum, ops.prod, ops.cumulative_sum, ops.take, ops.scatter, ops.scatter_add, ops.mean, ops.cross_entropy,
    ops.adamw,
)  # fmt: skip
CHECKS = ("forward", "numbers", "indices", "special", "caches", "sweep", "promised", "captured")
CASES = {case.name: case for case in cases() if case.subject in {op.name for op in OPS} and case.check in CHECKS}


@pytest.mark.parametrize("name", CASES)
def test_what_the_backend_holds_is_checked(name):
    with use_backend(NARROW):
        CASES[name].run(NARROW, Effort(4))


@pytest.mark.parametrize("op", ["sum", "prod", "cumulative_sum"])
def test_sums_of_uint32_are_uint64_and_skipped(op):
    case = next(case for case in cases() if case.name == f"uint32-{op}")
    with use_backend(NARROW), pytest.raises(Lacking, match=f"does not hold the dtypes that {op} needs"):
        case.run(NARROW, Effort(4))


def test_a_call_is_held_with_its_results():
    call = Sample((Data((2, 3), dtype="uint32"),), {"axis": None, "keepdims": False, "dtype": None})
    assert not call.is_held(ops.sum, NARROW.dtypes)
    assert Sample((Data((2, 3), dtype="uint32"),)).is_held(ops.bitwise_invert, NARROW.dtypes)
    assert not Sample((Data((2, 3), dtype="float64"),)).is_held(ops.exp, NARROW.dtypes)
