"""Random functions, captured and fused on a backend that fuses all it may: the bits of the functions themselves."""

from random import Random

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.capture.run import runner
from polyarr.core.program import Fusion, Kind
from polyarr.testing.compare import bits

ELEMENTWISE = {
    ops.add, ops.subtract, ops.multiply, ops.negative, ops.abs, ops.tanh, ops.maximum, ops.where, ops.less,
    ops.astype, ops.sign, ops.square, ops.equal,
}  # fmt: skip
SHAPES = ((3, 8), (3, 4), (3, 1), (8,), (1, 8), (2, 1, 4))


def kind(step, specs, out):
    if step.op in (ops.sum, ops.max):
        x, axes = specs[0], step.params["axis"]
        return Kind(x.shape, "", 1) if axes == (x.ndim - 1,) and step.params["keepdims"] else None
    return Kind(out.shape) if step.op in ELEMENTWISE else None


def plainly(group, kind):
    run = runner(group)
    return lambda outs, *inputs: tuple(run([*inputs]))


@pytest.fixture
def fusing(on_numpy):
    """Return NumPy with a fusion that runs the steps one by one."""
    with pa.use_backend(on_numpy._replace(fusion=Fusion(kind, plainly, 9, concat=True))) as backend:
        yield backend


def placed(x, random):
    """Return x as a part of zeros."""
    count = random.choice((2, 2, 3))
    k, n = random.randrange(count), x.shape[-1]
    whole = pa.zeros((*x.shape[:-1], count * n), dtype=x.dtype)
    whole[..., k * n : (k + 1) * n] = x
    return whole


def piece(x, random):
    n = x.shape[-1] // random.choice((1, 2, 4)) or 1
    k = random.randrange(x.shape[-1] // n)
    return x[..., k * n : (k + 1) * n]


STEPS = (
    lambda r, x, y: x + y, lambda r, x, y: x * y, lambda r, x, y: x - y * 2, lambda r, x, y: pa.maximum(x, y),
    lambda r, x, y: -x, lambda r, x, y: pa.tanh(x), lambda r, x, y: pa.where(x < y, x, 0.0), lambda r, x, y: x * 1.5,
    lambda r, x, y: x.astype("float64").astype("float32") + x, lambda r, x, y: piece(x, r), lambda r, x, y: piece(y, r),
    lambda r, x, y: pa.concat([x, y], axis=-1), lambda r, x, y: pa.concat([x, -x], axis=-1) * 2,
    lambda r, x, y: placed(x, r), lambda r, x, y: placed(x, r) + placed(x, r),
    lambda r, x, y: pa.sum(x, axis=-1, keepdims=True), lambda r, x, y: x - pa.max(x, axis=-1, keepdims=True),
    lambda r, x, y: pa.broadcast_to(x, (3, 8)) * 2, lambda r, x, y: pa.sum(x, axis=0) + y,
    lambda r, x, y: pa.reshape(x, (-1,)), lambda r, x, y: x * pa.mean(x * x, axis=-1, keepdims=True),
)  # fmt: skip


def written(seed):
    """Return a random function of three arrays, and the arrays; results are up to three of its values."""
    random, host = Random(seed), np.random.default_rng(seed)
    given = [host.standard_normal(random.choice(SHAPES)).astype("f") for _ in range(3)]
    given = [pa.asarray(np.where(host.random(a.shape) < 0.1, -0.0, a)).astype("float32") for a in given]

    def fn(*arrays):
        random, values = Random(seed), [*arrays]
        for _ in range(random.randint(3, 16)):
            x, y = random.choice(values[-4:]), random.choice(values)
            try:
                found = random.choice(STEPS)(random, x, y)
            except pa.ShapeError:  # the same at every call
                continue
            values += [found] if found.size <= 200 else []
        return tuple(random.sample(values, min(3, len(values))))

    return fn, given


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_values_and_gradients_have_the_same_bits(fusing, first):
    groups = set()
    for seed in range(first, first + 40):
        fn, given = written(seed)
        due, pull = pa.vjp(fn, *given)
        cotangents = tuple([None if Random(seed + i).random() < 0.2 else a * 0.5 for i, a in enumerate(due)])
        gradients, fused = bits(pull(cotangents)), pa.fused(fn)
        compiled = pa.compile(fn)
        assert bits(compiled(*given)) == bits(due), seed
        value, pull = pa.vjp(fused, *given)
        assert bits(value) == bits(due) and bits(pull(cotangents)) == gradients, seed
        step = pa.compile(lambda given, g, fused=fused: pa.vjp(fused, *given)[1](g))
        assert bits(step(given, cotangents)) == gradients, seed
        steps = [s for program in (*compiled.programs(), *fused.programs()) for s in program.steps]
        groups |= {name for s in steps if s.part == "group" for name in s.name.split("+")}
    assert {"concat", "sum", "max", "add", "where"} <= groups
