"""A program as users write it, which type checkers must accept."""

from collections.abc import Callable
from typing import assert_type

import polyarr as pa
from polyarr import Array, nn


class Model(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        self.first = nn.Linear(4, 8, activation="relu")
        self.second = nn.Linear(8, 2, bias=False)

    def __call__(self, x: Array) -> Array:
        return self.second(self.first(x))


def arithmetic(x: Array, y: Array, i: int) -> list[Array]:
    """Operators, with numbers on either side, and comparisons."""
    x += 1
    x @= y
    assert_type(x + 1, Array)
    assert_type(1 - x, Array)
    assert_type(x > 0.5, Array)
    assert_type(x == y, Array)
    mask = (x > 0) & ~(y != 2)
    return [x + y, 2.0 * x, -x, abs(x), x // i, x % 3, x**2, 2**x, x @ y, x << 1, x.T @ y.mT, pa.where(mask, x, 0)]


def indexing(x: Array, i: int) -> float:
    """Keys, rows and the conversions to Python's numbers."""
    x[i] = 3.0
    x[1:, None] = x[..., 0]
    rows = [r for r in x]
    assert_type(x[:, None], Array)
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.size + x.ndim + len(x) + int(x[0]), int)
    return float(rows[0]) + float(x[x > 0][-1].item())


def ops(x: Array, weight: Array, indices: Array) -> Array:
    """Ops with parameters by name and by position, lists of arrays, optional arrays, several results."""
    total = pa.sum(x, axis=0) + pa.sum(x, (0, 1), keepdims=True) + pa.mean(x) + x.sum(axis=0, dtype=pa.float64)
    values, places = pa.topk(x, k=2)
    parts = pa.split(x, 2, axis=1) + pa.unstack(x)
    joined = pa.concat([pa.stack(parts), pa.take(x, indices, axis=0)], axis=None)
    clipped = pa.clip(x, min=0) + pa.maximum(x, 0) + pa.clip(x, max=total)
    normal = pa.layer_norm(x, eps=1e-6) + pa.layer_norm(x, weight) + pa.softmax(x, axis=-1) + pa.linear(x, weight)
    made = pa.zeros((2, 3), dtype="int32") + pa.ones_like(x) + pa.asarray([1, 2]).astype("float32") + pa.arange(3)
    summed = pa.einsum("ij,jk->ik", x, weight) + pa.reshape(x, (2, -1)) + pa.permute_dims(x, (1, 0)) + pa.squeeze(x, 0)
    summed = pa.expand_dims(pa.expand_dims(summed, 1), (0, -1)) + summed
    return values + places + joined + clipped + normal + made + summed + x.reshape(-1)


@pa.custom_vjp
def clipped(x: Array, limit: float = 1.0) -> Array:
    """Itself, with a gradient that is clipped."""
    return x


clipped.defvjp(lambda x, limit: (x, limit), lambda limit, g: (pa.clip(g, -limit, limit), None))


def gradients(x: Array) -> Array:
    """Functions that were given a gradient of their own, or are computed again, keep their types."""
    doubled = pa.custom_vjp(lambda a: a, lambda a: (a, None), lambda kept, g: (2 * g,))
    again = pa.checkpoint(clipped)
    assert_type(clipped(x, limit=0.5), Array)
    assert_type(again(x, 0.5), Array)
    value, pull = pa.vjp(doubled, x)
    slope: Array = pa.grad(lambda a: pa.sum(clipped(a, 0.5)))(x)
    pulled: Array = doubled(x) + pull(value)[0]
    return slope + pulled


@pa.compile(donate="y", constants=("times",))
def captured(x: Array, y: Array, times: int = 1) -> tuple[Array, float]:
    """A function that is captured."""
    return x * times + y, pa.evaluate(float, times)


def compiled(x: Array) -> Array:
    """Compiled functions keep their types."""
    assert_type(captured(x, y=x), tuple[Array, float])
    assert_type(pa.compile(compiled)(x), Array)
    print(captured.programs()[0])
    return captured(x, x, times=2)[0]


def training(x: Array, y: Array) -> float:
    """A step of an optimizer."""
    model, optimizer = Model(), pa.optim.AdamW(lr=1e-3)
    state = optimizer.init(model)

    def loss_of(model: Model, x: Array, y: Array) -> Array:
        return pa.mse(model(x), y)

    step: Callable[..., tuple[Array, Model]] = pa.value_and_grad(loss_of)
    with pa.use_backend("numpy"):
        loss, grads = step(model, x, y)
        model, state = optimizer.update(grads, state, model)
    pa.random.seed(1)
    chosen: list[pa.Spec] = [x.spec, pa.exp.plan((x.spec,), {}).out]  # an op is still an Op
    return float(loss) + float(pa.grad(pa.sum)(x)[0]) + len(chosen) + float(pa.finfo(pa.float32).eps)
