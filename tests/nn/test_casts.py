"""Casting a Module: all arrays in one call give the same as each array on its own."""

import pytest

import polyarr as pa
from polyarr import nn, ops
from polyarr.core.errors import DtypeError
from polyarr.testing.compare import bits


def cast_one_by_one(model):
    return pa.tree.map(lambda a: ops.astype(a, dtype="bfloat16"), model)


def test_a_module_is_cast_as_each_of_its_arrays(backend):
    """Its gradient is cast back alike; frozen arrays have none."""
    model, x, kept = nn.TransformerBlock(4, 2), pa.ones((1, 3, 4), dtype="bfloat16"), []
    model.norm1.freeze()

    def loss(model, cast):
        model = cast(model)
        kept.append([a.node is None for a in pa.tree.leaves(model)])
        return pa.sum(model(x) ** 2).astype("float32")

    ways = (lambda m: m.astype("bfloat16")), cast_one_by_one
    (value, grads), due = (pa.value_and_grad(loss)(model, cast) for cast in ways)
    assert bits((value, grads)) == bits(due) and kept[0] == kept[1] and kept[0].count(True) == 2
    assert {a.dtype for a in pa.tree.leaves(grads) if a is not None} == {pa.float32}


def test_a_module_of_two_dtypes_and_of_shapes_only_may_be_cast(backend):
    model = nn.Linear(3, 2)
    model.bias = model.bias.astype("float16")
    for given in (model, pa.tree.map(lambda a: a.spec, model)):
        assert [a.dtype for a in pa.tree.leaves(given.astype("bfloat16"))] == [pa.bfloat16] * 2
        same = given.astype("float32")
        assert same.weight is given.weight and same.bias.dtype == pa.float32


def test_all_arrays_are_cast_at_once(backend):
    """Unused gradients are 0."""
    calls, kernel = [], backend.kernels.get(ops.astype_all)

    def counted(out, arrays, **params):
        calls.append(len(arrays))
        return kernel(out, arrays, **params)

    if kernel is None:
        pytest.skip("the backend casts them one by one")
    model = nn.Linear(3, 2)
    with pa.use_backend(backend._replace(kernels={**backend.kernels, ops.astype_all: counted})) as other:
        grads = pa.grad(lambda m: pa.sum(m.astype("bfloat16").weight).astype("float32"))(model.to(other))
    assert calls == [2, 2] and grads.bias.tolist() == [0, 0] and grads.weight.tolist() == [[1] * 3] * 2


def test_what_cannot_be_cast_together():
    x = pa.ones(2)
    for arrays, dtype, error, text in (
        (x, "float16", TypeError, "astype_all: got no list"),
        ([x, x.astype("float16")], "float64", DtypeError, "several"),
        ([x.astype("int32")], "float16", DtypeError, "int32"), ([x], "int32", DtypeError, "int32"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            ops.astype_all(arrays, dtype=dtype)
    assert ops.astype_all([], dtype="float16") == ()
