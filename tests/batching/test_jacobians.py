"""jacrev, jacfwd, hessian and linearize, against finite differences and known derivatives."""

import math

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.core.backend import Backend
from polyarr.core.errors import GradientError
from tests.helpers.examples import close, given

pytestmark = pytest.mark.usefixtures("on_numpy")

X = np.array([0.7, -1.2, 0.4, 1.9])
M = np.random.default_rng(3).standard_normal((3, 4))
FUNCTIONS = {
    "sin": pa.sin,
    "product": lambda x: x[:2] * x[2:],
    "matrix": lambda x: pa.tanh(pa.asarray(M) @ x),
    "outer": lambda x: x[:, None] * pa.exp(x),
    "sum": lambda x: pa.sum(x**3),
    "prod": pa.prod,
    "norm": pa.linalg.vector_norm,
    "softmax": pa.softmax,
    "log_softmax": pa.log_softmax,
    "layer_norm": pa.layer_norm,
    "logsumexp": pa.logsumexp,
    "cumulative": lambda x: pa.cumulative_sum(x * x),
    "sort": lambda x: pa.sort(x) * x,
    "max": lambda x: pa.max(x) * x,
    "where": lambda x: pa.where(x > 0, x * x, pa.sin(x)),
    "gather": lambda x: x[pa.asarray([0, 3, 3, 1])] * x[0],
    "in place": lambda x: _changed(x),
    "inverse": lambda x: pa.linalg.inv(pa.reshape(x, (2, 2)) + pa.eye(2, dtype="float64") * 3),
    "determinant": lambda x: pa.linalg.det(pa.reshape(x, (2, 2))),
    "attention": lambda x: pa.attention(pa.reshape(x, (2, 2)), pa.reshape(pa.cos(x), (2, 2)), pa.reshape(x, (2, 2))),
    "convolution": lambda x: pa.conv(pa.reshape(x, (1, 4, 1)), pa.reshape(x[:2], (1, 2, 1))),
    "scan": lambda x: pa.scan(lambda c, a: (pa.sin(c) * a, c + a), x[0], x)[1],
    "checkpoint": pa.checkpoint(lambda x: pa.exp(pa.sin(x)) * x[0]),
    "compiled": pa.compile(lambda x: pa.exp(pa.sin(x)) * x[0]),
    "gradient": pa.grad(lambda x: pa.sum(pa.tanh(x) ** 3 * x[0])),
}


def _changed(x):
    y = x * 2
    y[1:] = y[:-1] * x[1:]
    return y


def numeric(fn, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Return the jacobian by central differences."""
    columns = [(fn(x + step * e) - fn(x - step * e)) / (2 * step) for e in np.eye(x.size)]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobians_are_those_of_finite_differences(name) -> None:
    fn, x = FUNCTIONS[name], pa.asarray(X)
    due = numeric(lambda a: fn(pa.asarray(a)).numpy(), X)
    close(pa.jacrev(fn)(x), due, 1e-6)
    close(pa.jacfwd(fn)(x), due, 1e-6)
    close(pa.vmap(pa.jacrev(fn))(pa.stack([x, x * 0.5]))[0], due, 1e-6)
    close(pa.compile(pa.jacfwd(fn))(x), due, 1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessians_are_those_of_finite_differences(name) -> None:
    fn, x = FUNCTIONS[name], pa.asarray(X)
    due = numeric(lambda a: pa.jacrev(fn)(pa.asarray(a)).numpy(), X)
    close(pa.hessian(fn)(x), due, 1e-6)
    close(pa.jacrev(pa.jacrev(fn))(x), due, 1e-6)
    close(pa.jacrev(pa.jacfwd(fn))(x), due, 1e-6)


def test_jacobians_in_float32_on_every_backend(backend: Backend) -> None:
    w, x = given(3, 5), given(3)
    fn = lambda w, x: pa.layer_norm(pa.tanh(x @ w))
    for at in (0, 1):
        close(pa.jacrev(fn, at)(w, x), pa.jacfwd(fn, at)(w, x).numpy(), 1e-4)
    assert pa.hessian(lambda x: pa.sum(pa.softmax(x @ w) ** 2))(x).shape == (3, 3)


def test_trees_of_values_and_arguments() -> None:
    given_tree = {"a": pa.asarray(X), "n": pa.asarray([1, 2])}
    fn = lambda t, y: {"p": t["a"] * y, "q": [pa.sum(t["a"] ** 2)]}
    for transform in (pa.jacrev, pa.jacfwd):
        found = transform(fn, argnums=(0, 1))(given_tree, pa.asarray(2.0, dtype="float64"))
        close(found["p"][0]["a"], 2 * np.eye(4))
        assert found["p"][0]["n"] is None
        close(found["p"][1], X)
        close(found["q"][0][0]["a"], 2 * X)
        close(found["q"][0][1], 0.0)


def test_a_module_and_aux() -> None:
    model = nn.Linear(3, 2)
    x = given(3)
    found, aux = pa.jacrev(lambda m, x: (m(x), x.shape), has_aux=True)(model, x)
    close(found.bias, np.eye(2))
    close(found.weight, np.stack([np.outer(e, x.numpy()) for e in np.eye(2)]))
    assert aux == (3,)
    assert pa.jacfwd(lambda x: (x * x, "kept"), has_aux=True)(x)[1] == "kept"
    second, aux = pa.hessian(lambda x: (pa.sum(x**3), pa.sum(x)), has_aux=True)(x)
    close(second, np.diag(6 * x.numpy()))
    close(aux, x.numpy().sum())


def test_the_hessian_of_a_module_with_several_arrays() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model = pa.tree.map(lambda a: pa.astype(a, "float64"), model)
    x = given(3)
    loss = lambda m: pa.sum(pa.tanh(m(x)) ** 2)
    names, shapes = zip(*((name, a.shape) for name, a in model.named_parameters().items()), strict=True)
    sizes = np.cumsum([math.prod(shape) for shape in shapes])
    flat = pa.concat([pa.reshape(a, -1) for a in model.named_parameters().values()])

    def of_flat(w):
        parts = pa.split(w, [int(n) for n in sizes[:-1]])
        return loss(pa.tree.unflatten(model, [pa.reshape(p, s) for p, s in zip(parts, shapes, strict=True)]))

    due = pa.hessian(of_flat)(flat).numpy()
    found = pa.tree.by_name(pa.hessian(loss)(model))
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            rows, columns = (slice(sizes[k] - math.prod(shapes[k]), sizes[k]) for k in (i, j))
            close(found[f"{one}.{other}"], due[rows, columns].reshape(*shapes[i], *shapes[j]))


@pytest.mark.parametrize("transform", [pa.jacrev, pa.jacfwd])
def test_empty_values_and_arguments(transform) -> None:
    assert transform(lambda x: x[:0])(given(3)).shape == (0, 3)
    assert transform(lambda x: pa.sum(x) * pa.ones(2))(given(0)).shape == (2, 0)


def test_linearize_pushes_many_tangents_after_one_call() -> None:
    calls = []

    def fn(x, y):
        calls.append(1)
        return {"a": x * y, "b": pa.sum(x)}

    x, y = given(3), given(3)
    value, push = pa.linearize(fn, x, y)
    close(value["a"], x.numpy() * y.numpy())
    for _ in range(2):
        tangent = push(pa.ones(3), None)
        close(tangent["a"], y.numpy())
        close(tangent["b"], 3.0)
    tangents = given(5, 3)
    close(pa.vmap(push)(tangents, tangents)["a"], tangents.numpy() * (x.numpy() + y.numpy()))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: pa.jacrev(3), GradientError, "jacrev: fn is a int; it must be a function"),
        (lambda x: pa.jacfwd(pa.sin)(pa.asarray([1])), GradientError, "jacfwd: no floating-point array"),
        (lambda x: pa.jacrev(pa.argmax)(x), GradientError, r"jacrev: fn returned int64\[\]"),
        (lambda x: pa.jacrev(lambda x: 3.0)(x), GradientError, "jacrev: fn returned a float"),
        (lambda x: pa.jacfwd(pa.sin, 2)(x), GradientError, "jacfwd: argnums names argument 2 of 1"),
        (lambda x: pa.jacrev(pa.sin, has_aux=True)(x), GradientError, r"\(value, aux\), for has_aux"),
        (lambda x: pa.linearize(pa.sin, x)[1](), GradientError, "linearize: tangents are"),
        (lambda x: pa.linearize(pa.sin, x)[1](x[:1]), pa.ShapeError, "linearize: a tangent is"),
        (lambda x: pa.linearize(pa.sin, x)[1]({"a": x}), GradientError, "they must be like the arguments"),
    ],
)
def test_errors_have_one_line(call, error, message) -> None:
    with pytest.raises(error, match=message) as caught:
        call(pa.asarray(X))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("of", [pa.jacrev, pa.jacfwd, pa.hessian])
def test_a_checkpoint_that_closes_over_the_argument_has_its_jacobian(backend: Backend, of) -> None:
    def fn(wrap):
        def outer(x):
            h = x * 2.0
            value = wrap(lambda y: pa.softmax(h * y) + pa.ones(3) * x)(x + 1) ** 2
            return pa.sum(value) if of is pa.hessian else value

        return outer

    x = given(3)
    close(of(fn(pa.checkpoint))(x), of(fn(lambda f: f))(x).numpy())
    mapped = pa.vmap(of(fn(pa.checkpoint)))(pa.stack([x, x * 2]))
    close(mapped[1], of(fn(lambda f: f))(x * 2).numpy(), 1e-4)


@pytest.mark.parametrize("jacobian", [pa.jacrev, pa.jacfwd, pa.hessian])
def test_dropout_has_its_jacobian(backend: Backend, jacobian) -> None:
    x, layer = given(8), nn.Dropout(0.5)
    power = (lambda x: pa.sum(layer(x) ** 2)) if jacobian is pa.hessian else layer
    pa.random.seed(3)
    found = jacobian(power)(x)
    pa.random.seed(3)
    factors = layer(pa.ones(8)).numpy()  # 0 or 2
    assert {*factors} == {0, 2}
    close(found, np.diag(2 * factors**2 if jacobian is pa.hessian else factors))
