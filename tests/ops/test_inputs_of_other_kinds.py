"""Numbers, None, strings and arrays without axes in place of an op's arrays: the same outcome on every backend."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr import tree
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.op import Op
from polyarr.testing.cases import first_example
from polyarr.testing.samples import SAMPLES
from polyarr.testing.strategies import Data

GIVEN = (1, 1.5, True, 2j, None, "a", np.float32(2), lambda: pa.asarray(1.5))
REFUSED = (TypeError, ValueError, ShapeError, DtypeError)  # not an error of Python inside of a rule or a kernel


def outcome(op: Op, inputs: list[Any], params: dict[str, Any]) -> tuple[str, Any]:
    """Return the error's type and text, or the Specs of the results."""
    try:
        found = op(*inputs, **params)
    except REFUSED as error:
        return type(error).__name__, str(error)
    return "", [(a.dtype.name, a.shape) for a in tree.leaves(found)]


@pytest.mark.polyarr_backend("opencl")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", SAMPLES, ids=[op.name for op in SAMPLES])
def test_outcome_is_that_of_numpy(backend: pa.Backend, op: Op) -> None:
    reference, sample = pa.get_backend("numpy"), first_example(op, backend)
    assert sample
    for i, each in enumerate(sample.inputs):
        for given in GIVEN if isinstance(each, Data) else ():
            found = []
            for on in (reference, backend):
                with pa.use_backend(on):
                    inputs = list(sample.arrays(on))
                    inputs[i] = given() if isinstance(given, Callable) else given
                    kind, text = outcome(op, inputs, sample.params)
                    found.append((kind, text.replace(on.name, "backend") if kind else text))
            assert found[0] == found[1], f"{op.name}: input {i} is {given!r}"
            assert "\n" not in str(found[0][1])
