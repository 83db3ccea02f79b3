"""Norms of images: ops, layers, and running statistics returned by a training step."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops, optim
from polyarr.core.errors import ShapeError

X = np.random.default_rng(0).standard_normal((6, 4, 3)).astype("float32") * 2 + 1


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


class Net(nn.Module):
    """Two batch norms, one of them in a list."""

    def __init__(self, recompute=False):
        self.first, self.norm = nn.Linear(3, 8), nn.BatchNorm(8)
        self.rest = [nn.BatchNorm(8, momentum=0.3), nn.Linear(8, 2)]
        self.recompute = recompute

    def __call__(self, x):
        def hidden(norm, x):
            return ops.relu(norm(self.first(x)))

        x = pa.checkpoint(hidden)(self.norm, x) if self.recompute else hidden(self.norm, x)
        for layer in self.rest:
            x = layer(x)
        return x


def loss_of(model, x):
    with nn.observing(model) as (model, seen):
        loss = pa.mean(pa.square(model(x) - 1))
    return loss, seen


OPTIMIZER = optim.SGD(0.1)


def step(model, state, x):
    (loss, seen), grads = pa.value_and_grad(loss_of, has_aux=True)(model, x)
    model, state = OPTIMIZER.update(grads, state, model)
    return loss, model.with_arrays(seen), state


def trained(model, fn, steps=3):
    state = OPTIMIZER.init(model)
    for i in range(steps):
        loss, model, state = fn(model, state, pa.asarray(X + i))
    return {"loss": loss.numpy(), **{name: a.numpy() for name, a in model.named_parameters().items()}}


def new(**settings):
    pa.random.seed(3)
    return Net(**settings)


def test_running_statistics_move_by_a_share_towards_those_of_the_batch(backend):
    model, x = nn.BatchNorm(3, momentum=0.2), pa.asarray(X)
    with nn.observing(model) as (observed, seen):
        y = observed(x)
    rows = X.reshape(-1, 3)
    close(y, (X - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-5))
    close(seen["statistics.mean"], 0.2 * rows.mean(0))
    close(seen["statistics.variance"], 0.8 + 0.2 * rows.var(0, ddof=1))
    assert model.statistics.mean.tolist() == [0, 0, 0] and model.statistics.variance.tolist() == [1, 1, 1]
    after = model.with_arrays(seen).eval()
    close(after(x), (X - 0.2 * rows.mean(0)) / np.sqrt(0.8 + 0.2 * rows.var(0, ddof=1) + 1e-5))


def test_a_layer_that_is_called_twice_moves_twice(on_numpy):
    model = nn.BatchNorm(3)
    with nn.observing(model) as (observed, seen):
        observed(observed(pa.asarray(X)) + 1)
    close(seen["statistics.mean"], 0.9 * 0.1 * X.reshape(-1, 3).mean(0) + 0.1)


def test_a_step_is_the_same_compiled_and_with_recomputation(backend):
    plain = trained(new(), step)
    assert set(plain) > {"norm.statistics.mean", "rest.0.statistics.variance"}
    assert not np.allclose(plain["rest.0.statistics.mean"], 0)
    for model, fn in ((new(), pa.compile(step)), (new(recompute=True), step), (new(recompute=True), pa.compile(step))):
        found = trained(model, fn)
        for name, expected in plain.items():
            np.testing.assert_array_equal(found[name], expected, err_msg=name)


def test_statistics_have_no_gradient_and_no_moments_and_are_never_unfrozen(on_numpy):
    model = new()
    (_, seen), grads = pa.value_and_grad(loss_of, has_aux=True)(model, pa.asarray(X))
    assert grads.norm.statistics.mean is None and grads.norm.weight is not None
    assert all(a.node is None for a in seen.values())
    assert "norm.statistics.mean" not in optim.AdamW().init(model)["m"]
    model.freeze().unfreeze()
    assert "norm.statistics.mean" not in model.named_parameters(only_trainable=True)
    assert "norm.weight" in model.named_parameters(only_trainable=True)


def test_in_mixed_precision_statistics_stay_float32(backend):
    model = new()
    close(loss_of(model, pa.asarray(X))[1]["norm.statistics.mean"], np.zeros(8), 1)

    def mixed(model, x):
        return loss_of(model.astype(pa.bfloat16), x.astype(pa.bfloat16))

    (_, seen), grads = pa.value_and_grad(mixed, has_aux=True)(model, pa.asarray(X))
    assert grads.norm.weight.dtype == pa.float32
    for name, expected in loss_of(model, pa.asarray(X))[1].items():
        assert seen[name].dtype == pa.float32
        close(seen[name], expected.numpy(), 0.02)
    narrow = model.astype(pa.float16)
    assert narrow.norm.weight.dtype == pa.float16 and narrow.norm.statistics.variance.dtype == pa.float32
    assert narrow.eval()(pa.asarray(X, dtype=pa.float16)).dtype == pa.float16


def test_statistics_are_saved_and_loaded(on_numpy, tmp_path):
    _, model, _ = step(new(), OPTIMIZER.init(new()), pa.asarray(X))
    pa.save(tmp_path / "model.safetensors", model)
    other = new().load_parameters(pa.load(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(other.eval()(pa.asarray(X)).numpy(), model.eval()(pa.asarray(X)).numpy())


def test_two_models_may_be_observed_together(on_numpy):
    with nn.observing((nn.BatchNorm(3), nn.BatchNorm(3).eval())) as ((first, second), seen):
        second(first(pa.asarray(X)))
    assert set(seen) == {"0.statistics.mean", "0.statistics.variance"}


def test_a_training_call_that_would_lose_its_statistics_says_so(on_numpy):
    required = r"call it within `with nn.observing\(model\) as \(model, seen\):`, or call model.eval\(\) first$"
    with pytest.raises(RuntimeError, match=rf"^BatchNorm: in training mode, .* would be lost; {required}"):
        new()(pa.asarray(X))
    new().eval()(pa.asarray(X))


def test_errors_are_one_line(on_numpy):
    x, model = pa.asarray(X), nn.BatchNorm(3)
    for fn, kind, text in (
        (
            lambda: ops.batch_norm(x, pa.ones(4)),
            ShapeError,
            r"^batch_norm: weight is float32\[4\], x is float32\[6, 4, 3",
        ),
        (lambda: ops.batch_norm(x[:0]), ShapeError, r"^batch_norm: x is float32\[0, 4, 3\]; each channel must have at"),
        (lambda: ops.batch_norm(x[0, 0]), ShapeError, r"^batch_norm: x is float32\[3\]; it must have an axis for the"),
        (
            lambda: ops.batch_norm_inference(x, pa.ones(3), pa.ones(2)),
            ShapeError,
            r"^batch_norm_inference: variance is",
        ),
        (lambda: ops.group_norm(x, groups=2), ShapeError, r"groups is 2; it must divide the 3 channels$"),
        (lambda: ops.group_norm(x, groups=1.5), TypeError, r"^group_norm: groups is 1.5; it must be an int$"),
        (lambda: ops.instance_norm(x[0]), ShapeError, r"^instance_norm: x is float32\[4, 3\]; it must have an axis be"),
        (
            lambda: model.with_arrays({"mean": x}),
            ValueError,
            r"^with_arrays: unknown mean; names must be of named_para",
        ),
        (lambda: model.with_arrays({"bias": x}), ShapeError, r"^with_arrays: bias is float32\[6, 4, 3\]; it must be f"),
    ):
        with pytest.raises(kind, match=text) as caught:
            fn()
        assert "\n" not in str(caught.value)
    with nn.observing(model) as (observed, _), pytest.raises(ShapeError, match=r"^BatchNorm: x is float32\[1, 3\]; in"):
        observed(x[0, :1])
