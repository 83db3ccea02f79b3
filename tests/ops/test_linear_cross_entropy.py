"""linear_cross_entropy in chunks of rows: the results of linear and cross_entropy in less memory."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.errors import DtypeError
from polyarr.models.gpt import GPTModel

TINY = {
    "vocab_size": 33,
    "context_length": 8,
    "emb_dim": 8,
    "n_heads": 2,
    "n_layers": 1,
    "drop_rate": 0.0,
    "qkv_bias": True,
}


def head(dtype: str = "float32", rows: int = 21, depth: int = 16, classes: int = 33) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    targets = np.where(rng.random(rows) < 0.2, -100, rng.integers(0, classes, rows))
    x, weight = (pa.asarray(rng.standard_normal((n, depth)), dtype=dtype) for n in (rows, classes))
    return x, weight, pa.asarray(targets)


def slopes(loss: Any, x: Array, weight: Array) -> list[np.ndarray]:
    value, grads = pa.value_and_grad(lambda x, w: ops.sum(loss(x, w) ** 2), argnums=(0, 1))(x, weight)
    return [a.numpy().astype("float64") for a in (value, *grads)]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("dtype", "close"), [("float32", 2e-6), ("bfloat16", 2e-2), ("float16", 2e-3)])
def test_parts_are_as_good_as_the_whole(backend: Backend, dtype: str, close: float, reduction: str) -> None:
    x, weight, targets = head(dtype)
    settings = {"label_smoothing": 0.1, "reduction": reduction}
    whole = slopes(lambda x, w: ops.cross_entropy(ops.linear(x, w), targets, **settings), x, weight)
    for rows in (None, 4):
        parts = slopes(
            lambda x, w, n=rows: ops.linear_cross_entropy(x, w, targets, rows_at_once=n, **settings), x, weight
        )
        for found, due in zip(parts, whole, strict=True):
            np.testing.assert_allclose(found, due, rtol=close, atol=close * abs(due).max())


def test_no_row_that_counts_leaves_the_parameters_as_they_are(backend: Backend) -> None:
    """As with cross_entropy, and in PyTorch: the mean of no losses is nan, and its gradient 0."""
    x, weight, targets = head()

    def loss(x: Array, weight: Array, targets: Array) -> Array:
        return ops.linear_cross_entropy(x, weight, targets)

    graded = pa.value_and_grad(loss, argnums=(0, 1))
    for call in (graded, pa.compile(graded)):
        value, grads = call(x, weight, ops.full_like(targets, -100))
        assert np.isnan(value.numpy()) and all((grad.numpy() == 0).all() for grad in grads)


def test_logits_never_exist_as_a_whole(on_numpy: Backend) -> None:
    rows, classes = 2000, 1000
    x, weight, targets = head(rows=rows, classes=classes)

    def peak(loss: Any) -> int:
        tracemalloc.start()
        try:
            pa.value_and_grad(loss, argnums=(0, 1))(x, weight)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(lambda x, w: ops.cross_entropy(ops.linear(x, w), targets)) > 2 * 4 * rows * classes
    assert peak(lambda x, w: ops.linear_cross_entropy(x, w, targets, rows_at_once=100)) < 4 * rows * classes


def test_the_default_takes_few_rows_of_many_classes(monkeypatch: pytest.MonkeyPatch, on_numpy: Backend) -> None:
    seen = []
    linear = ops.head.linear
    monkeypatch.setattr(ops.head, "MAX_LOGITS_BYTES", 150 * 40 * 4)
    monkeypatch.setattr(ops.head, "linear", lambda x, w, **p: (seen.append(x.shape[0]), linear(x, w, **p))[1])
    x, weight, targets = head(rows=300, classes=40)
    ops.linear_cross_entropy(x, weight, targets)
    assert [n for n in seen if n][-3:] == [128, 128, 44]


def test_unwanted_gradients_are_not_computed(monkeypatch: pytest.MonkeyPatch, on_numpy: Backend) -> None:
    products = []
    product = ops.head.matrix_product
    monkeypatch.setattr(ops.head, "matrix_product", lambda *a, **p: (products.append(a), product(*a, **p))[1])
    x, weight, targets = head()
    pa.grad(lambda x: ops.linear_cross_entropy(x, weight, targets))(x)
    assert len(products) == 1
    pa.grad(lambda w: ops.linear_cross_entropy(x, w, targets))(weight)
    assert len(products) == 2


def test_a_models_loss_is_that_of_its_logits(backend: Backend) -> None:
    windows = pa.asarray(np.random.default_rng(1).integers(0, 33, (2, 9)))
    for tied in (False, True):
        model = GPTModel({**TINY, "tie_embeddings": tied})
        found = pa.value_and_grad(lambda m: m.loss(windows[:, :-1], windows[:, 1:]))(model)
        due = pa.value_and_grad(lambda m: ops.cross_entropy(m(windows[:, :-1]), windows[:, 1:]))(model)
        for a, b in zip(*map(pa.tree.leaves, (found, due)), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


def test_wrong_arguments(on_numpy: Backend) -> None:
    x, weight, targets = head()
    for wrong, kind, text in (
        (lambda: ops.linear_cross_entropy(x, weight[:, 1:], targets), ValueError, "x.shape.* must equal"),
        (lambda: ops.linear_cross_entropy(x, weight, targets[1:]), ValueError, r"targets must be \[21\]"),
        (lambda: ops.linear_cross_entropy(x, weight[:0], targets), ValueError, "there must be at least one class"),
        (lambda: ops.linear_cross_entropy(x, weight, targets, rows_at_once=0), ValueError, "rows_at_once is 0"),
        (lambda: ops.linear_cross_entropy(x, weight, targets, reduction="no"), ValueError, "reduction is 'no'"),
        (lambda: ops.linear_cross_entropy(x, weight, x[:, 0]), DtypeError, "targets is float32"),
    ):  # fmt: skip
        with pytest.raises(kind, match=f"^linear_cross_entropy: .*{text}"):
            wrong()
