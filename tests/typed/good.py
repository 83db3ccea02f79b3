"""A program as users write it, which type checkers must accept in their strict mode."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import assert_type

import polyarr as pa
from polyarr import Array, nn
from polyarr.models import GPTConfig, GPTModel, Writer, generate, stream
from polyarr.text import CharTokenizer, Corpus, Tokenizer, find_files, open_prepared, prepare, train_bpe
from polyarr.training import PRESETS, load_checkpoint, new_run, resumed_run, train
from polyarr.training.pretrained import export_model, fine_tuning, load_model


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


def kept(x: Array, limit: float) -> tuple[Array, float]:
    """Return the value and what the gradient needs."""
    return x, limit


def pulled(limit: float, g: Array) -> tuple[Array, None]:
    """Return the gradients."""
    return pa.clip(g, -limit, limit), None


clipped.defvjp(kept, pulled)


def gradients(x: Array) -> Array:
    """Functions that were given a gradient of their own, or are computed again, keep their types."""
    other = pa.custom_vjp(clipped, kept, pulled)
    again = pa.checkpoint(clipped)

    def total(x: Array) -> Array:
        return pa.sum(other(x, 0.5))

    assert_type(clipped(x, limit=0.5), Array)
    assert_type(again(x, 0.5), Array)
    value, pull = pa.vjp(other, x)
    slope: Array = pa.grad(total)(x)
    back: Array = pull(value)[0]
    mapped: Array = pa.vmap(total)(x) + pa.hessian(total)(x) + pa.jacrev(total)(x) + pa.jvp(total, (x,), (x,))[0]
    return slope + mapped + pa.special.polygamma(1, x) * back


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


class Images(nn.Module):
    """Layers of images."""

    def __init__(self) -> None:
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool(2))
        self.norm, self.drop = nn.BatchNorm(8), nn.Dropout(0.1)
        self.scale = pa.ones((8,))

    def __call__(self, x: Array) -> Array:
        return self.drop(pa.mean(self.norm(self.layers(x)), axis=(1, 2))) * self.scale


def trees(model: Images, x: Array) -> Images:
    """Modules as trees, accumulated and clipped gradients, a schedule, files."""

    def loss_of(model: Images, x: Array) -> Array:
        return pa.sum(model(x))

    optimizer = pa.optim.Adam(lr=pa.optim.warmup_cosine(1e-3, 10, 100))
    state = optimizer.init(model)
    loss, grads = pa.optim.accumulate(loss_of, model, [(x,), (x,)])
    grads, norm = pa.optim.clip_by_global_norm(grads, 1.0)
    model, state = optimizer.update(grads, state, model)
    for path, leaf in pa.tree.items(model):
        print(path, leaf, pa.tree.by_name(state).keys(), float(loss), float(norm))
    with pa.profile() as profile:
        model.eval()(x)
    pa.save("model.safetensors", pa.tree.by_name(model))
    print(profile, pa.load("model.safetensors"))
    return model.train()


def tokenizers(text: str) -> list[Tokenizer]:
    """All tokenizers are given where any may be."""
    return [CharTokenizer.from_text(text), train_bpe([text], size=300)]


def language_models(text: str, folder: Path, tokens: Array) -> Iterator[str]:
    """Prepare, train, resume, fine-tune, export and write, as docs/in-python.md does."""
    corpus = Corpus.of_text(text, tokenizers(text)[1])
    prepare(find_files(["text.txt"]), folder / "tokens", corpus.tokenizer)
    recipe = PRESETS["demo"].changed(steps=6, batch_size=4, model={"context_length": 16})
    train(new_run(open_prepared(folder / "tokens"), recipe, seed=1), folder)
    run = train(resumed_run(corpus, load_checkpoint(folder, "last"), recipe.changed(steps=8)), folder)
    model, tokenizer = load_model("SmolLM2-135M")
    train(new_run(corpus, fine_tuning(model, lora={"rank": 4}, steps=4), seed=1, model=model), folder)
    export_model(folder, "exported")
    print(tokenizer.vocab_size, run.step + 1, run.best / 2)
    small = GPTModel(GPTConfig(65, 16, emb_dim=32, n_heads=2, n_layers=2, drop_rate=0.0, qkv_bias=False))
    merged = nn.merge_lora(nn.lora(small, rank=4))
    yield from (str(token.numpy()) for token in stream(merged, tokens, 3, temperature=0.5))
    print(generate(merged, tokens, 3, seed=1).shape, merged(tokens).sum())
    for part in Writer(model, tokenizer).write(["ROMEO:"], 12, stop=["\n\n"], seed=1):
        yield part.text
