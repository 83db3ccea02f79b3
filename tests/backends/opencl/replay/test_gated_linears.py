"""Gated feed-forwards of few rows in compiled functions: one step, with the bits of separate ones."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
pytestmark = pytest.mark.polyarr_backend("opencl")
gated_linear, gated_linears, replay, vendor = opencl_modules("gated_linear", "gated_linears", "replay", "vendor")


@pytest.fixture
def programs(gated, monkeypatch):
    """The programs after the pass."""
    found, real = [], gated_linears.fuse_gated_linears

    def note(device, program):
        found.append(real(device, program))
        return found[-1]

    monkeypatch.setattr(replay, "fuse_gated_linears", note)
    return found


def of_gates(program):
    """Return the steps that compute both products."""
    return [step for step in program.steps if getattr(step.call, "__wrapped__", None) is gated_linear.gated_linear]


def layer(kind, activation="silu", bias=False, n=256, k=64):
    """Return a gated feed-forward whose weights are of a kind."""
    made = nn.GatedFeedForward(k, n, activation=activation, bias=bias).eval().astype("bfloat16")
    return nn.quantized(made, kind) if kind in ("int8", "q8_0", "q4_0") else made.astype(kind)


def reversed_factors(model, x):
    return model.down(model.up(x) * model.gate(x))


@pytest.mark.parametrize("rows", [1, 7, 32])
@pytest.mark.parametrize(("kind", "activation", "bias"), [
    ("bfloat16", "silu", False), ("float16", "gelu", True), ("bfloat16", "relu", True), ("int8", "silu", True),
    ("q8_0", "gelu_tanh", False), ("q4_0", "silu", True),
])  # fmt: skip
def test_the_bits_are_those_of_separate_steps(programs, kind, activation, bias, rows):
    pa.random.seed(rows)
    model = layer(kind, activation, bias)
    x = pa.random.normal((1, rows, 64)).astype("float16" if kind == "float16" else "bfloat16")
    compiled = pa.compile(reversed_factors if rows == 7 else type(model).__call__)
    expected = model(x).astype("float32").numpy()
    for _ in range(3):
        np.testing.assert_array_equal(compiled(model, x).astype("float32").numpy(), expected)
    (program,) = programs
    assert len(of_gates(program)) == 1
    assert not any(step.op is ops.multiply for step in program.steps)


def gradient(model, x):
    return pa.grad(lambda x: model(x).astype("float32").sum())(x)


def shared(model, x):
    gate = model.gate(x)
    return gate * model.up(x), gate


def of_two_inputs(model, x):
    return model.gate(x) * model.up(x + 1)


def activated_twice(model, x):
    return model.gate(x) * ops.linear(x, model.up.weight, activation="relu")


def squared(model, x):
    gate = model.gate(x)
    return gate * gate


def with_a_bias_of_one(model, x):
    return ops.linear(x, model.gate.weight, x[0, 0, :1] + model.up.weight[:, 0]) * model.up(x)


@pytest.mark.parametrize("function", [gradient, shared, of_two_inputs, activated_twice, squared, with_a_bias_of_one])
def test_what_is_not_a_gated_layer_alone_stays_as_it_is(programs, function):
    pa.random.seed(0)
    model, x = layer("bfloat16"), pa.random.normal((1, 2, 64)).astype("bfloat16")
    found, expected = pa.compile(function)(model, x), function(model, x)
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, expected)), strict=True):
        np.testing.assert_array_equal(a.astype("float32").numpy(), b.astype("float32").numpy())
    assert not any(of_gates(program) for program in programs)


@pytest.mark.parametrize(("rows", "dtype"), [(65, "bfloat16"), (2, "float32")])
def test_many_rows_and_float32_stay_as_they_are(programs, rows, dtype):
    model, x = layer(dtype), pa.ones((1, rows, 64), dtype=dtype)
    pa.compile(lambda model, x: model(x))(model, x)
    assert not of_gates(programs[0])


def test_the_profiler_names_the_layer_and_counts_both_products(programs):
    model, x = layer("bfloat16"), pa.ones((1, 2, 64), dtype="bfloat16")
    compiled = pa.compile(lambda model, x: model(x))
    for _ in range(2):
        compiled(model, x)
    with pa.profile() as profile:
        compiled(model, x)
    rows = [row for row in profile.ops() if "ff.gate" in row.name or "linear" in row.name]
    assert sum(row.operations for row in rows) == 3 * 2 * 2 * 64 * 256  # gate, up and down
