"""Modules as trees, and layers against NumPy."""

import math

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn
from polyarr.core.errors import DtypeError, GradientError, ShapeError


class Tiny(nn.Module):
    """A module with every kind of attribute."""

    def __init__(self):
        self.first = nn.Linear(3, 4)
        self.width = 4
        self.many = [nn.Linear(4, 4, bias=False), nn.ReLU(), {"scale": pa.ones((4,))}]
        self.pair = (pa.zeros((2,)), nn.Dropout(0.5))
        self.names = ["a", "b"]
        self.nothing = None

    def __call__(self, x):
        return self.many[1](self.many[0](self.first(x))) * self.many[2]["scale"]


NAMES = ["first.weight", "first.bias", "many.0.weight", "many.2.scale", "pair.0"]


@pytest.fixture(autouse=True)
def _numpy_and_seed():
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        yield


def same(tree, other):
    left, right = pa.tree.leaves(tree), pa.tree.leaves(other)
    return [a.shape for a in left] == [b.shape for b in right] and all(
        np.array_equal(a.numpy(), b.numpy()) for a, b in zip(left, right, strict=True)
    )


# ---- the tree ------------------------------------------------------------------------------------------------


def test_children_are_arrays_in_order_of_assignment():
    model = Tiny()
    assert list(model.named_parameters()) == NAMES
    assert model.num_parameters() == 12 + 4 + 16 + 4 + 2
    assert model.parameters()["many"][2]["scale"].shape == (4,)
    assert set(model.parameters()["first"]) == {"weight", "bias"}


def test_gradient_is_a_module_of_the_same_structure_and_maps_with_it():
    model, x = Tiny(), pa.ones((2, 3))
    _, grads = pa.value_and_grad(lambda m: pa.mean(m(x) ** 2))(model)
    assert type(grads) is Tiny and list(grads.named_parameters()) == NAMES and grads.width == 4
    by_module = pa.tree.map(lambda p, g: p - g, model, grads)
    by_dict = pa.tree.map(lambda p, g: p - g, model.parameters(), grads.parameters())
    mixed = pa.tree.map(lambda p, g: p - g, model, grads.parameters())
    assert type(by_module) is Tiny and type(by_dict) is dict
    assert same(by_module, by_dict) and same(by_module, mixed) and not same(by_module, model)


def test_map_leaves_the_old_module_alone():
    model = Tiny()
    before = model.first.weight.numpy()
    doubled = pa.tree.map(lambda p: p * 2, model)
    assert np.array_equal(model.first.weight.numpy(), before)
    assert np.array_equal(doubled.first.weight.numpy(), 2 * before)
    assert doubled.first is not model.first and doubled.many is not model.many


def test_train_and_eval_reach_every_module_and_copies_are_apart():
    model = Tiny()
    other = model.copy().eval()
    assert not any(m.training for m in other.modules()) and all(m.training for m in model.modules())
    assert other.train() is other and other.pair[1].training
    assert len(list(model.modules())) == 5


def test_repr_shows_shapes_and_joins_equal_members():
    text = repr(nn.Sequential(nn.Linear(2, 3), nn.Linear(2, 3), nn.GELU()))
    assert "2 x Linear(activation=None, weight: float32[3, 2], bias: float32[3])" in text
    assert "GELU(approximate='none')" in text


def test_shapes_only_makes_a_model_without_memory():
    with nn.shapes_only():
        model = nn.Linear(10**6, 10**6)
    assert model.num_parameters() == 10**12 + 10**6
    with nn.shapes_only():
        small = nn.Linear(2, 3)
    full = nn.Linear(2, 3)
    assert same(small.load_parameters(full.state_dict()), full)


# ---- loading -------------------------------------------------------------------------------------------------


def test_load_parameters_takes_numpy_and_keeps_identity():
    model, first = Tiny(), None
    first = model.first
    named = {name: np.full(p.shape, i, np.float64) for i, (name, p) in enumerate(model.state_dict().items())}
    assert model.load_parameters(named) is model and model.first is first
    for i, p in enumerate(model.named_parameters().values()):
        assert p.dtype == pa.float32 and np.all(p.numpy() == i)


def test_numbers_beside_arrays_in_a_dict_are_no_parameters(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            self.parts = {"layer": nn.Linear(2, 2), "scale": 3.0, "nothing": None}

    model = Scaled()
    assert list(model.named_parameters()) == ["parts.layer.weight", "parts.layer.bias"]
    assert model.num_parameters() == 6
    assert "scale: 3.0\n    nothing: None\n" in repr(model)
    bias = pa.asarray([1.0, 2.0])
    changed = model.with_arrays({"parts.layer.bias": bias})
    assert changed.parts["scale"] == 3.0
    pa.save(tmp_path / "model.safetensors", changed)
    for named in (changed.state_dict(), pa.load(tmp_path / "model.safetensors")):
        loaded = Scaled().load_parameters(named)
        assert loaded.parts["scale"] == 3.0
        np.testing.assert_array_equal(loaded.parts["layer"].bias.numpy(), bias.numpy())
    with pytest.raises(ValueError, match=r"unknown parts\.scale"):
        model.with_arrays({"parts.scale": bias})


def test_load_parameters_names_what_does_not_fit_and_changes_nothing():
    model = Tiny()
    before = model.copy()
    wrong = {**model.state_dict(), "many.0.weight": np.zeros((4, 5))}
    with pytest.raises(
        ShapeError, match=r"^load_parameters: many\.0\.weight is \[4, 5\]; it must be \[4, 4\]$"
    ):
        model.load_parameters(wrong)
    some = {name: p for name, p in model.state_dict().items() if name != "first.bias"}
    with pytest.raises(ValueError, match=r"missing first\.bias; unknown extra"):
        model.load_parameters({**some, "extra": np.zeros(1)})
    assert same(model, before)


def test_a_state_dict_of_pytorch_leads_to_what_to_convert(on_numpy):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm(4))
    own = model.state_dict()
    named = {name.replace("statistics.mean", "running_mean"): array for name, array in own.items()}
    with pytest.raises(ValueError, match=r"named_parameters\(\); docs/images\.md converts a state_dict of PyTorch$"):
        model.load_parameters(named)
    with pytest.raises(ShapeError, match=r"is \[4, 2, 3, 3\]; it must be \[4, 3, 3, 2\]; move axis 1, the channels, "):
        model.load_parameters(own | {"layers.0.weight": np.ones((4, 2, 3, 3), "float32")})
    with pytest.raises(ShapeError, match=r"is \[4, 2, 3, 5\]; it must be \[4, 3, 3, 2\]$"):
        model.load_parameters(own | {"layers.0.weight": np.ones((4, 2, 3, 5), "float32")})
    with pytest.raises(TypeError, match=r"^load_parameters: unknown argument strict \(write model\.with_arrays"):
        model.load_parameters({}, strict=False)


# ---- layers --------------------------------------------------------------------------------------------------


def test_default_initialisation_is_bounded_and_seeded():
    pa.random.seed(5)
    layer = nn.Linear(100, 50)
    pa.random.seed(5)
    assert same(layer, nn.Linear(100, 50))
    weight = layer.weight.numpy()
    assert np.abs(weight).max() <= 0.1 and 0.09 < np.abs(weight).max() and abs(weight.mean()) < 0.005
    embedding = nn.Embedding(200, 50).weight.numpy()
    assert abs(embedding.std() - 1) < 0.03


def test_linear_with_activation_matches_numpy():
    layer, x = nn.Linear(3, 4, activation="relu"), pa.random.normal((2, 5, 3))
    expected = np.maximum(x.numpy() @ layer.weight.numpy().T + layer.bias.numpy(), 0)
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert nn.Linear(3, 4, bias=False).bias is None


def test_norms_match_numpy():
    x = pa.random.normal((4, 6)) * 3 + 5
    host = x.numpy().astype(np.float64)
    centred = host - host.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(nn.LayerNorm(6)(x).numpy(), expected, rtol=1e-4, atol=1e-5)
    rms = host / np.sqrt((host**2).mean(-1, keepdims=True) + 1e-6)
    for layer in (nn.RMSNorm(6), nn.RMSNorm(6, offset=1.0)):
        np.testing.assert_allclose(layer(x).numpy(), rms, rtol=1e-5)


def test_dropout_works_in_training_only():
    layer, x = nn.Dropout(0.25), pa.ones((100, 100))
    y = layer(x).numpy()
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)} and abs((y == 0).mean() - 0.25) < 0.02
    assert not np.array_equal(y, layer(x).numpy())
    assert np.array_equal(layer.eval()(x).numpy(), x.numpy())
    assert np.array_equal(nn.Dropout(0.0)(x).numpy(), x.numpy())
    with pytest.raises(ValueError, match=r"the dropout rate is 1\.5"):
        nn.Dropout(1.5)


@pytest.mark.parametrize("settings", [{}, {"n_kv_heads": 1}, {"softcap": 5.0}, {"sinks": True}])
def test_weights_of_attention_are_dropped_in_training_only(settings):
    layer, x = nn.MultiHeadAttention(8, 2, drop_rate=0.5, **settings), pa.random.normal((2, 5, 8))
    for is_training in (True, False):
        outputs = [layer.train(is_training)(x).numpy() for _ in range(2)]
        assert np.array_equal(*outputs) != is_training


def test_activations_are_their_ops():
    x = pa.linspace(-3, 3, 13)
    assert np.array_equal(nn.GELU("tanh")(x).numpy(), pa.gelu(x, approximate="tanh").numpy())
    assert np.array_equal(nn.Sequential(nn.ReLU(), nn.SiLU())(x).numpy(), pa.silu(pa.relu(x)).numpy())


@pytest.mark.parametrize("width", [6, 7])
def test_positional_encoding_is_the_papers(width):
    length = 9
    table = np.zeros((length, width))
    for position in range(length):
        for i in range(0, width, 2):
            table[position, i] = math.sin(position / 10000 ** (i / width))
            if i + 1 < width:
                table[position, i + 1] = math.cos(position / 10000 ** (i / width))
    found = nn.PositionalEncoding(width)(pa.zeros((2, length, width)))
    np.testing.assert_allclose(found.numpy(), np.stack([table, table]), atol=1e-5)
    with pytest.raises(ShapeError, match="PositionalEncoding: x is float32"):
        nn.PositionalEncoding(width)(pa.zeros((length, width + 1)))


def reference_attention(layer, x):
    b, t, c = x.shape
    qkv = x @ layer.qkv.weight.numpy().T + layer.qkv.bias.numpy()
    q, k, v = (a.reshape(b, t, layer.n_heads, -1).transpose(0, 2, 1, 3) for a in np.split(qkv, 3, axis=-1))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(c // layer.n_heads)
    scores = np.where(np.tril(np.ones((t, t), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    y = (weights @ v).transpose(0, 2, 1, 3).reshape(b, t, c)
    return y @ layer.out.weight.numpy().T + layer.out.bias.numpy()


def test_causal_attention_matches_numpy_and_a_cache_changes_nothing():
    layer, x = nn.MultiHeadAttention(8, 2, causal=True), pa.random.normal((2, 5, 8))
    y = layer(x).numpy()
    np.testing.assert_allclose(y, reference_attention(layer, x.numpy()), rtol=1e-4, atol=1e-5)
    cache = nn.KeyValueCache(2, 2, 7, 4)
    parts = [layer(x[:, a:b], cache=cache, position=a or None) for a, b in ((0, 2), (2, 3), (3, 5))]
    assert cache.size == 7
    np.testing.assert_allclose(np.concatenate([p.numpy() for p in parts], axis=1), y, rtol=1e-4, atol=1e-5)


def test_keys_and_values_that_lie_together_are_placed_at_once():
    layer, x = nn.MultiHeadAttention(8, 2, causal=True), pa.random.normal((2, 1, 8))
    cache = nn.KeyValueCache(2, 2, 7, 4)

    def put(cache, x, position):
        return layer(x, cache=cache, position=position)

    step = pa.compile(put, donate="cache", captures=layer)
    step(cache, x, 3)
    assert [s.name for s in step.programs()[0].steps].count("slice_update") == 1
    assert [a.numpy().any(axis=(0, 1, 3)).tolist() for a in (cache.k, cache.v)] == [[i == 3 for i in range(7)]] * 2
    apart = nn.KeyValueCache(2, 2, 7, 4)
    apart.put(cache.k[:, :, 3:4], cache.v[:, :, 3:4], 3)
    assert same(apart, cache)


def test_padding_of_a_batch_without_rows():
    attention, padding = nn.MultiHeadAttention(8, 2), pa.zeros((0,), dtype="int32")
    cache = attention.cache(0, 5)
    mask, turned = cache.seen(1, 3, padding), nn.turns(pa.ones(1), 4, 1, 3, padding=padding)
    assert (mask.shape, turned.cos.shape) == ((0, 1, 1, 5), (0, 1, 2))
    assert attention(pa.ones((0, 1, 8)), mask, cache, 3, turned).shape == (0, 1, 8)
    assert nn.turns(pa.ones(1), 4, 6, padding=pa.zeros((0, 6), dtype="int32")).cos.shape == (0, 6, 2)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_mask_of_keys_is_one_of_each_row_also_if_batch_and_time_agree(backend, kv_heads, softcap):
    layer, x = nn.MultiHeadAttention(8, 2, n_kv_heads=kv_heads, softcap=softcap), pa.random.normal((3, 3, 8))
    keep = pa.asarray([[True, True, True], [True, True, False], [True, False, False]])
    lower = pa.tril(pa.ones((3, 3), dtype=bool))
    for mask in (None, lower, pa.where(lower, 0.5, -math.inf)):
        found = layer(x, mask, key_mask=keep).numpy()
        for row, count in enumerate((3, 2, 1)):
            alone = layer(x[row : row + 1, :count], None if mask is None else mask[:count, :count]).numpy()
            np.testing.assert_allclose(found[row, :count], alone[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"softcap": 5.0}, {"sinks": True}, {"softcap": 5.0, "sinks": True}])
@pytest.mark.parametrize("is_added", [False, True])
def test_a_query_that_may_attend_to_no_key_gives_zeros(backend, kv_heads, settings, is_added):
    layer = nn.MultiHeadAttention(8, 2, n_kv_heads=kv_heads, causal=True, out_bias=False, **settings)
    keep = pa.asarray([[False, True], [False, False]])
    mask = pa.where(keep, 0.0, -math.inf)[:, None, None, :]
    found = layer(pa.random.normal((2, 2, 8)), **({"mask": mask} if is_added else {"key_mask": keep})).numpy()
    np.testing.assert_array_equal(found[[0, 1, 1], [0, 0, 1]], 0)
    assert (found[0, 1] != 0).all()


def test_attention_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="emb_dim is 10, n_heads is 4; it must divide emb_dim"):
        nn.MultiHeadAttention(10, 4)
    with pytest.raises(ShapeError, match="it must be \\[batch, time, channels\\]"):
        nn.MultiHeadAttention(8, 2)(pa.zeros((3, 8)))
    with pytest.raises(ShapeError, match=r"^MultiHeadAttention: key_mask is int64\[2, 3\]; it must be bool \[batch, "):
        nn.MultiHeadAttention(8, 2)(pa.ones((2, 3, 8)), key_mask=pa.asarray([[1, 1, 0], [1, 1, 1]]))
    keep = pa.ones((2, 3), dtype=bool)
    with pytest.raises(DtypeError, match=r"^MultiHeadAttention: mask is int32\[3, 3\]; it must be bool or fl"):
        nn.MultiHeadAttention(8, 2)(pa.ones((2, 3, 8)), pa.ones((3, 3), dtype="int32"), key_mask=keep)
    with pytest.raises(TypeError, match=r"^MultiHeadAttention: mask is a numpy.ndarray; it must be a polyarr array"):
        nn.MultiHeadAttention(8, 2)(pa.ones((2, 3, 8)), np.ones((3, 3), bool), key_mask=keep)
    with pytest.raises(TypeError, match=r"^MultiHeadAttention: cache is .*; queries, keys and values are made of x"):
        nn.MultiHeadAttention(8, 2)(pa.ones((1, 3, 8)), pa.ones((1, 3, 8)), pa.ones((1, 3, 8)))


def test_transformer_block_without_branches_is_the_identity():
    block = nn.TransformerBlock(8, 2, init=nn.normal(0.02), out_init=nn.constant(0))
    x = pa.random.normal((2, 3, 8))
    assert np.array_equal(block(x).numpy(), x.numpy())


def test_second_order_through_a_layer():
    layer, x = nn.MultiHeadAttention(4, 2, causal=True), pa.random.normal((1, 3, 4))

    def slope(x):
        return pa.sum(pa.grad(lambda x: pa.sum(layer(x) ** 2))(x) ** 2)

    found = pa.grad(slope)(x).numpy()
    step = np.zeros(x.shape, np.float32)
    step[0, 1, 2] = 1e-2
    numeric = (float(slope(x + pa.asarray(step))) - float(slope(x - pa.asarray(step)))) / 2e-2
    assert found[0, 1, 2] == pytest.approx(numeric, rel=2e-2)


def test_same_seed_same_weights_on_every_backend(backend):
    found = []
    for place in ("numpy", backend):
        with pa.use_backend(place):
            pa.random.seed(11)
            found.append(
                nn.Sequential(nn.Linear(7, 5), nn.Embedding(9, 4), nn.Linear(3, 3, init=nn.normal(0.02)))
            )
    for a, b in zip(*map(pa.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)
    assert all(leaf.backend.name == "numpy" for leaf in pa.tree.leaves(found[1].to("numpy")))


# ---- frozen Modules --------------------------------------------------------------------------------------------


def moved(before, after):
    """Return the names of the arrays that differ."""
    pairs = zip(before.named_parameters().items(), after.named_parameters().values(), strict=True)
    return [name for (name, a), b in pairs if not np.array_equal(a.numpy(), b.numpy())]


def test_what_is_frozen_has_no_gradient_no_moments_and_stays(backend):
    pa.random.seed(0)
    model = Tiny().freeze()
    model.first.unfreeze()
    names = ["first.weight", "first.bias"]
    assert list(model.named_parameters(only_trainable=True)) == names and list(model.named_parameters()) == NAMES
    assert (model.num_parameters(only_trainable=True), model.num_parameters()) == (16, 38)
    x, unfrozen = pa.ones((2, 3)), model.copy().unfreeze()

    def loss(m):
        return pa.mean(m(x) ** 2)

    value, grads = pa.value_and_grad(loss)(model)
    full_value, full = pa.value_and_grad(loss)(unfrozen)
    assert list(pa.tree.by_name(grads)) == names and float(value) == float(full_value)
    wanted = full.named_parameters()
    assert all(np.array_equal(g.numpy(), wanted[name].numpy()) for name, g in grads.named_parameters().items())
    optimizer = pa.optim.AdamW(lr=0.1)
    state = optimizer.init(model)
    assert list(state["m"]) == list(state["v"]) == names
    # Gradients of all arrays, as from vjp, do not change frozen ones either.
    for given in (grads, full):
        after, _ = optimizer.update(given, state, model)
        assert moved(model, after) == names and after.many[0].frozen and not after.first.frozen


def test_freezing_all_says_so_and_is_undone():
    model = Tiny().freeze()
    with pytest.raises(GradientError, match=r"all arrays are frozen: argument 0 is .*Tiny; unfreeze\(\)"):
        pa.grad(lambda m: pa.sum(m.first.weight))(model)
    assert list(pa.tree.by_name(pa.grad(lambda m: pa.sum(m.first.weight))(model.unfreeze()))) == NAMES
    # A list of frozen arrays, and Modules in it, of which one is not.
    mixed = {"a": [model.freeze(), pa.ones((2,))], "b": nn.Linear(1, 1)}
    assert pa.tree.frozen(mixed) == [True] * 5 + [False] * 3


def test_a_compiled_step_that_is_given_the_model_keeps_what_is_frozen(backend):
    pa.random.seed(0)
    model, optimizer, x = Tiny().freeze(), pa.optim.AdamW(lr=0.1), pa.ones((2, 3))
    model.many[0].unfreeze()

    def step(model, state):
        loss, grads = pa.value_and_grad(lambda m: pa.mean(m(x) ** 2))(model)
        return loss, *optimizer.update(grads, state, model)

    compiled = pa.compile(step, captures=x, donate=("model", "state"))
    mine, given = [model, optimizer.init(model)], [pa.tree.map(lambda p: p + 0, model), optimizer.init(model)]
    for _ in range(3):
        loss, *mine = step(*mine)
        other, *given = compiled(*given)
        assert float(loss) == float(other)
    assert same(mine[0], given[0]) and len(compiled.programs()) == 1
    assert moved(model, given[0]) == ["many.0.weight"]


def test_a_module_without_a_call_says_what_to_define(on_numpy):
    class Torch(nn.Module):
        def forward(self, x):
            return x

    with pytest.raises(TypeError, match=r"^Torch: it defines forward and no __call__; rename forward to __call__$"):
        Torch()(pa.ones(2))
    with pytest.raises(TypeError, match=r"^Module: it defines no __call__, so it cannot be called$"):
        nn.Module()(pa.ones(2))


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm", "BatchNorm", "GroupNorm", "Embedding"])
def test_a_shape_in_place_of_a_length_is_refused(on_numpy, name):
    arguments = {"GroupNorm": (1, (4,)), "Embedding": (10, (4,))}.get(name, ((4,),))
    with pytest.raises(TypeError, match=rf"^{name}: (emb_dim|channels) is \(4,\); it must be an int$"):
        getattr(nn, name)(*arguments)


@pytest.mark.parametrize(
    ("layer", "args"),
    [
        (nn.Linear, (3, 2, True, "cpu")), (nn.Embedding, (3, 2, 0)), (nn.LayerNorm, (3, 1e-5, False)),
        (nn.RMSNorm, (3, 1e-5, True)), (nn.InstanceNorm, (3, 1e-5, 0.1)), (nn.BatchNorm, (3, 1e-5, 0.1, True)),
        (nn.MeanPool, (2, 2, 0, True)), (nn.Conv2d, (3, 2, 3, 1, 0, 1, 1, True, "zeros")),
        (nn.ConvTranspose2d, (3, 2, 3, 1, 0, 0, 1, True, 1, "zeros")),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)  # fmt: skip
def test_parameters_that_pytorch_has_elsewhere_are_keyword_only(layer, args):
    layer(*args[:-1])
    with pytest.raises(TypeError, match=r"^\w+\.__init__\(\) takes .* positional arguments but"):
        layer(*args)
