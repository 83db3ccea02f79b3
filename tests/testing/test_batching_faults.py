"""Faults planted in batching rules, each of which the kit's check `batched` must catch."""

import pytest

import polyarr as pa
from polyarr import ops
from polyarr.batching import composed, rules
from polyarr.batching.level import Batched, Level, Rules
from polyarr.batching.vmap import RULES
from polyarr.core.op import OPS, primitive
from polyarr.core.spec import Spec
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import CheckFailure

CASES = {case.subject: case for case in cases() if case.check == "batched"}

FAULTS = {
    "axes not shifted": (ops.sum, lambda call, x, *, axis, **params: ops.sum(x.array, axis=axis, **params)),
    "examples in another order": (ops.exp, lambda call, x: ops.exp(ops.flip(x.array, axis=0))),
    "the first example for all": (ops.reshape, lambda call, x, *, shape: ops.broadcast_to(
        ops.reshape(x.array[0], shape=shape), shape=(call.size, *shape))),
    "indices of other examples": (ops.take, lambda call, x, indices, *, axis: rules.take(
        call, x, Batched(ops.flip(indices.array, axis=0), True) if indices.is_mapped else indices, axis=axis)),
    "a bias left out": (ops.layer_norm, lambda call, x, weight, bias, **params: composed.rows(
        call, x, weight, None, **params)),
    "axes not aligned": (ops.add, lambda call, x, y: ops.add(rules.plain(x), rules.plain(y))),
    "examples added up": (ops.cumulative_sum, lambda call, x, *, axis, **params: ops.cumulative_sum(
        x.array, axis=0, **params)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_rule_is_caught(name, on_numpy, monkeypatch) -> None:
    op, rule = FAULTS[name]
    CASES[op.name].run(on_numpy, Effort(1))
    monkeypatch.setitem(RULES.of, op, rule)
    with pytest.raises((CheckFailure, ValueError), match=op.name):
        CASES[op.name].run(on_numpy, Effort(1))


def test_a_gradient_of_another_kernel_is_caught(on_numpy, monkeypatch) -> None:
    """The gradients of softmax per example go through Level._backward."""
    monkeypatch.setattr(Level, "_backward", _doubled(Level._backward))
    with pytest.raises(CheckFailure, match=r"softmax on numpy: vmap over inputs .*gradient"):
        CASES["softmax"].run(on_numpy, Effort(1))


def _doubled(real):
    def backward(self, *args, **named):
        found = real(self, *args, **named)
        with self.outside():
            return tuple(b and Batched(b.array * 2, b.is_mapped) for b in found)

    return backward


def test_every_op_has_a_case() -> None:
    ours = {op.name for op in OPS if op.__module__.startswith("polyarr.")}
    assert ours - CASES.keys() <= {"iota"}  # which has no array


def test_a_primitive_of_a_plugin_runs_for_each_example(on_numpy) -> None:
    shapes = []

    @primitive
    def twice_shifted(x, y, *, by):
        """Return 2 x + by y, and the sum of x."""
        return Spec(x.shape, x.dtype), Spec((), x.dtype)

    twice_shifted.vjp(x=lambda g, x_spec: g[0] * 2 + g[1], y=lambda g, by: g[0] * by)

    def kernel(out, x, y, *, by):
        shapes.append(x.shape)
        return 2 * x + by * y, x.sum()

    try:
        backend = on_numpy._replace(name="more", kernels={**on_numpy.kernels, twice_shifted: kernel})
        x, y = pa.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], device=backend), pa.ones(2, device=backend)
        shifted, total = pa.vmap(lambda x, y: twice_shifted(x, y, by=3.0), in_axes=(0, None))(x, y)
        assert shifted.tolist() == [[5.0, 7.0], [9.0, 11.0], [13.0, 15.0]] and total.tolist() == [3.0, 7.0, 11.0]
        assert shapes == [(2,)] * 3
        loss = lambda x, y: pa.sum(twice_shifted(x, y, by=3.0)[0] ** 2) + twice_shifted(x, y, by=3.0)[1]
        grads = pa.vmap(pa.grad(loss), in_axes=(0, None))(x, y)
        assert grads.tolist() == (4 * shifted + 1).tolist()
        empty = pa.vmap(lambda x, y: twice_shifted(x, y, by=3.0), in_axes=(0, None))(x[:0], y)
        assert [a.shape for a in empty] == [(0, 2), (0,)]
    finally:
        OPS.remove(twice_shifted)


def test_the_rules_of_all_primitives_are_stated() -> None:
    """Only primitives of plugins are left to the loop."""
    assert isinstance(RULES, Rules)
    missing = [op.name for op in OPS if op.decomposition is None and op not in RULES.of]
    assert missing == []
