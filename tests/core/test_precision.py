"""Precisions of products: the precision that kernels get, and the page about precision."""

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import polyarr
from polyarr import Array, Backend, ops
from polyarr.core.precision import PRECISIONS, as_kernel_takes
from tests.helpers.root import ROOT

Told = list[str]
PAGE = ROOT / "docs" / "precision.md"


@pytest.fixture
def told() -> Told:
    """Return the precisions that kernels of `exact_device` got, in order."""
    return []


@pytest.fixture
def exact_device(told: Told) -> Backend:
    """Return numpy with products that distinguish "high" from "highest" and record the precision they get."""
    plain = polyarr.get_backend("numpy")

    def product(out, x, y, *, precision):
        told.append(precision)
        return plain.kernels[ops.matrix_product](out, x, y)

    def forward(out, x, weight, bias, *, activation, precision):
        told.append(f"forward {precision}")
        return (x @ weight.T), None

    def backward(g, saved, x, weight, bias, *, wanted, activation, precision):
        told.append(f"backward {precision}")
        return g @ weight, g.T @ x, None

    kernels = {**plain.kernels, ops.matrix_product: product, ops.linear: polyarr.Fused(forward, backward)}
    known = {ops.matrix_product: ("high",), ops.linear: ("high",)}
    return plain._replace(kernels=kernels, precisions=known)


@pytest.fixture(autouse=True)
def _highest_again() -> Iterator[None]:
    yield
    polyarr.set_matmul_precision("highest")


@pytest.fixture
def x(exact_device: Backend) -> Array:
    return polyarr.ones((3, 3)).to(exact_device)


def test_the_innermost_word_counts_and_medium_is_at_least_high(x: Array, told: Told) -> None:
    x @ x
    polyarr.set_matmul_precision("high")
    x @ x
    with polyarr.use_matmul_precision("highest"):
        x @ x
        with polyarr.use_matmul_precision("medium"):
            x @ x
        polyarr.matmul(x, x, precision="high")
        x @ x
    x @ x
    assert told == ["highest", "high", "highest", "high", "high", "highest", "high"]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x @ x,
        lambda x: polyarr.tensordot(x, x, axes=1),
        lambda x: polyarr.einsum("ij,jk->ik", x, x),
        lambda x: polyarr.linear(x, x, activation="relu"),
        lambda x: polyarr.attention(x, x, x),
    ],
)
def test_every_product_gets_the_precision_forward_and_backward(
    call: Callable, x: Array, told: Told, exact_device: Backend
) -> None:
    """Also for gradients pulled outside the block, and in an op's decomposition."""
    with polyarr.use_matmul_precision("high"):
        value, pull = polyarr.vjp(lambda a: polyarr.sum(call(a)), x)
    before = len(told)
    pull(polyarr.ones_like(value))
    assert 0 < before < len(told)
    assert {word.split()[-1] for word in told} == {"high"}


def test_a_checkpoint_computes_again_as_exactly(x: Array, told: Told) -> None:
    again = polyarr.checkpoint(lambda a: polyarr.sum(a @ a))
    with polyarr.use_matmul_precision("high"):
        value, pull = polyarr.vjp(again, x)
    pull(polyarr.ones_like(value))
    assert told == ["high"] * 4  # once, once again, and two gradients


@pytest.mark.parametrize(
    ("asked", "known", "given"),
    [
        ("medium", ("high", "medium"), "medium"), ("medium", ("high",), "high"), ("high", ("high", "medium"), "high"),
        ("high", ("medium",), "highest"), ("highest", ("high", "medium"), "highest"),
    ],
)  # fmt: skip
def test_a_kernel_gets_the_least_precise_that_is_precise_enough(asked: str, known: tuple, given: str) -> None:
    assert as_kernel_takes({"precision": asked, "a": 1}, known) == {"precision": given, "a": 1}


def test_a_kernel_without_precisions_gets_none(x: Array, exact_device: Backend) -> None:
    stranger = exact_device._replace(precisions={}, kernels=polyarr.get_backend("numpy").kernels)
    a = x.to(stranger)
    expected = (a @ a).tolist()
    for word in PRECISIONS:
        assert polyarr.matmul(a, a, precision=word).tolist() == expected


def test_threads_and_decorated_functions_have_their_own(x: Array, told: Told) -> None:
    product = polyarr.use_matmul_precision("high")(lambda: x @ x)
    product()
    with polyarr.use_matmul_precision("high"):
        thread = threading.Thread(target=lambda: x @ x)
        thread.start()
        thread.join()
    product()
    assert told == ["high", "highest", "high"]


@pytest.mark.parametrize("use", [polyarr.set_matmul_precision, polyarr.use_matmul_precision])
def test_another_word_is_an_error(use: Callable, x: Array) -> None:
    required = "it must be 'highest', 'high' or 'medium'"
    with pytest.raises(ValueError, match=rf"^{use.__name__}: precision is 'fast'; {required}$"), use("fast"):
        pass
    with pytest.raises(ValueError, match=rf"^linear: precision is \['high'\]; {required}$"):
        polyarr.linear(x, x, precision=["high"])
    with pytest.raises(ValueError, match=rf"^einsum: precision is 'fast'; {required}$"):
        polyarr.einsum("ii", x, precision="fast")  # which multiplies nothing
    assert polyarr.get_matmul_precision() == "highest"


def test_the_page_runs(backend: Backend) -> None:
    """All its code blocks; parameters and gradients stay float32."""
    names: dict[str, Any] = {}
    polyarr.random.seed(0)  # of other draws, some losses are below 1
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
        assert {p.dtype for p in polyarr.tree.leaves([names["model"], names["grads"]])} == {polyarr.float32}
        assert names["loss"].dtype == polyarr.float32 and 1 < names["loss"].item() < 3
    assert names["state"]["loss_scale"]["steps"].item() == 1
