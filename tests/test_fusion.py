"""OpenCL's kernels for groups of steps: the bits of the ops, whatever the layout; and faults that the kit must see."""

import re

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import bits

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.polyarr_backend("opencl")
JOINED = next(case.run for case in cases() if case.name == "backend-joined")


def array(*shape, dtype="float32", seed=0):
    return pa.asarray(np.random.default_rng(seed).standard_normal(shape) * 3, dtype=dtype)


def mixed(a, b, c, k):
    """Casts, comparisons, numbers, several results, and operands of every sort of broadcasting."""
    y = ops.tanh(a * b + c) * k
    small = y.astype("float16") * 0.3 + a.astype("float16")
    chosen = ops.where((y > 0.1) & (b != k), small.astype("bfloat16"), 0.7)
    return chosen, small, y, (chosen * 3.0).astype("bool"), ops.where(y < a, a > k, False), (a > k).astype("int32") * 3


LAYOUTS = {
    "dense": lambda x: x,
    "transposed": lambda x: ops.permute_dims(ops.permute_dims(x, axes=(2, 1, 0)) * 1.0, axes=(2, 1, 0)),
    "reversed": lambda x: (ops.concat((x, x), axis=-1) * 1.0)[::-1, :, ::2],
    "repeated": lambda x: ops.broadcast_to(x[:, :1], shape=x.shape),
}


def test_bits_are_those_of_the_ops(backend):
    compiled = pa.compile(mixed)
    rest = array(5, 1, seed=1), array(7, 5, 12, seed=2)[:, :, 3]
    for name, layout in LAYOUTS.items():
        args = layout(array(7, 5, 12)), rest[0], ops.expand_dims(rest[1], axis=2)
        for k in (1, 2.5):
            assert bits(compiled(*args, k)) == bits(mixed(*args, k)), name
    for program in compiled.programs():
        assert [step.part for step in program.steps] == ["group"]


def a_repeated_input_that_is_read_as_dense(patch, fusion):
    patch.setattr(fusion, "STEPS", {0: "DENSE", 1: "DENSE"})


def a_rounding_left_out(patch, fusion):
    real = fusion._Text._link
    patch.setattr(
        fusion._Text, "_link", lambda self, step: re.sub(r"widen_b?float16\(narrow_b?float16\(", "((", real(self, step))
    )


FAULTS = (a_repeated_input_that_is_read_as_dense, a_rounding_left_out)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_kit_sees_it(backend, monkeypatch, plant):
    from polyarr.backends.opencl import fusion

    plant(monkeypatch, fusion)
    with pytest.raises(Exception, match="have other bits than the ops"):
        JOINED(backend, Effort())
