"""Muon: orthogonal steps of matrices, AdamW for all other arrays, and the same steps as PyTorch's Muon."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, optim
from polyarr.models import GPTModel

SHAPES = {"wide": (6, 20), "tall": (24, 8), "square": (9, 9)}


def arrays_of(seed, shapes):
    rng = np.random.default_rng(seed)
    return {name: pa.asarray(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}


def steps(optimizer, shapes, count=4):
    """Return the parameters and the state after steps with random gradients."""
    params = arrays_of(0, shapes)
    state = optimizer.init(params)
    for step in range(count):
        params, state = optimizer.update(arrays_of(step + 1, shapes), state, params)
    return params, state


def torch_steps(torch, settings, count=4):
    """Return what PyTorch's Muon makes of the parameters that `steps` has."""
    params = {name: torch.nn.Parameter(torch.tensor(p.numpy())) for name, p in arrays_of(0, SHAPES).items()}
    optimizer = torch.optim.Muon(params.values(), adjust_lr_fn="match_rms_adamw", **settings)
    for step in range(count):
        for name, g in arrays_of(step + 1, SHAPES).items():
            params[name].grad = torch.tensor(g.numpy())
        optimizer.step()
    return {name: p.detach().numpy() for name, p in params.items()}


@pytest.mark.parametrize("settings", [{}, {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.8}])
def test_steps_are_those_of_pytorch(backend, monkeypatch, settings):
    torch = pytest.importorskip("torch")
    with monkeypatch.context() as patch:  # PyTorch has bfloat16 only
        patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
        exact = torch_steps(torch, settings)
    found = steps(optim.Muon(dtype="float32", **settings), SHAPES)[0]
    for name, p in found.items():
        np.testing.assert_allclose(p.numpy(), exact[name], rtol=1e-5, atol=1e-5)
    wanted, before = torch_steps(torch, settings), arrays_of(0, SHAPES)
    for name, p in steps(optim.Muon(**settings), SHAPES)[0].items():  # both round to bfloat16, at other places
        way = wanted[name] - before[name].numpy()
        assert np.linalg.norm(p.numpy() - wanted[name]) < 0.03 * np.linalg.norm(way)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES.values())
def test_a_step_has_singular_values_of_about_one(backend, dtype, shape):
    optimizer = optim.Muon(lr=1.0, weight_decay=0.0, dtype=dtype)
    found, _ = steps(optimizer, {"w": shape}, count=1)
    moved = (arrays_of(0, {"w": shape})["w"] - found["w"]).numpy() / (0.2 * max(shape) ** 0.5)
    u, _, vt = np.linalg.svd(arrays_of(1, {"w": shape})["w"].numpy(), full_matrices=False)
    values = np.diag(u.T @ moved @ vt.T)  # on the gradient's own singular vectors
    assert 0.5 < values.min() and values.max() < 1.3
    off = u.T @ moved @ vt.T - np.diag(values)
    assert np.abs(off).max() < (1e-4 if dtype == "float32" else 0.1)


def test_stacked_matrices_step_as_each_alone(backend):
    stacked, optimizer = {"ff.expert_up.weight": (11, 6, 10)}, optim.Muon(dtype="float32")  # more experts than rows
    (whole,) = steps(optimizer, stacked)[0].values()
    for expert in (0, 10):
        p = {"w": arrays_of(0, stacked)["ff.expert_up.weight"][expert]}
        state = optimizer.init(p)
        for step in range(4):
            p, state = optimizer.update({"w": arrays_of(step + 1, stacked)["ff.expert_up.weight"][expert]}, state, p)
        np.testing.assert_allclose(whole[expert].numpy(), p["w"].numpy(), rtol=1e-5, atol=1e-6)


def test_matrices_decay_as_with_adamw():
    p, settings = arrays_of(0, SHAPES), {"lr": 0.05, "weight_decay": 0.2}
    none = {name: pa.zeros_like(a) for name, a in p.items()}
    found, expected = (o.update(none, o.init(p), p)[0] for o in (optim.Muon(**settings), optim.AdamW(**settings)))
    for name in SHAPES:
        np.testing.assert_allclose(found[name].numpy(), expected[name].numpy(), rtol=1e-6)


def test_other_arrays_step_as_with_adamw(backend):
    shapes = {"tok_emb.weight": (7, 4), "out_head.weight": (7, 4), "norm.weight": (4,), "conv.weight": (2, 3, 3, 3)}
    settings = {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.2, "clip": 0.5}
    expected, kept = steps(optim.AdamW(**settings), shapes)
    found, state = steps(optim.Muon(**settings), shapes)
    for name in shapes:
        assert np.array_equal(found[name].numpy(), expected[name].numpy())
        assert all(np.array_equal(state[m][name].numpy(), kept[m][name].numpy()) for m in "mv")


def test_a_gpt_has_these_matrices():
    sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
    model = GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False})
    state = optim.Muon().init(model)
    assert state["m"].keys() == model.named_parameters().keys()
    matrices = {f"blocks.0.{path}.weight" for path in ("att.qkv", "att.out", "ff.up", "ff.down")}
    assert state["m"].keys() - state["v"].keys() == matrices
    chosen = optim.Muon(matrices=lambda name, p: "att" in name).init(model)
    assert len(chosen["m"]) - len(chosen["v"]) == 2  # a bias is no matrix, whatever the function says


def test_clipping_and_frozen_and_missing_gradients(backend):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2).freeze())
    optimizer = optim.Muon(lr=0.1, clip=1.0, loss_scale=optim.LossScale(first=8.0))
    state = optimizer.init(model)
    grads = pa.grad(lambda m: pa.sum(m(pa.ones((5, 3)))) * optim.loss_scale(state))(model)
    new, after = optimizer.update(grads, state, model)
    assert np.array_equal(new.layers[1].weight.numpy(), model.layers[1].weight.numpy())
    assert not np.array_equal(new.layers[0].weight.numpy(), model.layers[0].weight.numpy())
    bad = pa.tree.map(lambda g: g * np.inf, grads)
    same, last = optimizer.update(bad, after, new)
    assert np.array_equal(same.layers[0].weight.numpy(), new.layers[0].weight.numpy())
    assert np.array_equal(last["m"]["layers.0.weight"].numpy(), after["m"]["layers.0.weight"].numpy())
    none, _ = optimizer.update(pa.tree.map(lambda g: None, grads), last, same)
    assert none is same


@pytest.mark.parametrize("dtype", [pa.float16, pa.bfloat16, pa.float64])
def test_momentum_is_wide_and_parameters_keep_their_dtype(dtype):
    p = {"a": pa.ones((2, 3), dtype=dtype)}
    optimizer = optim.Muon(lr=0.25)
    new, state = optimizer.update(p, optimizer.init(p), p)
    wide = pa.float64 if dtype == pa.float64 else pa.float32
    assert new["a"].dtype == dtype and state["m"]["a"].dtype == wide and not state["v"]


def test_settings_out_of_range_are_refused():
    for settings, message in (
        ({"dtype": "int8"}, r"^Muon: dtype is 'int8'; it must be 'bfloat16' or 'float32'$"),
        ({"momentum": 1.0}, r"^Muon: momentum is 1\.0; it must be below 1$"),
        ({"momentum": -1}, r"^Muon: momentum is -1; it must be at least 0$"),
    ):
        with pytest.raises(ValueError, match=message):
            optim.Muon(**settings)
    with pytest.raises(TypeError, match=r"^Muon: matrices is True; it must be a function of a name and an array$"):
        optim.Muon(matrices=True)


def test_sharding_is_refused():
    world = pa.distributed.init()
    with pytest.raises(ValueError, match=r"^Sharded: optimizer is Muon, .*; it must be another one$"):
        pa.distributed.Sharded(world, optim.Muon())
