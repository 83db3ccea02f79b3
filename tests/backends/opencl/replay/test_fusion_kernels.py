"""OpenCL's kernels for fused groups: the bits of the single ops in any layout; faults that the kit must catch."""

import re
from importlib import import_module

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import bits
from tests.helpers.opencl_modules import opencl_modules

elements, statements = opencl_modules("elements", "statements")
pytestmark = pytest.mark.polyarr_backend("opencl")
JOINED = next(case.run for case in cases() if case.name == "backend-joined")


def array(*shape, dtype="float32", seed=0):
    return pa.asarray(np.random.default_rng(seed).standard_normal(shape) * 3, dtype=dtype)


def mixed(a, b, c, k):
    """Return casts, comparisons, numbers, several results, and operands with every kind of broadcasting."""
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


def test_layouts_that_take_more_arguments_than_a_device_may_run_step_by_step(backend):
    def fn(arrays):
        return sum(arrays[1:], start=arrays[0])

    orders = [np.random.default_rng(i).permutation(8).tolist() for i in range(12)]
    views = [ops.permute_dims(array(*(2,) * 8, seed=i), axes=order) for i, order in enumerate(orders)]
    compiled = pa.compile(fn)
    assert bits(compiled(views)) == bits(fn(views)) == bits(compiled(views))
    (step,) = compiled.programs()[0].steps
    assert step.part == "group" and [*step.call._plans.values()] == [None]


def test_the_only_result_overwrites_a_donated_array(backend):
    y, outputs = array(4, 6, seed=9), {1: lambda x: ops.tanh(x * y) + x, 2: lambda x: (ops.tanh(x * y) + x, x * y)}
    for count, fn in outputs.items():
        compiled = pa.compile(fn, captures=y, donate="x")
        for run in range(4):
            x, due = array(4, 6, seed=run), bits(fn(array(4, 6, seed=run)))
            address = x.buf.memory.int_ptr
            found = compiled(x)
            assert bits(found) == due
            addresses = [a.buf.memory.int_ptr for a in pa.tree.leaves(found)]
            assert run == 0 or (address in addresses) == (count == 1)


SHAPES = ((5, 33), (7, 1000), (3, 4, 2), (1, 64), (300, 17))
LONG = ((2, 8000), (2, 8203))  # a GPU splits such few rows among work-groups


@pytest.mark.parametrize("op", (ops.softmax, ops.log_softmax, ops.layer_norm, ops.rms_norm), ids=lambda op: op.name)
def test_a_body_that_reduces_rows_is_one_kernel_with_its_bits(backend, op):
    compiled = pa.compile(op.decomposition)
    for shape in (*SHAPES, *LONG):
        x, weight = array(*shape), (array(shape[-1], seed=1),) * ("weight" in op.inputs)
        twice = ops.concat((x, x), axis=0)
        for given in (x, twice[shape[0] :], twice[::2], ops.permute_dims(twice[::2] * 2.0, axes=range(x.ndim))):
            assert bits(compiled(given, *weight)) == bits(op.decomposition(given, *weight)), (shape, given.buf.strides)
    assert {len(program.steps) for program in compiled.programs()[: len(SHAPES)]} == {1}


def test_what_reduces_gives_its_rows_and_several_axes_too(backend):
    def fn(x, y):
        largest = ops.max(x * y, axis=(1, 2), keepdims=True)
        scaled = (x * y - largest) * 0.5
        return scaled * ops.sum(x, axis=(1, 2), keepdims=True), largest, ops.min(scaled, axis=(1, 2), keepdims=True)

    compiled, x = pa.compile(fn), array(4, 5, 6)
    for y in (array(4, 5, 6, seed=1), array(5, 1, seed=2), array(4, 1, 1, seed=3), array(6, seed=4)):
        assert bits(compiled(x, y)) == bits(fn(x, y))
    turned = ops.permute_dims(array(5, 4, 6), axes=(1, 0, 2))
    assert bits(compiled(turned, y)) == bits(fn(turned, y)), "not dense: the steps run one by one"
    assert [step.part for step in compiled.programs()[0].steps] == ["group"]


def numbers(arrays):
    """Return the bits of arrays, with those of one nan for each: its sign is undefined."""
    return [np.where(np.isnan(a), np.nan, a).tobytes() for a in (array.numpy().astype("float64") for array in arrays)]


def statistics(x, weight):
    """Return reductions of a cast and of what is computed from it, values that later phases read, and results."""
    wide = x.astype("float32")
    largest, total = ops.max(wide, axis=-1, keepdims=True), ops.sum(wide, axis=-1, keepdims=True)
    e = ops.exp(wide - largest)
    scaled = e * (1 / ops.sum(e, axis=-1, keepdims=True)) * weight
    least = ops.min(scaled, axis=-1, keepdims=True)
    return largest, total, ops.min(-wide, axis=-1, keepdims=True), e, (scaled - least).astype(x.dtype), scaled


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
def test_reductions_of_computed_values_have_the_bits_of_the_ops(backend, dtype):
    for length in (1, 7, 8, 15, 16, 33, 63, 64, 65, 130, 1000, 8300):  # 8300: more than a chunk of reduce.cl
        values = np.random.default_rng(length).standard_normal((5, length))
        values[1] = np.where(values[1] > 0, 0.0, -0.0)
        values[2, length // 2], values[3, -1] = np.nan, np.inf
        x, weight = pa.asarray(values, dtype=dtype), array(length, seed=1)
        compiled = pa.compile(statistics)
        assert numbers(compiled(x, weight)) == numbers(statistics(x, weight)), length
        assert "group" in [step.part for step in compiled.programs()[0].steps]


class ReadAsDense(elements.Operand):
    """A broadcast input that is read as if its elements were neighbors, one by one: vectors would not be aligned."""

    def element(self, j="(j)"):
        return elements.Operand(*self)._replace(kind="DENSE").element(j)

    @property
    def read(self):
        return elements.Operand(*self).read.removesuffix(");") + " + k);"


def a_repeated_input_that_is_read_as_dense(patch):
    real = statements.Statements.input

    def dense(self, v, strides, kind):
        found = real(self, v, strides, kind)
        return ReadAsDense(*found) if kind == "REPEATED" else found

    patch.setattr(statements.Statements, "input", dense)


def a_rounding_left_out(patch):
    real = statements.Statements._link
    patch.setattr(
        statements.Statements,
        "_link",
        lambda self, step: re.sub(r"widen_b?float16\(narrow_b?float16\(", "((", real(self, step)),
    )


@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_sums_of_broadcast_arrays_have_the_bits_of_dense_ones(backend, axis):
    """A result computed before it is broadcast is a view; without compile a sum reads a dense array."""
    summed = lambda *wide: [pa.sum(ops.exp(ops.broadcast_to(a, shape=(3, 90, 33))), axis=axis) for a in wide]
    arrays = array(3, 1, 1), array(90, 1, seed=1), array(33, seed=2)
    assert bits(pa.compile(summed)(*arrays)) == bits(summed(*arrays))


def pieces_written_in_another_order(patch):
    real = statements.Statements.concatenated
    turned = lambda self, v, pieces, *at, **of: real(self, v, pieces[::-1], *at, **of)
    patch.setattr(statements.Statements, "concatenated", turned)


def a_value_per_row_left_out(patch):
    rows = import_module("polyarr.backends.opencl.replay.fusion_rows")
    patch.setattr(rows.Phases, "row_outputs", property(lambda self: []))


FAULTS = (
    a_repeated_input_that_is_read_as_dense, a_rounding_left_out, pieces_written_in_another_order,
    a_value_per_row_left_out,
)  # fmt: skip


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_kit_sees_it(backend, monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(Exception, match="have other bits than the ops"):
        JOINED(backend, Effort())
