"""Arrays whose gradient is recorded: giving them to another library is an error, reading their values is none."""

import pickle
from collections import deque

import numpy as np
import pytest

import polyarr as pa
from polyarr.testing import graph_breaks

LEAVE = {
    "numpy.asarray": np.sort,
    "numpy": lambda x: x.numpy(),
    "__dlpack__": lambda x: np.from_dlpack(x, device="cpu"),
}


def within_grad(use, x):
    """Return what `use` returns for an array that a gradient transform records."""
    found = []

    def loss(x):
        found.append(use(x * 2))
        return pa.sum(x)

    pa.grad(loss)(x)
    return found[0]


@pytest.mark.parametrize("call", LEAVE)
@pytest.mark.parametrize("transform", [pa.grad, pa.value_and_grad, pa.hessian, lambda f: lambda x: pa.vjp(f, x),
    lambda f: lambda x: pa.jvp(f, (x,), (x,)), lambda f: pa.grad(pa.checkpoint(f)), lambda f: pa.compile(pa.grad(f))],
    ids=["grad", "value_and_grad", "hessian", "vjp", "jvp", "checkpoint", "compile"])  # fmt: skip
def test_an_array_with_a_gradient_does_not_leave(transform, call, backend):
    said = rf"^{call}: the gradient of float32\[3\] would be lost; compute with polyarr or by pa.custom_vjp, or take "
    with pytest.raises(pa.GradientError, match=said):
        transform(lambda x: pa.sum(x * pa.asarray(LEAVE[call](x * 2))))(pa.asarray([3.0, 1.0, 2.0]))


def test_an_array_of_an_outer_grad_does_not_leave(on_numpy):
    def outer(x):
        return pa.sum(x * pa.grad(lambda y: pa.sum(y * pa.asarray(x.numpy())))(x))

    with pytest.raises(pa.GradientError, match=r"^numpy: the gradient of"):
        pa.grad(outer)(pa.ones(3))


def test_a_sequence_of_other_type_does_not_leave(on_numpy):
    with pytest.raises(pa.GradientError, match=r"^numpy.asarray: the gradient of"):
        within_grad(lambda x: pa.asarray(deque([x, x])), pa.ones(3))


@pytest.mark.parametrize("read", [lambda x: float(x[0]), lambda x: f"{x[0]:.3f}", lambda x: x[0].item(), str, repr,
    lambda x: x.tolist(), lambda x: bool(x[0] > 0), lambda x: round(x[0], 1), lambda x: pa.stop_gradient(x).tolist(),
    lambda x: pa.stop_gradient(x).numpy().tolist(), lambda x: np.sort(pa.stop_gradient(x)).tolist(),
    lambda x: (x > 0).numpy().tolist(), lambda x: pa.argmax(x).numpy().tolist(),
    lambda x: pickle.loads(pickle.dumps(x)).tolist(), lambda x: x.to("numpy").tolist()])  # fmt: skip
def test_values_are_read_where_a_gradient_is_recorded(read, backend):
    x = pa.asarray([3.0, 1.0, 2.0])
    assert within_grad(read, x) == read(x * 2)


def test_what_is_recorded_can_be_saved(on_numpy, tmp_path):
    within_grad(lambda x: pa.save(tmp_path / "x.safetensors", {"x": x}), pa.asarray([3.0, 1.0]))
    assert pa.load(tmp_path / "x.safetensors")["x"].tolist() == [6, 2]


def test_an_array_leaves_after_the_transform(on_numpy):
    kept = within_grad(lambda x: x, pa.asarray([3.0, 1.0]))
    assert kept.node is not None and kept.numpy().tolist() == [6, 2]


def test_the_gradient_of_another_library_is_stated_by_custom_vjp(on_numpy):
    sinc = pa.custom_vjp(
        lambda x: pa.asarray(np.sinc(x)),
        lambda x: (pa.asarray(np.sinc(x)), x),
        lambda x, g: (g * pa.asarray(np.cos(np.pi * np.asarray(x)) - np.sinc(x)) / x,),
    )
    x = pa.asarray([0.25, 0.5])
    slope = pa.grad(lambda x: pa.sum(pa.special.sinc(x)))(x)
    np.testing.assert_allclose(pa.grad(lambda x: pa.sum(sinc(x)))(x), slope, rtol=1e-5)
    with pytest.raises(pa.GradientError, match=r"^numpy.asarray: the gradient of"):  # backward is differentiated, too
        pa.hessian(lambda x: pa.sum(sinc(x)))(x)


def test_graph_breaks_lists_what_is_an_error_otherwise(on_numpy):
    with graph_breaks() as found:
        within_grad(np.sort, pa.ones(3))
    assert [(place.call, place.leaves) for place in found] == [("np.sort()", "values, gradient")]
