"""Mixtures of experts beside NumPy's loop over tokens, and the linear layers whose weight each row chooses."""

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, ops
from polyarr.core import watch
from polyarr.ops.grouped import TILES_PER_GROUP, _tiles


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def expected(layer, x):
    """Return the output for x (N, C), one token and one expert at a time, in float64."""
    weights = {name: p.numpy().astype(np.float64) for name, p in layer.named_parameters().items()}
    found = []
    for row in x.astype(np.float64):
        probabilities = np.exp(weights["router.weight"] @ row + weights.get("router.bias", 0))
        probabilities /= probabilities.sum()
        chosen = np.argsort(-probabilities)[: layer.per_token]
        shares = probabilities[chosen] / (probabilities[chosen].sum() if layer.normalize else 1)
        y = 0
        for expert, share in zip(chosen, shares, strict=True):
            parts = ("gate", "up", "down")
            gate, up, down = (weights[f"expert_{part}.weight"][expert] for part in parts)
            has_bias = "router.bias" in weights
            biases = [weights[f"expert_{part}.bias"][expert] if has_bias else 0 for part in parts]
            gate, up = gate @ row + biases[0], up @ row + biases[1]
            if limit := layer.swiglu_limit:
                gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
                hidden = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            else:
                hidden = gated(gate) * up
            y += share * (down @ hidden + biases[2])
        if layer.shared:
            gate, up, down = (weights[f"shared.{part}.weight"] for part in ("gate", "up", "down"))
            y += down @ (gated(gate @ row) * (up @ row)) / (1 + np.exp(-weights["shared_gate.weight"][0] @ row))
        found.append(y)
    return np.stack(found)


def with_biases(layer):
    """Return the layer with random biases, which are zeros at first."""
    held = layer.named_parameters()
    return layer.with_arrays({n: pa.asarray(normal(*p.shape)) for n, p in held.items() if n.endswith("bias")})


class Products(watch.Observer):
    """The number of matrices of the second factor of each product."""

    def __init__(self):
        self.weights = []

    def begun(self, call):
        if call.op is ops.matrix_product:
            self.weights.append(call.specs[1].shape[0])


def gated(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalize": False},
        {"shared": 5},
        {"experts": 1, "per_token": 1},
        {"per_token": 7},
        {"bias": True},
        {"bias": True, "swiglu_limit": 2.0, "per_token": 4},
    ],
)
def test_a_mixture_is_numpys(rows, settings, backend):
    """The number of rows is small for a kernel of OpenCL, and large for tiles."""
    pa.random.seed(0)
    made = with_biases(nn.MixtureOfExperts(6, 9, **{"experts": 7, "per_token": 2, **settings}, init=nn.normal(1.0)))
    x = normal(rows, 6)
    np.testing.assert_allclose(made(pa.asarray(x)).numpy(), expected(made, x), rtol=1e-4, atol=1e-4)
    both = made.routed(pa.asarray(x[None]))
    np.testing.assert_array_equal(both.y.numpy()[0], made(pa.asarray(x)).numpy())
    counts, sums = both.load.numpy()
    assert counts.sum() == rows * made.per_token and sums.sum() == pytest.approx(rows, rel=1e-5)


def test_the_rows_of_a_result_depend_on_no_other_row_to_the_bit(backend):
    """On NumPy only for few rows: a product of BLAS may have other bits in the last rows of a tile."""
    weight, x = pa.asarray(normal(4, 33, 70)), normal(90, 70)
    for rows in (1, 2, 8) if backend.name == "numpy" else (1, 2, 8, 90):
        groups = np.arange(rows) % 3  # group 3 has no row
        found = pa.grouped_linear(pa.asarray(x[:rows]), weight, pa.asarray(groups)).numpy()
        order = np.random.default_rng(rows).permutation(rows)
        moved = pa.grouped_linear(pa.asarray(x[order]), weight, pa.asarray(groups[order])).numpy()
        np.testing.assert_array_equal(moved, found[order])


def test_gradients_of_experts_with_biases_match_finite_differences(backend):
    """In float64, along a random direction of each array; no gate or up is at its limit."""
    pa.random.seed(0)
    made = nn.MixtureOfExperts(4, 6, experts=3, per_token=2, bias=True, swiglu_limit=1.0, init=nn.normal(1.0))
    made = with_biases(made).astype("float64")
    x, slope = (pa.asarray(normal(9, 4, seed=seed).astype(np.float64)) for seed in (1, 2))
    grads = pa.grad(lambda m: (m(x) * slope).sum())(made).named_parameters()
    held = made.named_parameters()
    for name, p in held.items():
        direction = pa.asarray(normal(*p.shape, seed=3).astype(np.float64))
        ends = [float((made.with_arrays({name: p + h * direction})(x) * slope).sum()) for h in (1e-6, -1e-6)]
        found = float((grads[name] * direction).sum())
        assert abs(found) > 1e-3 and found == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6), name


@pytest.mark.parametrize("kind", ["int8", "q8_0", "q4_0"])
def test_the_rows_of_a_quantized_result_depend_on_no_other_row_to_the_bit(kind, backend):
    layer, x = nn.QuantizedLinear.of(pa.asarray(normal(4, 33, 64)), kind), normal(90, 64)
    for rows in (1, 8) if backend.name == "numpy" else (1, 8, 60, 90):
        groups = np.arange(rows) % 3
        found = layer(pa.asarray(x[:rows]), pa.asarray(groups)).numpy()
        order = np.random.default_rng(rows).permutation(rows)
        np.testing.assert_array_equal(layer(pa.asarray(x[order]), pa.asarray(groups[order])).numpy(), found[order])
        wanted = np.einsum("rk,rnk->rn", x[:rows], layer.weight.numpy()[groups])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["int8", "q8_0", "q4_0"])
@pytest.mark.parametrize("bias", [False, True])
def test_quantized_experts_compute_with_their_dequantized_weights(kind, bias, backend):
    """Also the gradient; the router has the bits that it had, or other experts would be chosen."""
    pa.random.seed(0)
    settings = {"experts": 5, "per_token": 2, "shared": 32, "init": nn.normal(0.3), "out_init": nn.normal(0.3)}
    made = with_biases(nn.MixtureOfExperts(64, 96, **settings, bias=bias))
    small = nn.quantized(made, kind)
    held = {name.rpartition(".")[2] for name in small.named_parameters() if name.startswith("expert_")}
    assert held == {"codes", "scale", *["bias"] * bias} and small.router.weight is made.router.weight
    for name in ("expert_gate", "expert_up", "expert_down"):
        of_one = nn.QuantizedLinear.of(getattr(made, name).weight[3], kind)
        np.testing.assert_array_equal(getattr(small, name).codes[3].numpy(), of_one.codes.numpy())
        getattr(made, name).weight = getattr(small, name).weight
    for name in ("gate", "up", "down"):
        getattr(made.shared, name).weight = getattr(small.shared, name).weight
    assert (small.expert_up.bias is made.expert_up.bias) and (small.expert_up.bias is not None) == bias
    for rows in (1, 6, 200):
        x, slope = pa.asarray(normal(rows, 64)), pa.asarray(normal(rows, 64, seed=1))
        np.testing.assert_allclose(small(x).numpy(), made(x).numpy(), rtol=1e-4, atol=2e-4)
        grads = [pa.grad(lambda x, m=m, slope=slope: (m(x) * slope).sum())(x).numpy() for m in (small, made)]
        np.testing.assert_allclose(grads[0], grads[1], rtol=1e-3, atol=1e-3 * np.abs(grads[1]).max())


@pytest.mark.parametrize("kind", [None, "q4_0"])
@pytest.mark.parametrize("bias", [False, True])
def test_experts_have_an_adapter_each(kind, bias, backend):
    """Also beside quantized weights; the output and gradients are those of a mixture with merged weights."""
    pa.random.seed(0)
    settings = {"experts": 5, "per_token": 2, "init": nn.normal(0.3), "out_init": nn.normal(0.3)}
    plain = with_biases(nn.MixtureOfExperts(32, 64, **settings, bias=bias))
    plain = plain if kind is None else nn.quantized(plain, kind)
    made = nn.lora(plain, rank=3, match="expert_*", alpha=6)
    x, slope = pa.asarray(normal(9, 32)), pa.asarray(normal(9, 32, seed=1))
    np.testing.assert_array_equal(made(x).numpy(), plain(x).numpy())
    trained = {name: pa.asarray(normal(*p.shape)) for name, p in made.named_parameters(only_trainable=True).items()}
    shapes = {name: p.shape for name, p in trained.items()}
    assert shapes["expert_down.a"] == (5, 3, 64) and shapes["expert_down.b"] == (5, 32, 3) and len(shapes) == 6
    made = made.with_arrays(trained)
    merged = nn.merge_lora(made)
    assert type(merged.expert_up) is nn.GroupedLinear
    one = plain.expert_up.weight[4] + 2 * trained["expert_up.b"][4] @ trained["expert_up.a"][4]
    np.testing.assert_allclose(merged.expert_up.weight[4].numpy(), one.numpy(), rtol=1e-5, atol=1e-5)
    for layer, dense in ((made, merged), (made.eval(), merged.eval())):
        wanted = dense(x).numpy()
        np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
    grads, dense = (pa.grad(lambda m: (m(x) * slope).sum())(m) for m in (made, merged))
    for name in ("expert_gate", "expert_up", "expert_down"):
        of_weight = getattr(dense, name).weight.numpy()  # of scale * b @ a
        a, b = (trained[f"{name}.{half}"].numpy() for half in "ab")
        found = getattr(grads, name)
        for g, due in ((found.b, 2 * of_weight @ a.swapaxes(1, 2)), (found.a, 2 * b.swapaxes(1, 2) @ of_weight)):
            np.testing.assert_allclose(g.numpy(), due, rtol=1e-3, atol=1e-4 * np.abs(due).max())


def test_at_most_a_part_of_the_experts_is_dequantized_at_a_time():
    with pa.use_backend("numpy"):
        layer = nn.QuantizedLinear.of(pa.asarray(normal(16, 32, 64)), "q4_0")
        for rows in (2, 40, 1000):
            products = Products()
            with watch.observing(products):
                layer(pa.ones((rows, 64)), pa.asarray(np.arange(rows) % 16))
            assert 0 < max(products.weights) <= -(-3 * 16 // 8)


def test_weights_are_copied_at_most_a_few_times_whatever_the_groups():
    """The number of tiles follows from the shapes, and they fit also if one group has all rows."""
    with pa.use_backend("numpy"):
        for rows, count in ((1, 5), (40, 5), (1000, 7), (12, 1)):
            for groups in (np.zeros(rows, int), np.arange(rows) % count, np.full(rows, -1)):
                slots, tile_groups, tile = _tiles(pa.asarray(groups), count)
                assert tile_groups.shape[0] <= min(rows, (TILES_PER_GROUP + 1) * count)
                found = tile_groups.numpy()[slots.numpy() // tile]
                np.testing.assert_array_equal(found, groups % count)
                assert len(set(slots.numpy().tolist())) == rows


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"experts": 2, "per_token": 3}, "MixtureOfExperts: per_token is 3; it must be from 1 to experts, 2"),
        ({"experts": 2, "per_token": 0}, "MixtureOfExperts: per_token is 0; it must be from 1 to experts, 2"),
        ({"experts": 2, "per_token": 1, "swiglu_limit": 0}, "MixtureOfExperts: swiglu_limit is 0; it must be positive"),
        ({"experts": 2, "per_token": 1, "activation": "tanh"}, "MixtureOfExperts: activation is 'tanh'; it must be"),
    ],
)
def test_wrong_settings_say_what_is_wrong(settings, message):
    with pytest.raises(ValueError, match="^" + message):
        nn.MixtureOfExperts(4, 4, **settings)


def test_wrong_shapes_and_groups_say_what_is_wrong(backend):
    weight, x = pa.asarray(normal(4, 2, 3)), pa.asarray(normal(5, 3))
    with pytest.raises(pa.ShapeError, match=r"they must be \[\.\.\., k\], \[e, n, k\] and \[\.\.\.\]"):
        pa.grouped_linear(x, weight, pa.asarray([0, 1]))
    with pytest.raises(IndexError, match="index 4 is out of range for an axis of length 4"):
        pa.grouped_linear(x, weight, pa.asarray([0, 1, 4, 0, 0])).numpy()
    codes, scale, groups = pa.ones((4, 2, 3), dtype="int8"), pa.ones((4, 2)), pa.asarray([0, 1, 3, 0, 0])
    with pytest.raises(pa.ShapeError, match=r"\[\.\.\., k\], \[e, n, k\] and \[e, n\] or \[e, n, k / 32\]"):
        pa.quantized_grouped_linear(x, codes[0], scale, groups)
    with pytest.raises(pa.ShapeError, match="the axes of groups must be those of x but the last, and e at least 1"):
        pa.quantized_grouped_linear(x, codes, scale, groups[1:])
    with pytest.raises(TypeError, match="quantized_grouped_linear: codes is float32"):
        pa.quantized_grouped_linear(x, weight, scale, groups)
    with pytest.raises(IndexError, match="index 4 is out of range for an axis of length 4"):
        pa.quantized_grouped_linear(x, codes, scale, groups + 1).numpy()


def test_the_balance_loss_is_least_for_equal_loads():
    with pa.use_backend("numpy"):
        assert float(nn.balance_loss(pa.asarray([[4.0, 4.0], [2.0, 2.0]]), 4)) == 2  # two experts for each token
        assert float(nn.balance_loss(pa.asarray([[4.0, 0.0], [3.0, 1.0]]), 4)) == 1.5
