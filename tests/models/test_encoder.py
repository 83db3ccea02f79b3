"""The encoder: values and gradients against PyTorch, padding masks, and the example that uses it."""

import runpy

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, optim
from polyarr.models import Encoder, EncoderClassifier, MaskedModel, mask_tokens
from polyarr.models.encoder import IGNORED, EncoderBlock, EncoderConfig
from polyarr.testing import check_grads
from tests.helpers.root import ROOT

SMALL = {"vocab_size": 11, "context_length": 8, "emb_dim": 12, "n_heads": 3, "n_layers": 2, "drop_rate": 0.0}
EXAMPLE = ROOT / "examples" / "comment-or-code" / "comment_or_code.py"


def tokens_of(*shape, seed=0):
    return pa.asarray(np.random.default_rng(seed).integers(0, 11, shape))


KEEP = np.array([[True] * 8, [True] * 5 + [False] * 3])


def as_torch(torch, block, config):
    """Return PyTorch's layer with the block's weights."""
    layer = torch.nn.TransformerEncoderLayer(
        config.emb_dim, config.n_heads, config.hidden_dim, 0.0, config.activation, batch_first=True,
        norm_first=config.norm_first,
    )  # fmt: skip
    own = {
        "self_attn.in_proj_weight": block.att.qkv.weight, "self_attn.in_proj_bias": block.att.qkv.bias,
        "self_attn.out_proj.weight": block.att.out.weight, "self_attn.out_proj.bias": block.att.out.bias,
        "linear1.weight": block.ff.up.weight, "linear1.bias": block.ff.up.bias,
        "linear2.weight": block.ff.down.weight, "linear2.bias": block.ff.down.bias,
        "norm1.weight": block.norm1.weight, "norm1.bias": block.norm1.bias,
        "norm2.weight": block.norm2.weight, "norm2.bias": block.norm2.bias,
    }  # fmt: skip
    layer.load_state_dict({name: torch.from_numpy(array.numpy()) for name, array in own.items()})
    return layer, own


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_block_is_that_of_pytorch(backend, activation, norm_first):
    """With padding: values within 1e-5, gradients of input and parameters within 1e-4."""
    torch = pytest.importorskip("torch")
    config = EncoderConfig.of({**SMALL, "hidden_dim": 20, "activation": activation, "norm_first": norm_first})
    pa.random.seed(3)
    block = EncoderBlock(config)
    layer, own = as_torch(torch, block, config)
    rng = np.random.default_rng(1)
    x, g = (rng.standard_normal((2, 8, 12)).astype("float32") * KEEP[..., None] for _ in range(2))
    theirs_in = torch.from_numpy(x).requires_grad_()
    theirs = layer(theirs_in, src_key_padding_mask=torch.from_numpy(~KEEP))
    (theirs * torch.from_numpy(g)).sum().backward()

    mask = pa.asarray(KEEP)[:, None, None, :]
    assert np.abs((block(pa.asarray(x), mask).numpy() - theirs.detach().numpy()) * KEEP[..., None]).max() < 1e-5
    grads, grad_in = pa.grad(lambda b, x: pa.sum(b(x, mask) * pa.asarray(g)), argnums=(0, 1))(block, pa.asarray(x))
    assert np.abs(grad_in.numpy() - theirs_in.grad.numpy()).max() < 1e-4
    names = {id(array): name for name, array in block.named_parameters().items()}
    found = grads.named_parameters()
    for name, parameter in layer.named_parameters():
        ours = found[names[id(own[name])]].numpy()
        assert np.abs(ours - parameter.grad.numpy()).max() < 1e-4, name


def test_padding_is_not_seen(backend):
    """A padded sequence has the logits of the sequence alone, whatever the padding contains."""
    pa.random.seed(0)
    model = EncoderClassifier(SMALL, 3)
    tokens, keep = tokens_of(2, 8), pa.asarray(KEEP)
    both = model(tokens, keep).numpy()
    other = pa.where(keep, tokens, (tokens + 1) % 11)
    assert np.array_equal(model(other, keep).numpy(), both)
    np.testing.assert_allclose(model(tokens[1:, :5]).numpy()[0], both[1], rtol=1e-5, atol=1e-6)
    assert np.isfinite(model(tokens, pa.zeros((2, 8), dtype=bool)).numpy()).all()


def test_blocks_get_scaled_embeddings_with_positions(on_numpy):
    model, tokens = Encoder(SMALL).eval(), tokens_of(2, 8)
    model.blocks = []
    embedded = pa.take(model.tok_emb.weight, tokens, axis=0) * 12**0.5
    np.testing.assert_allclose(model(tokens).numpy(), nn.PositionalEncoding(12)(embedded).numpy(), rtol=1e-6)


def test_positions_count(on_numpy):
    model = EncoderClassifier(SMALL, 3)
    tokens = tokens_of(1, 8)
    assert np.abs(model(tokens).numpy() - model(tokens[:, ::-1]).numpy()).max() > 1e-4


@pytest.mark.parametrize("norm_first", [False, True])
def test_gradients_are_right(on_numpy, norm_first):
    pa.random.seed(0)
    config, keep = {**SMALL, "n_layers": 1, "activation": "gelu", "norm_first": norm_first}, pa.asarray(KEEP)
    check_grads(lambda m: m.loss(tokens_of(2, 8), pa.asarray([2, 0]), keep), (EncoderClassifier(config, 3),), order=1)
    targets = pa.where(keep, tokens_of(2, 8, seed=1), IGNORED)
    check_grads(lambda m: m.loss(tokens_of(2, 8), targets, keep), (MaskedModel(config),), order=1)


def test_gaps_are_where_targets_are(on_numpy):
    """15 % of the tokens have a target; of those 80 % become the mask, 10 % a random token, 10 % stay."""
    pa.random.seed(0)
    tokens, keep = tokens_of(300, 40), pa.asarray(np.arange(40) < 30) & pa.ones((300, 1), dtype=bool)
    changed, targets = (a.numpy() for a in mask_tokens(tokens, 11, 11, keep))
    before, is_target = tokens.numpy(), targets != IGNORED
    assert (targets[is_target] == before[is_target]).all() and (changed[~is_target] == before[~is_target]).all()
    assert not is_target[:, 30:].any() and abs(is_target[:, :30].mean() - 0.15) < 0.02
    assert abs((changed[is_target] == 11).mean() - 0.8) < 0.03
    assert abs((changed[is_target] == before[is_target]).mean() - (0.1 + 0.1 / 11)) < 0.03


def test_gaps_are_learnt(on_numpy):
    """Sequences count upwards, so masked tokens follow from their neighbors."""
    pa.random.seed(0)
    starts = np.random.default_rng(0).integers(0, 11, (32, 1))
    tokens = pa.asarray((starts + np.arange(8)) % 11)
    model = MaskedModel({**SMALL, "vocab_size": 12, "n_layers": 1, "norm_first": True})
    optimizer = optim.AdamW(lr=5e-3, clip=1.0)
    state = optimizer.init(model)

    @pa.compile
    def step(model, state, tokens):
        changed, targets = mask_tokens(tokens, 11, 11, rate=0.3)
        loss, grads = pa.value_and_grad(lambda m: m.loss(changed, targets))(model)
        return loss, *optimizer.update(grads, state, model)

    for _ in range(600):
        _, model, state = step(model, state, tokens)
    gaps = pa.where(pa.arange(8) == 3, 11, tokens)
    found = pa.argmax(model(gaps), axis=-1)[:, 3].numpy()
    assert (found == tokens.numpy()[:, 3]).mean() > 0.9


@pytest.mark.parametrize(
    ("tokens", "keep", "error", "message"),
    [
        (np.zeros((2, 4), "float32"), None, pa.DtypeError, r"^Encoder: tokens is float32\[2, 4\]; its dtype must"),
        (np.zeros((2, 9), "int64"), None, pa.ShapeError, r"^Encoder: tokens is int64\[2, 9\]; it must be \[batch, at"),
        (np.zeros(4, "int64"), None, pa.ShapeError, r"it must be \[batch, at most 8\]$"),
        (np.zeros((2, 4), "int64"), np.ones((2, 4), "int64"), pa.DtypeError, r"keep is int64\[2, 4\]; its dtype"),
        (np.zeros((2, 4), "int64"), np.ones((2, 3), bool), pa.ShapeError, r"keep is bool\[2, 3\]; it must have"),
    ],
)  # fmt: skip
def test_what_does_not_fit(on_numpy, tokens, keep, error, message):
    with pytest.raises(error, match=message):
        Encoder(SMALL)(pa.asarray(tokens), None if keep is None else pa.asarray(keep))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop_rate": 2.0}, r"^EncoderConfig: drop_rate is 2.0; it must be a number from 0 to 1$"),
        ({"hidden_dim": 0}, r"^EncoderConfig: hidden_dim is 0; it must be a positive int or None$"),
        ({"activation": "tanh"}, r"^EncoderConfig: activation is 'tanh'; it must be one of relu, gelu, gelu_tanh$"),
        ({"n_heads": 5}, r"^EncoderConfig: emb_dim is 12, n_heads is 5; it must divide emb_dim$"),
        ({"norm_first": 1}, r"^EncoderConfig: norm_first is 1; it must be True or False$"),
    ],
)
def test_what_is_no_configuration(changes, message):
    with pytest.raises(ValueError, match=message):
        EncoderConfig.of({**SMALL, **changes})


def test_a_rate_of_gaps():
    with pytest.raises(ValueError, match=r"^mask_tokens: rate is 0; it must be above 0 and at most 1$"):
        mask_tokens(tokens_of(2, 8), 11, 11, rate=0)


@pytest.mark.polyarr_backend("opencl")
def test_the_example(backend, capsys):
    """A few steps on part of the source: it learns, evaluates, and classifies lines."""
    example = runpy.run_path(str(EXAMPLE))
    right = example["main"](["--steps", "20", "--limit", "100000", "--backend", backend.name, "x = f(y)"])
    said = capsys.readouterr().out
    assert right > 0.65 and "of the lines to try on are right" in said and said.endswith(" x = f(y)\n")


def test_the_example_classifies_comments_and_code():
    found = runpy.run_path(str(EXAMPLE))["lines_of"]("# one two\nx = 1  # three\nx = 1\n# x = 1\ny = (\n    2)\n")
    assert found == {"one two": True, "y = (": False}
