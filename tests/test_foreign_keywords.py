"""Keywords of other libraries: the error says what to write instead, and a correct call is not asked."""

import copy
import inspect
import operator
import pickle

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, optim
from polyarr.core import keywords

OPS = {
    "sum(x, dim=0, keepdim=True)": r"unknown argument dim (write axis), keepdim (write keepdims); it takes sum(x, ",
    "std(x, unbiased=False)": "unknown argument unbiased (write correction); ",
    "matmul(input=x, other=x)": "missing x, y, unknown argument input (write x), other (write y); ",
    "pow(x, exponent=2)": "missing y, unknown argument exponent (write y); ",
    "permute_dims(x, dims=(1, 0))": "unknown argument dims (write axes); ",
    "attention(x, x, x, attn_mask=None)": "unknown argument attn_mask (write mask); ",
    "concat([x], dim=0)": "unknown argument dim (write axis); it takes concat(arrays, axis=0)",
    "cumulative_sum(x, dim=0)": "unknown argument dim (write axis); it takes cumulative_sum(x, axis=None, ",
    "fft.fft(x, dim=0)": "unknown argument dim (write axis); it takes fft(x, /, n=None, axis=-1, ",
    "random.normal(size=3)": "unknown argument size (write shape); it takes normal(shape=(), *, mean=0.0, ",
    "random.normal(0, 1, 3)": "too many arguments; it takes normal(shape=(), *, mean=0.0, ",
    "vmap(pa.abs, in_dims=1)": "unknown argument in_dims (write in_axes); it takes vmap(fn, in_axes=0, ",
    "scan(pa.add, init=x, xs=x)": "missing carry, unknown argument init (write carry); it takes scan(body, carry, ",
    "where(x > 0)": "missing x, y (for the indices write pa.nonzero); it takes where(condition, x, y)",
    "einsum('ij->j', x, optimize=True)": "unknown argument optimize (leave it out: ",
    "relu(x, inplace=True)": "unknown argument inplace (leave it out: results are new arrays); ",
    "mean(x, dtype=pa.float64)": "unknown argument dtype (write .astype(dtype)); ",
    "interpolate(x, size=3)": "unknown argument size (write shape); it takes interpolate(x, shape=None, *, ",
    "max_pool(x, kernel_size=2)": "missing kernel, unknown argument kernel_size (write kernel); it takes max_pool(x, ",
    "cross_entropy(x, pa.asarray([0, 1]), weight=x)": "unknown argument weight (of a loss, multiply the losses of ",
    "mean(x, weights=x)": "unknown argument weights; it takes mean(x, *, axis=None, keepdims=False)",
}
CLASSES = {
    "nn.Dropout(p=0.5)": "unknown argument p (write rate); it takes rate",
    "nn.ReLU(inplace=True)": "unknown argument inplace (leave it out: results are new arrays); it takes no arguments",
    "nn.LayerNorm(normalized_shape=3)": "unknown argument normalized_shape (write emb_dim); it takes emb_dim, ",
    "nn.MultiHeadAttention(8, 2, dropout=0.1)": "unknown argument dropout (write drop_rate); ",
    "nn.Linear(3, 4, device='cuda')": "unknown argument device (leave it out: it computes where its arrays are, ",
    "nn.Embedding(3, 4, padding_idx=0)": "unknown argument padding_idx (write pa.where((i != 0)[..., None], emb(i), 0)",
    "nn.Conv2d(3, 4, 3, padding_mode='reflect')": "unknown argument padding_mode (write pa.pad(x, ",
    "nn.MultiHeadAttention(4, 2)(pa.ones((1, 3, 4)), key_padding_mask=None)": (
        "unknown argument key_padding_mask (write key_mask=~pad of a layer, or mask=~pad[:, None, None, :]); "
    ),
    "nn.Linear(3, 4).load_parameters({}, strict=False)": "unknown argument strict (write model.with_arrays(named) for ",
    "optim.Adam(learning_rate=0.1)": "unknown argument learning_rate (write lr); it takes lr, weight_decay, ",
    "optim.SGD(params=x, lr=0.1)": "unknown argument params (the model is given to init(model)); ",
}


@pytest.mark.parametrize("call", [*OPS, *CLASSES])
def test_a_keyword_of_another_library_leads_to_what_to_write(call, on_numpy):
    name = "load_parameters" if ".load_parameters(" in call else call.partition("(")[0].rpartition(".")[2]
    given = {"pa": pa, "nn": nn, "optim": optim, "x": pa.ones((2, 3))}
    with pytest.raises(TypeError) as caught:
        eval(call if call in CLASSES else f"pa.{call}", given)
    assert str(caught.value).startswith(f"{name}: {(OPS | CLASSES)[call]}")


def test_an_error_inside_a_function_is_raised_unchanged(on_numpy):
    with pytest.raises(TypeError, match=r"^scan: carry|missing 1 required positional argument: 'c'"):
        pa.scan(lambda a, b, c: (a, b), pa.ones(2), pa.ones((2, 2)))
    assert inspect.signature(pa.concat).parameters.keys() == {"arrays", "axis"}


def test_the_table_names_parameters_that_exist():
    functions = [*map(vars(pa).get, pa.__all__), *map(vars(pa.random).get, pa.random.__all__)]
    ops = [f for f in functions if callable(f) and not isinstance(f, type)]
    classes = [getattr(where, name) for where in (nn, optim) for name in where.__all__]
    own = {name for f in (*ops, *filter(callable, classes)) for name in inspect.signature(f).parameters}
    assert {ours for names in keywords._OURS.values() for ours in names} <= own


def test_a_class_may_have_such_a_parameter_itself():
    class Own(nn.Module):
        def __init__(self, dim, **others):
            self.dim, self.others = dim, others

    assert Own(dim=3, device="cpu").others == {"device": "cpu"}
    assert optim.AdamW(lr=0.1, eps=1e-6).eps == 1e-6


def test_a_class_without_init_takes_no_arguments():
    class Plain(nn.Module):
        pass

    with pytest.raises(TypeError, match=r"^Plain\(\) takes no arguments$"):
        Plain(3)
    assert str(inspect.signature(Plain)) == "()"
    assert list(inspect.signature(nn.Dropout).parameters) == ["rate"]
    for made in (pickle.loads(pickle.dumps(nn.Dropout(0.5))), copy.deepcopy(nn.Dropout(0.5))):
        assert made.rate == 0.5


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("zeros", (3, "float64")), ("ones", ((2, 3), "int16")), ("full", (2, 1.5, "float64")), ("eye", (3, 4, 1)),
        ("asarray", ([1, 2], "float64")), ("zeros_like", ("x", "int32")), ("full_like", ("x", 2, "int32")),
        ("concat", (["x", "x"], 1)), ("repeat", ("x", 2, 1)), ("diff", ("x", 1, 0)),
        ("count_nonzero", ("x", 0)), ("searchsorted", ("v", "v", "right")), ("fft.fft", ("x", 5, 0)),
        ("fft.irfft", ("x", 5, 0)), ("fft.fftn", ("x", (4, 5), (0, 1), "ortho")), ("fft.rfftfreq", (8, 0.5)),
        ("fft.fftshift", ("x", 1)), ("linalg.pinv", ("x", 0.5)),
    ],
)  # fmt: skip
def test_parameters_by_position_are_in_numpys_order(name, args, on_numpy):
    given = {"x": np.arange(6.0).reshape(2, 3) ** 2, "v": np.arange(3.0)}

    def filled(a, convert):
        if isinstance(a, list):
            return [filled(member, convert) for member in a]
        return convert(given[a]) if isinstance(a, str) and a in given else a

    found, due = (
        operator.attrgetter(name)(space)(*[filled(a, space.asarray) for a in args]) for space in (pa, np)
    )  # fmt: skip
    for got, wanted in zip(found, due, strict=True) if isinstance(due, tuple) else [(found, due)]:
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-6, atol=1e-7)


def test_cumulative_sums_take_the_axis_by_position(on_numpy):
    x = pa.asarray([[1, 2], [3, 4]])
    assert pa.cumulative_sum(x, 1).tolist() == [[1, 3], [3, 7]]
    assert pa.cumulative_prod(x, 1).tolist() == [[1, 2], [3, 12]]


def test_a_shape_in_several_arguments_is_named(on_numpy):
    with pytest.raises(pa.DtypeError, match=r"^no dtype 4 \(a shape is one argument, as \(3, 4\)\); polyarr"):
        pa.zeros(3, 4)
