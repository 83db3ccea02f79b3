"""Where the steps of a compiled function come from: its line, the part of the model, and the call of a gradient."""

import inspect
import re
from pathlib import Path

import pytest

import polyarr as pa
from polyarr import nn
from polyarr.core.errors import CaptureError


class Block(nn.Module):
    def __init__(self):
        self.scale, self.layers = pa.ones(4), [nn.Linear(4, 4, bias=False), nn.LayerNorm(4)]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return pa.exp(x * self.scale)  # exp


class Model(nn.Module):
    def __init__(self):
        self.blocks = {"first": Block(), "second": Block()}

    def __call__(self, x):
        return pa.mean(pa.tanh(self.blocks["second"](self.blocks["first"](x))))  # tanh


def line_of(owner, marked):
    lines, first = inspect.getsourcelines(owner)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if line.rstrip().endswith('# ' + marked))}"


def steps_of(fn, *args):
    with pa.use_backend("numpy"):
        compiled = pa.compile(fn)
        compiled(*args)
        (program,) = compiled.programs()
    return program.steps


def test_a_step_names_the_part_of_the_model_and_its_gradient_the_same():
    with pa.use_backend("numpy"):
        model, x = Model(), pa.ones((3, 4)) * 0.5
    steps = steps_of(pa.value_and_grad(lambda m, x: m(x)), model, x)
    products = [(s.module, s.is_gradient) for s in steps if s.op is pa.ops.matrix_product]
    first, second = "blocks.first.layers.0", "blocks.second.layers.0"
    assert products[:2] == [(first, False), (second, False)] and (first, True) in products[2:]
    assert {module for module, is_gradient in products if is_gradient} == {first, second}
    (tanh,) = [s for s in steps if s.op is pa.ops.tanh]
    assert (tanh.line, tanh.module, tanh.is_gradient) == (line_of(Model, "tanh"), "", False)
    assert {s.line for s in steps if s.is_gradient and s.module == "blocks.second"} == {line_of(Block, "exp")}
    assert any(s.is_gradient and s.module.endswith("layers.1") for s in steps)


def test_what_is_computed_again_has_its_own_line():
    def once(x):
        return pa.exp(pa.sin(x))  # once

    def loss(x):
        return pa.sum(pa.checkpoint(once)(x))

    found = [(s.line, s.is_gradient) for s in steps_of(pa.grad(loss), pa.ones(3)) if s.op is pa.ops.sin]
    assert {place for place, _ in found} == {line_of(once, "once")} and (line_of(once, "once"), True) in found


def test_a_custom_backward_has_its_own_line():
    @pa.custom_vjp
    def doubled(x):
        return x * 2.0

    def backward(saved, g):
        return (pa.tanh(g),)  # backward

    doubled.defvjp(lambda x: (x * 2.0, None), backward)
    steps = steps_of(pa.grad(lambda x: pa.sum(pa.square(doubled(x)))), pa.ones(3))
    assert [(s.line, s.is_gradient) for s in steps if s.op is pa.ops.tanh] == [(line_of(backward, "backward"), True)]


def test_a_gradient_of_a_gradient_is_at_the_first_line():
    def loss(x):
        return pa.sum(pa.sin(x))  # loss

    steps = steps_of(pa.grad(lambda x: pa.sum(pa.grad(loss)(x))), pa.ones(3))
    assert {s.line for s in steps if s.op is pa.ops.sin} == {line_of(loss, "loss")}


BESIDE = f"{Path(pa.__file__).parent}_test.py"  # as polyarr_test.py beside polyarr/: it begins with the folder's path


def test_files_beside_the_package_are_not_part_of_it():
    names = {}
    exec(compile("def fn(x):\n    return bool(x)", BESIDE, "exec"), names)
    with pytest.raises(CaptureError, match=f"^compile: {re.escape(BESIDE)}:2 "):
        pa.compile(names["fn"])(pa.ones(()))


@pytest.mark.polyarr_backend("opencl")
def test_errors_of_kernels_name_files_beside_the_package(backend):
    names = {"pa": pa}
    exec(compile("def fn(x, i):\n    return pa.take(x, i, axis=0)", BESIDE, "exec"), names)
    with pytest.raises(IndexError, match=f"; called at {re.escape(BESIDE)}:2$"):
        names["fn"](pa.ones(2), pa.asarray([3])).numpy()
