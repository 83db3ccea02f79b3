"""Error messages: one line that names the user's argument, the value given and the value required."""

import copy
import math
import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from polyarr import plugins
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend
from polyarr.core.errors import AxisError, BackendError, DtypeError, ShapeError
from polyarr.core.op import OPS, primitive
from polyarr.plugins import hookimpl

pytestmark = pytest.mark.usefixtures("on_numpy")


def matrix() -> pa.Array:
    return pa.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def put(x: pa.Array, key: object, value: object) -> None:
    x[key] = value


def sgd(params: object, grads: object, decay: object = (0.0,), lr: object = 0.1) -> object:
    return pa.ops.sgd(params, grads, grads, lr, momentum=0.0, weight_decay=decay, nesterov=False)


def adamw(params: list, v: object, step: object = 1) -> object:
    settings = {"beta1": 0.9, "beta2": 0.9, "eps": 1e-8, "weight_decay": (0.0,), "decoupled": True}
    return pa.ops.adamw(params, params, params, v, 0.1, step, **settings)


def refused(call: Callable, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as found:
        call(matrix())
    assert found.type is error and "\n" not in str(found.value)
    assert re.search(message, str(found.value)), str(found.value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: put(x, 0, [1.0, 2.0]), TypeError, r"^x\[key\] = value: value is a list; it must be a polyarr array"),
        (lambda x: put(x, 0, None), TypeError, r"^x\[key\] = value: value is None"),
        (lambda x: put(x, x > 0, "a"), TypeError, r"^x\[key\] = value: value is a str"),
        (lambda x: put(x, 0, np.ones(3)), TypeError, r"value is a numpy\.ndarray; it must be a polyarr array"),
        (lambda x: put(x, 0, 1j), DtypeError, r"value is 1j; float32 has no imaginary part"),
        (lambda x: put(x, 0, pa.ones(2)), ShapeError, r"value is float32\[2\]; it must broadcast to \[3\]"),
        (lambda x: put(x.astype(pa.int8), 0, 300), OverflowError, r"^x\[key\] = value: value is 300; int8 holds"),
        (lambda x: put(x, "a", 1), IndexError, "^indexing: an index is str"),
    ],
)
def test_setting_items(call: Callable, error: type[Exception], message: str) -> None:
    refused(call, error, message)


def test_where_takes_two_numbers() -> None:
    mask = matrix() > 3
    for x, y, dtype in (
        (1, 0, pa.int64),
        (1.5, False, pa.float32),
        (True, False, pa.bool),
        (np.float32(2), 1, "float32"),
    ):
        found = pa.where(mask, x, y)
        assert found.dtype == dtype and found.tolist() == np.where(mask.numpy(), x, y).tolist()
    assert pa.where(mask, float("inf"), 0).tolist()[1] == [float("inf")] * 3
    refused(lambda x: pa.where(mask, 2**70, 0), OverflowError, "^where: x is an int of 71 bits")
    refused(lambda x: pa.where(mask, 0, 2**70), OverflowError, "^where: y is an int of 71 bits")
    for condition in (True, None, [True, False], np.ones(2, bool)):
        refused(lambda x, c=condition: pa.where(c, 1, 0), TypeError, "^where: condition is .*must be a polyarr array")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: pa.take(x, 1), "^take: indices is a Python int; it must be an integer array$"),
        (lambda x: pa.vmap(lambda row: pa.take(row, 1))(x), "^take: indices is a Python int; it must be an integer"),
        (lambda x: pa.embedding(x, 1), "^embedding: indices is a Python int; it must be an integer array$"),
        (lambda x: pa.scatter(x, 0, x[0]), "^scatter: indices is a Python int; it must be an integer array$"),
        (lambda x: pa.where(True, x, x), "^where: condition is a Python bool; it must be a bool array$"),
        (lambda x: pa.global_norm([1.0, x]), "^global_norm: got no list of arrays"),
        (lambda x: pa.repeat(2.0, pa.asarray([1]), axis=0), "^repeat: x is a float; it must be"),
        (lambda x: pa.special.polygamma(1, "a"), "^polygamma: x is .*; it must be"),
        (lambda x: pa.linalg.matrix_rank(x, rtol="a"), "^matrix_rank: rtol is 'a'; it must be a number$"),
    ],
)
def test_what_is_no_array_is_refused_on_every_backend(backend: pa.Backend, call: Callable, message: str) -> None:
    refused(call, TypeError, message)


def test_an_array_without_elements_shows_its_shape() -> None:
    assert repr(pa.zeros((0, 3))) == "Array([], shape=(0, 3), float32, 'numpy')"


def test_copies_stay_where_they_are() -> None:
    """Also on a backend without a name, and recorded on the tape."""
    x = pa.asarray([1.0, 2.0], device=get_backend()._replace(name="mirror"))
    for y in (copy.copy(x), copy.deepcopy([x])[0]):
        assert y is not x and y.backend is x.backend and y.tolist() == [1, 2]
    assert pa.grad(lambda a: pa.sum(copy.deepcopy(a) * 3))(x).tolist() == [3, 3]


def test_a_call_that_does_not_fit_names_the_function_that_was_called() -> None:
    """In polyarr's or Python's words, without names of helpers, closures or lambdas."""
    called = {f"Array.{name}": getattr(matrix(), name) for name in vars(pa.Array)}
    called |= {name: value for name, value in vars(pa).items() if not name.startswith("_")}
    told = []
    for name, value in called.items():
        if callable(value):
            with pytest.raises(TypeError) as found:
                value(*[1] * 9, nonsense=1)
            if re.search(r"<|\b_[a-z]", str(found.value)):
                told.append(f"{name}: {found.value}")
    assert len(called) > 200 and told == []


# ---- arguments of a wrong kind -----------------------------------------------------------------------------------

WRONG = ("abc", 1.5, 1j, object(), ("a",), {}, float, np.ones(2), pa.ones((2, 2), device="numpy"))
# Functions that are no ops, with one argument that is not an array.
FUNCTIONS = {
    "broadcast_arrays": lambda a: pa.broadcast_arrays(matrix(), a),
    "count_nonzero": pa.count_nonzero,
    "cumulative_prod": lambda a: pa.cumulative_prod(a, axis=0),
    "diff": pa.diff,
    "einsum": lambda a: pa.einsum("i->", a),
    "full_like": lambda a: pa.full_like(a, 1),
    "meshgrid": lambda a: pa.meshgrid(a),
    "nonzero": pa.nonzero,
    "random.choice_from_logits": pa.random.choice_from_logits,
    "random.permutation": pa.random.permutation,
    "unique_all": pa.unique_all,
}
# Calls with one argument that must be an int or ints, by the name that the message must have.
INTS = {
    "sum: axis": lambda x, a: pa.sum(x, axis=a),
    "mean: axis": lambda x, a: x.mean(axis=a),
    "argmax: axis": lambda x, a: pa.argmax(x, axis=a),
    "sort: axis": lambda x, a: pa.sort(x, axis=a),
    "concat: axis": lambda x, a: pa.concat([x, x], axis=a),
    "diff: axis": lambda x, a: pa.diff(x, axis=a),
    "diff: n": lambda x, a: pa.diff(x, n=a),
    "eye: k": lambda x, a: pa.eye(2, k=a),
    "flip: axis": lambda x, a: pa.flip(x, axis=a),
    "moveaxis: source": lambda x, a: pa.moveaxis(x, a, 0),
    "moveaxis: destination": lambda x, a: pa.moveaxis(x, 0, a),
    "permute_dims: axes": lambda x, a: pa.permute_dims(x, a),
    "random.randint: high": lambda x, a: pa.random.randint(0, a),
    "reshape: shape": lambda x, a: pa.reshape(x, a),
    "roll: shift": lambda x, a: pa.roll(x, a, axis=0),
    "roll: axis": lambda x, a: pa.roll(x, 1, axis=a),
    "split: indices_or_sections": lambda x, a: pa.split(x, a),
    "squeeze: axis": lambda x, a: pa.squeeze(x, a),
    "tensordot: axes": lambda x, a: pa.tensordot(x, x, axes=a),
    "pad: pad_width": lambda x, a: pa.pad(x, pad_width=a),
    "topk: k": lambda x, a: pa.topk(x, k=a),
    "tril: k": lambda x, a: pa.tril(x, k=a),
    "zeros: shape": lambda x, a: pa.zeros(a),
}
NUMBERS = {
    "attention: scale": lambda x, a: pa.attention(x, x, x, scale=a),
    "dropout: rate": lambda x, a: pa.dropout(x, 1, 1, rate=a),
    "random.normal: std": lambda x, a: pa.random.normal(std=a),
    "random.uniform: low": lambda x, a: pa.random.uniform(low=a),
    "var: correction": lambda x, a: pa.var(x, correction=a),
    "layer_norm: eps": lambda x, a: pa.layer_norm(x, eps=a),
    "rms_norm: eps": lambda x, a: pa.rms_norm(x, eps=a),
    "batch_norm: eps": lambda x, a: pa.ops.batch_norm(x, eps=a),
    "batch_norm_inference: eps": lambda x, a: pa.ops.batch_norm_inference(x, x[0], x[0], eps=a),
    "group_norm: eps": lambda x, a: pa.ops.group_norm(x, groups=1, eps=a),
    "instance_norm: eps": lambda x, a: pa.ops.instance_norm(x[None], eps=a),
}


# Numbers that must be at least 0, or from 0 to 1; others would give nan or a meaningless result.
AT_LEAST_0 = {
    "random.normal: std": lambda x, a: pa.random.normal(std=a),
    "LayerNorm: eps": lambda x, a: pa.nn.LayerNorm(3, a),
    "RMSNorm: eps": lambda x, a: pa.nn.RMSNorm(3, a),
    "BatchNorm: eps": lambda x, a: pa.nn.BatchNorm(3, a),
    "GroupNorm: eps": lambda x, a: pa.nn.GroupNorm(1, 3, a),
    "InstanceNorm: eps": lambda x, a: pa.nn.InstanceNorm(3, a),
    "SGD: lr": lambda x, a: pa.optim.SGD(lr=a),
    "SGD: momentum": lambda x, a: pa.optim.SGD(momentum=a),
    "Adam: clip": lambda x, a: pa.optim.Adam(clip=a),
    "Adam: eps": lambda x, a: pa.optim.Adam(eps=a),
    "AdamW: weight_decay": lambda x, a: pa.optim.AdamW(weight_decay=a),
}
FROM_0_TO_1 = {
    "dropout: rate": lambda x, a: pa.dropout(x, 1, 1, rate=a),
    "cross_entropy: label_smoothing": lambda x, a: pa.cross_entropy(x, pa.asarray([0, 1]), label_smoothing=a),
    "linear_cross_entropy: label_smoothing": lambda x, a: pa.ops.linear_cross_entropy(
        x, x, pa.asarray([0, 1]), label_smoothing=a
    ),
    "random.bernoulli: p": lambda x, a: pa.random.bernoulli(a),
    "Dropout: the dropout rate": lambda x, a: pa.nn.Dropout(a),
    "MultiHeadAttention: the dropout rate": lambda x, a: pa.nn.MultiHeadAttention(4, 2, drop_rate=a),
    "BatchNorm: momentum": lambda x, a: pa.nn.BatchNorm(3, momentum=a),
}


@pytest.mark.parametrize("name", AT_LEAST_0)
@pytest.mark.parametrize("given", (-1, math.nan, "abc", [1.0]), ids=lambda a: type(a).__name__)
def test_what_is_below_0(name: str, given: object) -> None:
    error, due = (ValueError, "at least 0") if isinstance(given, (int, float)) else (TypeError, "a number")
    refused(lambda x: AT_LEAST_0[name](x, given), error, rf"^{name} is .*; it must be {due}$")


@pytest.mark.parametrize("name", FROM_0_TO_1)
@pytest.mark.parametrize("given", (-0.5, 2, math.nan, "abc", None), ids=str)
def test_what_is_not_from_0_to_1(name: str, given: object) -> None:
    error, due = (ValueError, "from 0 to 1") if isinstance(given, (int, float)) else (TypeError, "a number")
    refused(lambda x: FROM_0_TO_1[name](x, given), error, rf"^{name} is .*; it must be {due}$")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("given", (*WRONG[:-1], None, [1.0]), ids=lambda a: type(a).__name__)
def test_what_is_no_array(name: str, given: object) -> None:
    refused(lambda _: FUNCTIONS[name](given), TypeError, rf"^{name}: \w+( \w+)? is (None|a [\w.]+); it must be an? ")


@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("given", WRONG, ids=lambda a: type(a).__name__)
def test_what_is_no_int(name: str, given: object) -> None:
    refused(lambda x: INTS[name](x, given), TypeError, rf"^{name} is .*; it must be ")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("given", ("abc", 1j, object(), ("a",)), ids=lambda a: type(a).__name__)
def test_what_is_no_number(name: str, given: object) -> None:
    refused(lambda x: NUMBERS[name](x, given), TypeError, rf"^{name} is .*; it must be a number$")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: pa.einsum(x, x), TypeError, r"^einsum: subscripts is float32\[2, 3\]; it must be a str"),
        (lambda x: pa.from_dlpack([1]), TypeError, "^from_dlpack: x is a list; it must speak DLPack"),
        (lambda x: pa.moveaxis(x, (0, 1), (0,)), ShapeError, r"source is \(0, 1\), destination is \(0,\); they must"),
        (lambda x: pa.roll(x, (1, 1), axis=0), ShapeError, "there must be one shift per axis"),
        (lambda x: pa.ops.global_norm(x), TypeError, "^global_norm: got no list of arrays"),
        (lambda x: pa.sum(3.0), TypeError, "^sum: x is a Python float; it must be an array$"),
        (lambda x: pa.prod(3), TypeError, "^prod: x is a Python int; it must be an array$"),
        (lambda x: pa.argmax(3), TypeError, "^argmax: x is a Python int; it must be an array$"),
        (lambda x: pa.reshape(3, (1,)), TypeError, "^reshape: x is a Python int; it must be an array$"),
        (lambda x: pa.take(x, 1.5), DtypeError, "^take: indices is a Python float; it must be integers$"),
        (lambda x: pa.linear(x, None), TypeError, "^linear: weight is None; it must be an array$"),
        (lambda x: pa.linear([x], x), TypeError, "^linear: x is a list; it must be an array"),
        (lambda x: pa.mse([1.0], x), TypeError, "^mse: x is a list; it must be an array$"),
        (lambda x: pa.cross_entropy(x, [0, 1]), TypeError, "^cross_entropy: targets is a list; it must be an array$"),
        (lambda x: pa.embedding(x, [0, 1]), TypeError, "^embedding: indices is a list; it must be an array"),
        (lambda x: pa.embedding(x, x), DtypeError, r"^embedding: indices is float32\[2, 3\]; its dtype must be in"),
        (
            lambda x: pa.cross_entropy(pa.ones((2, 3, 5)), pa.ones((2, 5), dtype="int64")),
            ShapeError, r"targets must be \[2, 3\]; of classes on axis 1 write polyarr\.moveaxis\(logits, 1, -1\)$",
        ),
        (lambda x: pa.zeros(2, device=[1]), TypeError, r"^a backend is given by name or as a Backend, not as \[1\]$"),
        (lambda x: get_backend(np.ones((9, 9))), TypeError, "not as a numpy.ndarray$"),
        (lambda x: x.to(pa.float16), TypeError, r"not as dtype\('float16'\); convert dtypes by astype$"),
        (lambda x: pa.reshape(x, (3, -1, -1)), ShapeError, r"^reshape: shape is \[3, -1, -1\]; at most one length may"),
        (lambda x: x @ pa.ones(2), ShapeError, r"y is float32\[2\]; x.shape\[-1\] must equal y.shape\[0\]$"),
        (lambda x: pa.asarray(1, dtype=np.ones((9, 9))), DtypeError, "^no dtype a numpy.ndarray; polyarr has"),
        (lambda x: pa.asarray(1, dtype=("a", 2, 3)), DtypeError, r"^no dtype \('a', 2, 3\); polyarr has"),
        (lambda x: pa.dropout(x, key="a"), TypeError, "^dropout: missing counter"),
        (lambda x: pa.dropout(x, "a", 1, rate=0.5), TypeError, "^dropout: key is a builtins.str"),
        (
            lambda x: pa.dropout(x, 1.5, 1, rate=0.5),
            TypeError,
            "^random_bits: key is a Python float; it must be an int$",
        ),
        (
            lambda x: pa.random.set_state((1, 2, 3)),
            TypeError,
            r"state is \(1, 2, 3\); it must be a tuple that get_state",
        ),
        (lambda x: pa.random.set_state((1, "a")), TypeError, "state is 'a'; it must be an int$"),
        (lambda x: pa.nonzero(x.spec), TypeError, "^nonzero: x is float32.*, whose values decide the shape$"),
        (lambda x: pa.cumulative_prod(x.spec), ShapeError, "^cumulative_prod: .*axis must be given"),
        (lambda x: pa.diff(x, prepend=[1.0]), TypeError, "^diff: prepend is a list; it must be a polyarr array"),
        (lambda x: pa.zeros(2, dtype=""), DtypeError, "no dtype ''"),
        (lambda x: pa.mse(x[:, :1], x[:, 0]), ShapeError, r"^mse: x is float32\[2, 1\], y is float32\[2\]; both must"),
        (lambda x: pa.attention(*[pa.zeros((n, 2, 3)) for n in (4, 3, 3)]), ShapeError, "^attention: q .* broadcast$"),
        (
            lambda x: pa.attention(*[pa.zeros((2, n, 3, 4)) for n in (6, 2, 2)]),
            ShapeError,
            r"^attention: q is .* broadcast; for 2 heads of keys, give pa\.repeat\(k, 3, axis=-3\), and v likewise$",
        ),
        (lambda x: pa.attention(1.0, x, x), ShapeError, "^attention: q is a Python float; it must have at least two"),
        (lambda x: pa.attention(x[0, 0], x, x), ShapeError, r"^attention: q is float32\[\]; it must have at least two"),
        (
            lambda x: pa.attention(*3 * [pa.zeros((2, 4, 3, 8))], pa.ones((2, 3), dtype=pa.bool)),
            ShapeError,
            r"^attention: mask is bool\[2, 3\]; it must be bool or floating and broadcast to \[2, 4, 3, 3\]; "
            r"of a mask of keys \(batch, keys\) write mask\[:, None, None, :\]$",
        ),
        (lambda x: pa.attention(x, x, x, pa.ones(3)), ShapeError, r"mask is float32\[3\]; it .* to \[2, 2\]$"),
        (lambda x: pa.attention(x, x, x, pa.ones((1, 2, 2))), ShapeError, r"mask is .* to \[2, 2\]$"),
        (
            lambda x: pa.cross_entropy(x, x),
            DtypeError,
            r"^cross_entropy: targets is float32\[2, 3\]; its dtype must be integer; of probabilities write -pa\.mean",
        ),
        (lambda x: pa.cross_entropy(x, x[:, 0]), DtypeError, "^cross_entropy: targets is .* must be integer$"),
        (lambda x: pa.attention(x, x, x, 1.0), ShapeError, "^attention: mask is a Python float; it must be bool or fl"),
        (lambda x: sgd(x, [x]), TypeError, r"^sgd: params is float32\[2, 3\]; it must be a list of arrays$"),
        (lambda x: sgd([x], None), TypeError, "^sgd: grads is None; it must be a list of arrays$"),
        (lambda x: sgd([x], [1.0]), TypeError, "^sgd: grads holds a Python float; it must be a list of arrays$"),
        (lambda x: sgd([x], [x[0]]), ShapeError, "^sgd: grads has other shapes than params; every list must match"),
        (lambda x: sgd([x > 0], [x]), DtypeError, r"^sgd: an array of params is bool\[2, 3\]; its dtype must be float"),
        (lambda x: sgd([x], [x], decay=0.1), ShapeError, "^sgd: weight_decay is 0.1; it must be a number for each of"),
        (lambda x: sgd([x], [x], lr=None), TypeError, "^sgd: lr is None; it must be a number, or an array without"),
        (lambda x: adamw([x], x), TypeError, r"^adamw: v is float32\[2, 3\]; it must be a list of arrays$"),
        (lambda x: adamw([x], [x], x), TypeError, r"^adamw: step is float32\[2, 3\]; it must be a number, or an array"),
        (lambda x: pa.exp([1.0, 2.0]), TypeError, "^exp: x is a list of Python numbers; make it an array"),
        (lambda x: pa.stack([1.0, 2.0]), TypeError, "^stack: arrays is a list of Python numbers; make"),
        (lambda x: pa.add(x, [[1.0, 2.0, 3.0]]), TypeError, "^add: y is a list of lists; make it an array"),
        (lambda x: pa.where(x > 0, ((1.0,),), x), TypeError, "^where: x is a list of lists; make it an array"),
        (lambda x: pa.concat([(x, x)]), TypeError, "^concat: arrays is a list of lists; make it an array"),
        (lambda x: pa.nn.Linear("3", 2), TypeError, "^Linear: in_features is '3'; it must be an int$"),
        (lambda x: pa.nn.Conv2d(3, "4", 3), TypeError, "^Conv2d: out_channels is '4'; it must be an int$"),
        (lambda x: pa.nn.Sequential([pa.tanh]), TypeError, r"^Sequential: a layer is a list; .*\(\*layers\)$"),
        (lambda x: pa.nn.Sequential(pa.tanh, "relu"), TypeError, "^Sequential: a layer is a str; it must be a layer"),
        (lambda x: pa.nn.Dropout("0.1"), TypeError, "^Dropout: the dropout rate is '0.1'; it must be a number"),
        (lambda x: pa.clip([None]), TypeError, "^clip: x is a list; it must be an array or a Python number$"),
        (lambda x: pa.clip([x]), TypeError, "^clip: x is a list; it must be an array or a Python number$"),
        (lambda x: pa.clip(x > 1), DtypeError, r"^clip: x is bool\[2, 3\]; its dtype must be real-valued, not bool$"),
        (lambda x: pa.astype(300, "int8"), TypeError, "^astype: x is a Python int; it must be an array$"),
        (lambda x: pa.full_like(x, x), ShapeError, r"^fill: value is float32\[2, 3\]; it must be a number, or an arra"),
        (lambda x: pa.ops.iota(None, 1, size=2, dtype="int8"), TypeError, "^iota: start is None; it must be a Pyt"),
        (lambda x: pa.ops.iota(0, 1, size=(2, 3), dtype="int8"), TypeError, r"^iota: size is \(2, 3\); it must be"),
        (lambda x: pa.repeat(x, [1, 2], axis=0), TypeError, r"^repeat: repeats is \(1, 2\); it must be an int$"),
        (lambda x: pa.repeat(x, -1), ShapeError, r"^repeat: repeats is \[-1\]; lengths must not be negative$"),
        (lambda x: pa.linspace(0, 1, [1, 2]), TypeError, r"^linspace: num is \[1, 2\]; it must be an int$"),
        (lambda x: pa.linspace(0, 1, 10**30), ShapeError, r"^linspace: the result would be float32\[10{30}\]; an arr"),
        (lambda x: pa.meshgrid(x[0], indexing=[x]), ValueError, "^meshgrid: indexing is a list; it must be 'xy' or"),
        (lambda x: x[[[1], [1, 2]]], IndexError, "^indexing: an index is a list of rows of several lengths; they must"),
        (lambda x: pa.isdtype("float", "bool8"), ValueError, "^isdtype: kind is 'bool8'; it must be a dtype or one of"),
        (lambda x: pa.isdtype("abc", "integral"), DtypeError, "^no dtype 'abc'; polyarr has"),
        (lambda x: pa.linalg.cross(x, x, axis=None), TypeError, "^cross: axis is None; it must be an int$"),
        (lambda x: pa.linalg.matrix_norm(x, ord=[1]), ValueError, r"^matrix_norm: ord is \[1\]; it must be 'fro', "),
        (lambda x: pa.matmul(x, x, precision=np.ones(2)), ValueError, "^matmul: precision is a numpy.ndarray; it must"),
        (lambda x: pa.ops.slice(x, (0, 0), steps=(1, 1), shape=None), TypeError, "^slice: shape is None; it must be"),
        (lambda x: pa.save("", x), ValueError, "^save: path is ''; it must name a file$"),
        (lambda x: pa.compile([x]), TypeError, "^compile: a list is no plain function; what runs later cannot be"),
        (lambda x: pa.compile(lambda y: y, donate=None), TypeError, "^compile: donate is None; it must be an argum"),
        (lambda x: pa.compile(lambda y: y, constants=[3]), TypeError, r"^compile: constants is \[3\]; it must be an a"),
        (lambda x: pa.linalg.diagonal([[1.0]]), TypeError, "^diagonal: x is a list; it must be a polyarr array"),
        (lambda x: pa.nn.MultiHeadAttention(4, 2)(None), TypeError, "^MultiHeadAttention: x is None; it must be a pol"),
        (lambda x: pa.var(x, correction=10**400), OverflowError, r"^var: correction is an int beyond 10\*\*400; no fl"),
        (lambda x: pa.random.restored((1, "a")), TypeError, r"^random\.restored: state is 'a'; it must be an int$"),
        (lambda x: pa.random.reserve(1.5), TypeError, r"^random\.reserve: count is 1\.5; it must be an int$"),
        (lambda x: pa.nn.Linear(2, 3, init="normal"), TypeError, "^Linear: init is 'normal'; it must be a function of"),
        (lambda x: pa.nn.Linear(2, 3, init=lambda s: x), ShapeError, r"^Linear: init gave float32\[2, 3\]; it must"),
        (lambda x: pa.nn.Conv1d(2, 3, 1, init=1), TypeError, "^Conv1d: init is 1; it must be a function of a shape"),
        (lambda x: pa.nn.Conv2d(3, 4, None), TypeError, "^Conv2d: kernel_size is None; it must be an int or a tuple"),
        (lambda x: pa.nn.Conv1d(2, 3, [x]), TypeError, "^Conv1d: kernel_size is a list; it must be an int or a tuple"),
        (lambda x: pa.nn.constant("a"), TypeError, r"^nn\.constant: value is 'a'; it must be a number$"),
        (lambda x: pa.nn.MultiHeadAttention(4, "2"), TypeError, "^MultiHeadAttention: n_heads is '2'; it must be an i"),
        (lambda x: pa.nn.PositionalEncoding(4)(None), TypeError, "^PositionalEncoding: x is None; it must be a pol"),
        (lambda x: pa.nn.KeyValueCache(1, 1, 1, 1, "a"), TypeError, "^KeyValueCache: like is a str; it must be a poly"),
        (lambda x: pa.nn.turns(x, 0, 1), ValueError, "^turns: head_size is 0, theta is 10000.0; they must be above 0"),
        (lambda x: pa.nn.turns(None, 2, 1), TypeError, "^turns: like is None; it must be a polyarr array"),
        (lambda x: pa.nn.LoRALinear(None, 1, 1.0), TypeError, "^LoRALinear: base is None; it must be a Linear, Gro"),
        (lambda x: pa.nn.merge_lora(x), TypeError, r"^merge_lora: model is float32\[2, 3\]; it must be a Module$"),
        (lambda x: pa.nn.quantized([x]), TypeError, "^quantized: model is a list; it must be a Module$"),
        (lambda x: pa.nn.QuantizedLinear.of(None), TypeError, "^QuantizedLinear: weight is None; it must be"),
        (lambda x: pa.nn.QuantizedLinear.of(x, "q5"), ValueError, "kind is 'q5'; it must be one of 'int8', 'q8_0'"),
        (lambda x: pa.nn.QuantizedLinear.of(pa.ones((2, 33)), "q8_0"), ShapeError, "its rows must be multiples of 32"),
        (lambda x: pa.optim.Adam(betas=0.9), TypeError, r"^Adam: betas is 0\.9; it must be two numbers$"),
        (lambda x: pa.optim.Adam(betas=(0.9, None)), TypeError, r"^Adam: betas\[1\] is None; it must be a number$"),
        (lambda x: pa.optim.SGD(decays=True), TypeError, "^SGD: decays is True; it must be a function of a name and"),
        (lambda x: pa.optim.SGD(loss_scale=8.0), TypeError, r"^SGD: loss_scale is 8\.0; it must be a LossScale or N"),
        (lambda x: pa.optim.LossScale(every="1"), TypeError, "^LossScale: every is '1'; it must be a number$"),
        (lambda x: pa.optim.warmup_cosine(0.1, "2", 3), TypeError, "^warmup_cosine: warmup is '2'; it must be a num"),
        (lambda x: pa.mean(1.0), TypeError, "^mean: x is a Python float; it must be an array$"),
        (lambda x: pa.pad(1.0, 1), TypeError, "^pad: x is a Python float; it must be an array$"),
        (lambda x: pa.gelu(None), TypeError, "^gelu: x is None; it must be an array$"),
        (lambda x: pa.silu([x]), TypeError, "^silu: x is a list; it must be an array or a Python number$"),
        (lambda x: pa.stack([x, None]), TypeError, "^stack: arrays holds None; it must be a list of arrays$"),
        (lambda x: pa.concat([x, 1.0]), TypeError, "^concat: arrays holds a Python float; it must be a list of"),
        (lambda x: pa.astype(None, "int8", copy=False), TypeError, "^astype: x is None; it must be an array$"),
        (lambda x: pa.random.permutation(x, axis=5), AxisError, r"^random\.permutation: .*axis 5 must be from"),
    ],
)
def test_other_bad_calls(call: Callable, error: type[Exception], message: str) -> None:
    refused(call, error, message)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: pa.sum(x, 0, np.float64), "sum: keepdims"), (lambda x: x.mean(0, "float32"), "mean: keepdims"),
        (lambda x: pa.sort(x, -1, "stable"), "sort: descending"), (lambda x: pa.argmax(x, 0, None), "argmax: keepdims"),
        (lambda x: pa.attention(x, x, x, None, 0, 0, 0.5), "attention: causal"),
    ],
)  # fmt: skip
def test_a_flag_is_true_or_false(call: Callable, name: str, on_numpy: Backend) -> None:
    """NumPy and PyTorch have other parameters in these positions."""
    with pytest.raises(TypeError, match=f"^{name} is .*; it must be True or False$"):
        call(pa.ones((2, 2)))


def test_the_key_of_dropout_in_attention_is_an_int(on_numpy: Backend) -> None:
    x = pa.ones((2, 2))
    with pytest.raises(TypeError, match=r"^attention: key is a Python float; it must be an int$"):
        pa.attention(x, x, x, None, 0.0, True)  # PyTorch's dropout_p and is_causal


def test_differences_of_an_absurd_order_end() -> None:
    assert pa.diff(matrix(), n=10**30).shape == (2, 0)


def test_a_running_product_of_a_spec() -> None:
    assert pa.cumulative_prod(matrix().spec, axis=0) == matrix().spec


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x: pa.zeros(10**30), r"^full: the result would be float32\[10{30}\]; an array has at most 2\*\*63 - 1"),
        (lambda x: pa.zeros((0, 10**30)), r"^full: the result would be float32\[0, 10{30}\]; an array has at most"),
        (lambda x: pa.broadcast_to(x, (2**59, 2, 3)) * 2, r"^broadcast_to: the result would be float32\[\d+, 2, 3\]"),
        (
            lambda x: pa.outer(*[pa.broadcast_to(x[0, :1], (2**40,))] * 2),
            r"^multiply: the result would be float32\[\d+, \d+\]; an array has at most",
        ),
        (
            lambda x: pa.ops.conv(pa.zeros((1, 4, 2)), pa.zeros((1, 3, 2)), padding=10**30),
            r"^conv: the result would be float32\[1, 20{29}2, 1\]; an array has at most",
        ),
    ],
)
def test_sizes_beyond_all_memory(backend: Backend, call: Callable, told: str) -> None:
    """NumPy and other libraries have different messages, and some compute something else."""
    with pa.use_backend(backend), pytest.raises(ShapeError, match=told):
        call(matrix())


def test_diagonals_beyond_all_integers(backend: Backend) -> None:
    with pa.use_backend(backend):
        x = matrix()
        zeros = [[0.0] * 3] * 2
        assert pa.tril(x, k=10**30).tolist() == pa.triu(x, k=-(10**30)).tolist() == x.tolist()
        assert pa.tril(x, k=-(10**30)).tolist() == pa.triu(x, k=10**30).tolist() == zeros


def test_a_fault_of_a_rule_is_no_fault_of_the_call() -> None:
    """An AttributeError is the caller's only if the object that lacks the attribute was an argument."""

    @primitive
    def broken(x, y=None):
        return x.shapes if y is None else math.nothing

    OPS.remove(broken)
    for args in ((matrix(),), (matrix(), None), (None, 1.0), (matrix(), [matrix()])):
        with pytest.raises(AttributeError, match=r"shapes|nothing") as found:
            broken(*args)
        assert found.value.__cause__ is None


def test_the_key_of_a_kernel_is_an_op() -> None:
    """A wrapper around an op as the key would never be looked up."""
    for kernels, message in (
        ({pa.reshape: len}, "reshape is a function around an op, use polyarr.ops.reshape; "),
        ({"exp": len}, "its table gave 'exp': .*; it must give op -> kernel or Fused; "),
        ({pa.exp: 3}, "its table gave <op exp.*>: 3; it must give op -> kernel or Fused; "),
    ):
        backend = Backend("odd", kernels, np.array, np.asarray)
        offer = hookimpl(lambda register, start=lambda b=backend: b: register("odd", start, api=2))
        plugin = SimpleNamespace(polyarr_backends=offer)
        with plugins.fresh():
            plugins.register_plugin(plugin)
            with pytest.raises(BackendError, match=message):
                get_backend("odd")
