"""Optimizers against their formulas in NumPy; schedules, clipping and state."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, optim


@pytest.fixture(autouse=True)
def _numpy_and_seed():
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        yield


def tree_of(*shapes):
    return {f"p{i}": pa.random.normal(shape) for i, shape in enumerate(shapes)}


def host(tree):
    return {name: leaf.numpy().astype(np.float64) for name, leaf in tree.items()}


def run(optimizer, steps=4):
    """Return the optimizer's result for a tree, and the gradients that it was given."""
    params = tree_of((3, 4), (5,))
    start, state, given = host(params), optimizer.init(params), []
    for _ in range(steps):
        grads = tree_of((3, 4), (5,))
        given.append(host(grads))
        params, state = optimizer.update(grads, state, params)
    return start, given, host(params), state


def adam_reference(start, given, lr, betas, eps, decay, decoupled):
    p, m, v = dict(start), {n: 0.0 for n in start}, {n: 0.0 for n in start}
    for t, grads in enumerate(given, 1):
        for n, g in grads.items():
            wd = decay if p[n].ndim >= 2 else 0.0
            g = g if decoupled else g + wd * p[n]
            p[n] = p[n] * (1 - lr * wd) if decoupled else p[n]
            m[n] = betas[0] * m[n] + (1 - betas[0]) * g
            v[n] = betas[1] * v[n] + (1 - betas[1]) * g * g
            p[n] = p[n] - lr * (m[n] / (1 - betas[0] ** t)) / (np.sqrt(v[n] / (1 - betas[1] ** t)) + eps)
    return p


@pytest.mark.parametrize(("kind", "decoupled"), [(optim.Adam, False), (optim.AdamW, True)])
def test_adam_matches_its_formula(kind, decoupled):
    start, given, found, state = run(kind(lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3))
    expected = adam_reference(start, given, 0.05, (0.8, 0.95), 1e-3, 0.3, decoupled)
    assert state["step"] == 4
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_matches_its_formula(momentum, nesterov):
    start, given, found, _ = run(optim.SGD(lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.2))
    p, velocity = dict(start), {n: 0.0 for n in start}
    for grads in given:
        for n, g in grads.items():
            g = g + (0.2 if p[n].ndim >= 2 else 0.0) * p[n]
            velocity[n] = momentum * velocity[n] + g
            p[n] = p[n] - 0.1 * (g + momentum * velocity[n] if nesterov else velocity[n])
    for name in p:
        np.testing.assert_allclose(found[name], p[name], rtol=1e-4, atol=1e-6)


def elementwise_reference(kind, p, kept, g, lr, decay):
    if kind is optim.Lion:
        step = np.sign(0.8 * kept + (1 - 0.8) * g)
        return p - lr * (step + decay * p), 0.95 * kept + (1 - 0.95) * g
    g = g + decay * p
    kept = 0.9 * kept + (1 - 0.9) * g * g if kind is optim.RMSprop else kept + g * g
    return p - lr * g / (np.sqrt(kept) + 1e-3), kept


ELEMENTWISE = [
    (optim.RMSprop, {"alpha": 0.9, "eps": 1e-3}), (optim.Adagrad, {"eps": 1e-3}), (optim.Lion, {"betas": (0.8, 0.95)}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings"), ELEMENTWISE)
def test_elementwise_optimizers_match_their_formulas(kind, settings):
    start, given, found, state = run(kind(lr=0.05, weight_decay=0.3, **settings))
    for name, p in start.items():
        kept = 0.0
        for grads in given:
            p, kept = elementwise_reference(kind, p, kept, grads[name], 0.05, 0.3 if p.ndim == 2 else 0.0)
        np.testing.assert_allclose(found[name], p, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(state[kind.moments[0]][name].numpy(), kept, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("kind", "settings"), ELEMENTWISE[:2])
def test_elementwise_optimizers_match_pytorch(kind, settings):
    torch = pytest.importorskip("torch")
    for given in ({}, {"lr": 0.05, "weight_decay": 0.3, **settings}):
        params = {"p0": pa.random.normal((3, 4))}
        p, optimizer = torch.nn.Parameter(torch.tensor(params["p0"].numpy())), kind(**given)
        theirs, state = getattr(torch.optim, kind.__name__)([p], **given), optimizer.init(params)
        for _ in range(4):
            grads = tree_of((3, 4))
            p.grad = torch.tensor(grads["p0"].numpy())
            theirs.step()
            params, state = optimizer.update(grads, state, params)
        np.testing.assert_allclose(params["p0"].numpy(), p.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [optim.RMSprop, optim.Adagrad, optim.Lion])
def test_elementwise_optimizers_compute_in_the_dtype_of_their_state(kind):
    step = []
    optimizer = kind(loss_scale=optim.LossScale(first=4.0), clip=1e3)
    update = pa.compile(lambda lr, *given: replace(optimizer, lr=lr).update(*given))
    for dtype in ("float16", "float32", "float64"):
        params = {"a": pa.asarray([1.0, -2.0], dtype=dtype)}
        new, state = update(pa.asarray(0.5), {"a": params["a"] * 4}, optimizer.init(params), params)
        kept = state[kind.moments[0]]["a"]
        assert new["a"].dtype == dtype and kept.dtype == ("float64" if dtype == "float64" else "float32")
        step.append(np.concatenate([new["a"].numpy(), kept.numpy()]).astype("float64"))
    np.testing.assert_allclose(step[0], step[2], rtol=2e-3)
    np.testing.assert_allclose(step[1], step[2], rtol=1e-5)


def test_decay_is_for_matrices_unless_the_predicate_says_otherwise():
    params, zeros = tree_of((2, 2), (2,)), {"p0": pa.zeros((2, 2)), "p1": pa.zeros((2,))}
    for decays, shrunk in ((optim.at_least_two_axes, {"p0"}), (lambda name, p: name == "p1", {"p1"})):
        optimizer = optim.AdamW(lr=0.5, weight_decay=0.5, decays=decays)
        new, _ = optimizer.update(zeros, optimizer.init(params), params)
        for name, p in params.items():
            factor = 0.75 if name in shrunk else 1.0
            np.testing.assert_allclose(new[name].numpy(), factor * p.numpy(), rtol=1e-6)


def test_biases_of_experts_neither_decay_nor_become_orthogonal():
    """They have two axes, (experts, out), as matrices have."""
    made = nn.MixtureOfExperts(4, 6, experts=3, per_token=2, bias=True).named_parameters()
    for predicate in (optim.at_least_two_axes, optim.hidden_matrices):
        assert {name for name, p in made.items() if not predicate(name, p)} == {n for n in made if n.endswith("bias")}


def test_clipping_scales_to_the_norm_and_leaves_small_gradients():
    grads = {"a": pa.asarray([3.0, 0.0]), "b": pa.asarray([[4.0]])}
    clipped, norm = optim.clip_by_global_norm(grads, 1.0)
    assert float(norm) == pytest.approx(5.0)
    np.testing.assert_allclose(clipped["a"].numpy(), [0.6, 0], rtol=1e-5)
    for wrong in (-1.0, np.nan):  # which would turn the gradients around, or make them nan
        with pytest.raises(ValueError, match=f"clip_by_global_norm: max_norm is {wrong}; it must be at least 0"):
            optim.clip_by_global_norm(grads, wrong)
    same, _ = optim.clip_by_global_norm(grads, 6.0)
    np.testing.assert_array_equal(same["b"].numpy(), [[4.0]])
    start = {"a": pa.zeros((2,)), "b": pa.zeros((1, 1))}
    optimizer = optim.SGD(lr=1.0, clip=1.0)
    new, _ = optimizer.update(grads, optimizer.init(start), start)
    np.testing.assert_allclose(new["b"].numpy(), [[-0.8]], rtol=1e-5)


def test_an_update_reads_nothing_from_the_device():
    params = tree_of((3, 4), (5,))
    optimizer = optim.AdamW(clip=0.1, lr=optim.warmup_cosine(1e-2, 2, 10))
    state, before = optimizer.init(params), pa.transfers()
    optimizer.update(params, state, params)
    assert pa.transfers() == before


def test_update_leaves_the_old_model_and_state_alone():
    model, x = nn.Linear(3, 2), pa.ones((4, 3))
    optimizer = optim.AdamW(lr=0.1)
    state, before = optimizer.init(model), model.weight.numpy()
    _, grads = pa.value_and_grad(lambda m: pa.sum(m(x)))(model)
    new, new_state = optimizer.update(grads, state, model)
    assert type(new) is nn.Linear and not np.array_equal(new.weight.numpy(), before)
    assert np.array_equal(model.weight.numpy(), before) and state["step"] == 0 and new_state["step"] == 1
    assert not state["m"]["weight"].numpy().any() and new_state["m"]["weight"].numpy().any()


def test_missing_gradients_leave_parameters_as_they_are():
    params = {"a": pa.ones((2, 2)), "b": pa.ones((2, 2)), "count": pa.asarray([3])}
    optimizer = optim.AdamW(lr=0.1, weight_decay=0.5)
    state = optimizer.init(params)
    assert set(state["m"]) == {"a", "b"}
    new, state = optimizer.update({"a": pa.ones((2, 2)), "b": None, "count": None}, state, params)
    assert np.array_equal(new["b"].numpy(), np.ones((2, 2))) and new["a"].numpy()[0, 0] < 1
    assert not state["m"]["b"].numpy().any() and int(new["count"][0]) == 3
    same, state = optimizer.update({"a": None, "b": None, "count": None}, state, new)
    assert state["step"] == 2 and same is new


def test_a_state_of_another_model_is_refused():
    optimizer = optim.Adam()
    with pytest.raises(ValueError, match=r"^Adam\.update: the state has no m for a; call init\(model\)$"):
        optimizer.update({"a": pa.ones((2,))}, optimizer.init({"b": pa.ones((2,))}), {"a": pa.ones((2,))})


def test_warmup_cosine_goes_up_then_down_to_the_floor():
    lr = optim.warmup_cosine(1.0, 10, 110, min_lr=0.1)
    values = [lr(i) for i in range(130)]
    assert values[0] == pytest.approx(1 / 11) and values[10] == 1.0 and max(values) == 1.0
    assert all(a < b for a, b in itertools.pairwise(values[:11]))
    assert all(a > b for a, b in itertools.pairwise(values[10:111]))
    assert lr(60) == pytest.approx(0.55) and values[110:] == pytest.approx([0.1] * 20)
    assert optim.warmup_cosine(1.0, 0, 0)(0) == 1.0 and optim.constant(0.3)(7) == 0.3


def test_warmup_linear_goes_up_then_down_in_lines():
    lr = optim.warmup_linear(1.0, 3, 7, min_lr=0.2)
    assert [lr(i) for i in range(9)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    assert optim.warmup_linear(1.0, 3, 7) != optim.warmup_cosine(1.0, 3, 7)
    with pytest.raises(TypeError, match=r"^warmup_linear\.__init__\(\) missing 1 required positional argument"):
        optim.warmup_linear(1.0, steps=7)


@pytest.mark.parametrize(
    ("schedule", "settings", "error", "message"),
    [
        (optim.constant, {"lr": -0.1}, ValueError, "constant: lr is -0.1; it must be at least 0"),
        (optim.constant, {"lr": "0.1"}, TypeError, "constant: lr is '0.1'; it must be a number"),
        (optim.warmup_cosine, {"lr": float("nan"), "warmup": 1, "steps": 9}, ValueError, "warmup_cosine: lr is nan; "),
        (optim.warmup_linear, {"lr": 1.0, "warmup": 1, "steps": 9, "min_lr": -1}, ValueError, "min_lr is -1; it must"),
        (optim.warmup_linear, {"lr": 1.0, "warmup": -1, "steps": 9}, ValueError, "warmup is -1; it must be at least 0"),
    ],
)
def test_a_schedule_has_no_negative_numbers(schedule, settings, error, message):
    """An optimizer refuses a negative rate, too: it would climb the loss."""
    with pytest.raises(error, match=message):
        schedule(**settings)


def test_the_schedule_decides_the_step():
    params, grads = {"a": pa.zeros((1,))}, {"a": pa.ones((1,))}
    optimizer = optim.SGD(lr=lambda step: 10.0**step)
    state = optimizer.init(params)
    for expected in (-1, -11, -111):
        params, state = optimizer.update(grads, state, params)
        assert float(params["a"]) == pytest.approx(expected)


def test_accumulated_gradients_are_those_of_the_whole_batch():
    model, x = nn.Linear(3, 2), pa.random.normal((6, 3))

    def loss_fn(m, x):
        return pa.mean(m(x) ** 2)

    loss, grads = pa.value_and_grad(loss_fn)(model, x)
    total, mean = optim.accumulate(loss_fn, model, [(x[:2],), (x[2:4],), (x[4:],)])
    assert float(total) == pytest.approx(float(loss), rel=1e-5)
    for a, b in zip(pa.tree.leaves(grads), pa.tree.leaves(mean), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="got no batches"):
        optim.accumulate(loss_fn, model, [])


@pytest.mark.parametrize("count", [1, 3])
def test_accumulation_returns_what_each_batch_did(count):
    def loss_fn(w, x):
        return w * x, {"twice": 2 * w * x}

    (loss, auxs), grads = optim.accumulate(
        loss_fn, pa.asarray(2.0), [(float(n),) for n in range(1, count + 1)], has_aux=True
    )
    assert (loss.item(), grads.item()) == (count + 1, (count + 1) / 2)
    assert [aux["twice"].item() for aux in auxs] == [4 * n for n in range(1, count + 1)]
    with pytest.raises(pa.GradientError, match=r"fn returned .*; it must return \(value, aux\), for has_aux$"):
        optim.accumulate(lambda w, x: w * x, pa.asarray(2.0), [(1.0,)], has_aux=True)


def test_optimizers_are_values():
    assert optim.AdamW(lr=1e-3) == optim.AdamW(lr=1e-3) != optim.AdamW(lr=1e-4)
    assert "weight_decay=0.01" in repr(optim.AdamW()) and optim.Adam().weight_decay == 0
    assert math.isclose(optim.AdamW(lr=optim.constant(0.5)).learning_rate(3), 0.5)


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
@pytest.mark.parametrize("dtype", [pa.float16, pa.bfloat16, pa.float64])
def test_moments_are_wide_and_parameters_keep_their_dtype(kind, dtype):
    params = {"a": pa.ones((2, 3), dtype=dtype)}
    grads = {"a": pa.full((2, 3), 1e-4, dtype=dtype)}
    optimizer = kind(lr=0.25)
    new, state = optimizer.update(grads, optimizer.init(params), params)
    wide = pa.float64 if dtype == pa.float64 else pa.float32
    assert new["a"].dtype == dtype and {state[m]["a"].dtype for m in optimizer.moments} == {wide}
    expected = 1 - 0.25 * (1e-4 if kind is optim.SGD else 1.01)
    np.testing.assert_allclose(new["a"].numpy().astype(np.float64), expected, rtol=1e-2)


def test_swapped_arguments_are_refused():
    model, optimizer = nn.Linear(3, 2), optim.AdamW(lr=0.1)
    state, x = optimizer.init(model), pa.ones((4, 3))
    grads = pa.grad(lambda m: pa.sum(m(x)))(model)
    with pytest.raises(ValueError, match=r"^AdamW\.update: model holds gradients; call update\(grads, state, model\)$"):
        optimizer.update(model, state, grads)
    scaled = pa.tree.map(lambda g: g * 0.5, grads)
    with pytest.raises(ValueError, match="model holds gradients"):
        optimizer.update(model, state, scaled)
    new, _ = optimizer.update(scaled, state, model)
    assert not new.is_gradient and "is_gradient" not in repr(grads)


@pytest.mark.parametrize("optimizer", [optim.SGD(lr=0.1, momentum=0.9), optim.AdamW(lr=0.1, clip=1.0)])
def test_what_is_no_gradient_or_no_state_is_refused(on_numpy, optimizer):
    model, name = nn.Linear(3, 2), type(optimizer).__name__
    state = optimizer.init(model)
    loss, grads = pa.value_and_grad(lambda m: pa.sum(m(pa.ones((4, 3)))))(model)
    for given, key in (((loss, grads), "0"), ([pa.ones(2)], "0"), ({"wieght": pa.ones((2, 3))}, "wieght")):
        with pytest.raises(ValueError, match=rf"^{name}\.update: grads has a gradient for '{key}', which "):
            optimizer.update(given, state, model)
    with pytest.raises(ValueError, match=rf"^{name}\.update: grads is None; it must be a tree like model; "):
        optimizer.update(None, state, model)
    with pytest.raises(ValueError, match="which model lacks"):
        optimizer.update(grads, state, None)
    for given in (model, None, {**state, "step": "1"}):
        with pytest.raises(TypeError, match=rf"^{name}\.update: state is \w+; it must be as init\(model\) makes it"):
            optimizer.update(grads, given, model)


def test_a_model_in_place_of_a_learning_rate_is_refused():
    model = nn.Linear(3, 2)
    refused = r"^Adam: lr is a .*; it must be a number or a function of the step; the model is given to init\(model\)$"
    for given in (model, model.parameters(), [*model.parameters().values()]):
        for settings in ({}, {"lr": 1e-3}):
            with pytest.raises(TypeError, match=refused):
                optim.Adam(given, **settings)
    with pytest.raises(TypeError, match=refused):
        optim.Adam(lr=model)
    assert optim.SGD(pa.asarray(0.1)).lr.shape == ()


@pytest.mark.parametrize(
    ("kind", "second"), [("SGD", 0.9), ("RMSprop", 0.99), ("AdamW", (0.9, 0.95)), ("Adagrad", 0.0), ("Muon", 0.1)]
)
def test_only_the_learning_rate_is_given_by_position(kind, second):
    optimizer = getattr(optim, kind)
    with pytest.raises(TypeError, match=rf"^{kind}: .* is given by position; only lr may be, name the others"):
        optimizer(0.1, second)  # PyTorch: momentum, alpha, betas, lr_decay, weight_decay
    assert optimizer(0.5, clip=1.0) == optimizer(lr=0.5, clip=1.0)


def test_settings_out_of_range_are_refused():
    for kind, setting in (
        (optim.SGD, {"lr": -1e-3}), (optim.SGD, {"lr": math.nan}), (optim.SGD, {"momentum": -1}),
        (optim.AdamW, {"clip": -1.0}), (optim.AdamW, {"eps": -1e-8}), (optim.Adam, {"weight_decay": -0.1}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"^{kind.__name__}: {next(iter(setting))} is .*; it must be at least 0$"):
            kind(**setting)
    with pytest.raises(ValueError, match=r"^Adam: betas\[1\] is 1; it must be at least 0 and below 1$"):
        optim.Adam(betas=(0.9, 1))


def test_clipping_float64_gradients_keeps_their_digits(backend):
    grads = {"a": pa.asarray(np.array([3.0, 4.0]) * (1 + 1e-12)), "b": pa.asarray(np.array([1e-9]))}
    clipped, norm = optim.clip_by_global_norm(grads, 1.0)
    exact = np.sqrt(25 * (1 + 1e-12) ** 2 + 1e-18)
    assert norm.dtype == pa.float64 and norm.item() == pytest.approx(exact, rel=1e-15)
    np.testing.assert_allclose(clipped["a"].numpy(), grads["a"].numpy() / (exact + 1e-6), rtol=1e-14)
    model = {"a": pa.zeros(2, dtype=pa.float64), "b": pa.zeros(1, dtype=pa.float64)}
    new, _ = optim.SGD(lr=1.0, clip=1.0).update(grads, optim.SGD().init(model), model)
    np.testing.assert_allclose(new["a"].numpy(), -clipped["a"].numpy(), rtol=1e-14)
    state = optim.AdamW().init(model)
    _, state = optim.AdamW(clip=1.0).update(grads, state, model)
    np.testing.assert_allclose(state["m"]["a"].numpy(), 0.1 * clipped["a"].numpy(), rtol=1e-13)
    mixed = [*grads.values(), pa.ones(3, dtype=pa.float16), pa.ones(3)]
    assert pa.global_norm(mixed).dtype == pa.float64 and pa.global_norm(mixed[2:]).dtype == pa.float32


# ---- loss scaling ----------------------------------------------------------------------------------------------


def halves(params):
    return {name: p.astype(pa.float16) for name, p in params.items()}


def tiny_loss(params, x):
    """Return a loss whose gradient, about 1e-8, is 0 in float16 unless the loss is scaled."""
    return pa.sum((x @ halves(params)["p0"]).astype(pa.float32)) * 1e-8


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
@pytest.mark.parametrize("clip", [None, 1e-9])
def test_a_scaled_loss_gives_the_steps_of_float32(kind, clip):
    params, x = {"p0": pa.zeros((3, 4))}, pa.ones((2, 3), dtype=pa.float16)
    exact, scaled = kind(lr=0.1, clip=clip), kind(lr=0.1, clip=clip, loss_scale=optim.LossScale())
    g = {"p0": pa.full((3, 4), 2e-8)}
    expected, _ = exact.update(g, exact.init(params), params)
    state = scaled.init(params)
    grads = pa.grad(lambda p: tiny_loss(p, x) * optim.loss_scale(state))(params)
    found, state = scaled.update(grads, state, params)
    assert grads["p0"].dtype == pa.float32 and optim.loss_scale(exact.init(params)) == 1.0
    assert np.abs(expected["p0"].numpy()).min() > 0
    np.testing.assert_allclose(found["p0"].numpy(), expected["p0"].numpy(), rtol=2e-3)


def test_a_step_without_finite_gradients_changes_nothing_but_the_scale(backend):
    params = {"p0": pa.ones((3,)), "p1": pa.ones((2, 2))}
    optimizer = optim.AdamW(lr=0.1, clip=1.0, loss_scale=optim.LossScale(first=1024.0, every=2))
    state = optimizer.init(params)
    good, bad = ({"p0": pa.full((3,), v), "p1": pa.ones((2, 2))} for v in (1.0, math.inf))
    params, state = optimizer.update(good, state, params)
    before, downloads = (params, state), pa.transfers().downloads
    params, state = optimizer.update(bad, state, params)
    assert pa.transfers().downloads == downloads  # nothing was read to decide
    for name, p in params.items():
        for now, then in ((p, before[0][name]), *((state[m][name], before[1][m][name]) for m in ("m", "v"))):
            assert now.tolist() == then.tolist()
    scales = []
    for grads in (good, good, good, {"p0": bad["p0"] * 0, "p1": good["p1"]}, good):
        scales.append(optim.loss_scale(state).item())
        params, state = optimizer.update(grads, state, params)
    assert [*scales, optim.loss_scale(state).item()] == [512, 512, 1024, 1024, 512, 512]
    assert all(np.isfinite(p.numpy()).all() for p in params.values())


def test_a_scale_has_an_end():
    params = {"p0": pa.zeros((2,))}
    optimizer = optim.SGD(loss_scale=optim.LossScale(first=2.0**23, every=1))
    state = optimizer.init(params)
    for _ in range(3):
        params, state = optimizer.update(params, state, params)
    assert optim.loss_scale(state).item() == 2.0**24


def test_a_state_without_its_scale_is_an_error():
    params = {"p0": pa.zeros((2,))}
    plain, scaled = optim.SGD(), optim.SGD(loss_scale=optim.LossScale())
    with pytest.raises(ValueError, match=r"^SGD.update: the state has no loss_scale; it must be as init"):
        scaled.update(params, plain.init(params), params)
    with pytest.raises(ValueError, match=r"^SGD.update: the state has a loss_scale"):
        plain.update(params, scaled.init(params), params)


@pytest.mark.parametrize("wrong", [{"first": 0.0}, {"growth": 0.5}, {"backoff": 1.0}, {"every": 0}])
def test_a_loss_scale_has_numbers_in_range(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"^LossScale: {name} is {value}; it must be"):
        optim.LossScale(**wrong)
