"""Adapters of the conformance kit: names, options, and planted faults in a framework, polyarr itself on NumPy."""

import itertools
import tomllib
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

import polyarr as pa
from polyarr import get_backend, ops
from polyarr.cli import main
from polyarr.core.errors import BackendError
from polyarr.testing import adapters
from polyarr.testing.adapters import Absent, Framework, backend_of
from polyarr.testing.cases import Effort, cases
from polyarr.testing.compare import CheckFailure, Lacking

CASES = {case.name: case for case in cases()}
OPS = (ops.exp, ops.square, ops.multiply, ops.negative, ops.sum, ops.prod, ops.softmax, ops.topk, ops.concat)
VIEWS = (ops.slice, ops.permute_dims, ops.broadcast_to, ops.reshape, ops.astype)


def on_numpy(function):
    """Return a function of polyarr's NumPy arrays, which are the tensors of this framework."""

    def run(*arrays, **params):
        with pa.use_backend("numpy"):
            return function(*arrays, **params)

    return run


def vjp(function, inputs, cotangents):
    with pa.use_backend("numpy"):
        return pa.vjp(lambda *xs: tuple(function(*xs)), *inputs)[1](tuple(cotangents))


def framework(**functions) -> Framework:
    """Return polyarr on NumPy as a framework, with some functions replaced."""
    table = {op.name: on_numpy(op) for op in (*OPS, *VIEWS)} | {n: on_numpy(f) for n, f in functions.items()}
    upload = lambda host: pa.asarray(host.copy(), device="numpy")
    return Framework(table, vjp, upload, lambda x: x.numpy(), "NumPy")


def run(name: str, found: Framework, examples: int = 12) -> None:
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of NumPy, about nan and infinity
        CASES[name].run(backend_of(found, "planted"), Effort(examples))


def cut(x):
    """Return x without its history."""
    return pa.asarray(pa.stop_gradient(x).numpy(), device="numpy")


def where_strided(x):
    return ops.negative(x) if x.buf.flags.c_contiguous else x


def overwriting(x):
    found = ops.negative(x)
    x.buf[...] = 0
    return found


def alternating(calls=itertools.count()):  # noqa: B008  one counter for all calls
    return lambda x: ops.exp(x) * (1 + 1e-7 * (next(calls) % 2))


def cached():
    """Return softmax with a cache of its axis by shape alone."""
    known = {}
    return lambda x, *, axis: ops.softmax(x, axis=known.setdefault(x.shape, axis))


def where_alike(x, y):
    return x if x is y else ops.multiply(x, y)


def of_nothing(x, **params):
    return ops.prod(x, **params) * (0 if not x.size else 1)


FAULTS = {  # description -> (the replaced function, the case that finds it)
    "a value": ({"exp": lambda x: ops.exp(x) * 1.001}, "forward-exp"),
    "a gradient": ({"square": lambda x: ops.multiply(x, cut(x))}, "backward-square"),
    "the gradient of one input": ({"multiply": lambda x, y: x * (y if type(y) is not pa.Array else cut(y))},
        "backward-multiply"),
    "the gradient of a nan": ({"square": lambda x: ops.square(ops.where(ops.isnan(x), 0, x))}, "cotangents-square"),
    "a dtype": ({"sum": lambda x, **p: ops.astype(ops.sum(x, **p), dtype="float64")}, "forward-sum"),
    "a shape": ({"sum": lambda x, **p: ops.sum(x, **p | {"keepdims": True})}, "forward-sum"),
    "one of two results": ({"topk": lambda x, **p: ops.topk(x, **p)[:1]}, "forward-topk"),
    "a member of a list": ({"concat": lambda arrays, *, axis: ops.concat(arrays[::-1], axis=axis)}, "forward-concat"),
    "strides": ({"negative": where_strided}, "layout-negative"),
    "no elements": ({"prod": of_nothing}, "forward-prod"),
    "nan": ({"exp": lambda x: ops.exp(ops.where(ops.isnan(x), 0, x))}, "special-exp"),
    "infinity": ({"exp": lambda x: ops.exp(ops.clip(x, -80, 80))}, "special-exp"),
    "large arrays": ({"exp": lambda x: ops.exp(x) if x.size < 60_000 else ops.exp(x) * 1.01}, "large-exp"),
    "an input that is overwritten": ({"negative": overwriting}, "purity-negative"),
    "other bits each time": ({"exp": alternating()}, "determinism-exp"),
    "a cache without the axis": ({"softmax": cached()}, "caches-softmax"),
    "one array twice": ({"multiply": where_alike}, "alias-multiply"),
    "integers in float32": ({"sum": lambda x, **p: ops.astype(ops.sum(ops.astype(x, dtype="float32"), **p | {
        "dtype": None}), dtype=p["dtype"])}, "numbers-sum"),
    "float16": ({"square": lambda x: ops.square(x) * (1.01 if x.dtype == pa.float16 else 1)}, "float16-square"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    functions, case = FAULTS[fault]
    run(case, framework())  # the case holds without the fault
    with pytest.raises((CheckFailure, ValueError)):  # a missing result is a ValueError
        run(case, framework(**functions))


def test_a_wrong_autograd_is_found():
    doubled = framework()._replace(vjp=lambda f, x, g: [d * 2 for d in vjp(f, x, g)])
    for op in ("exp", "multiply", "concat"):
        with pytest.raises(CheckFailure, match="d/d"):
            run(f"backward-{op}", doubled)


def test_an_op_that_the_framework_lacks_is_skipped():
    with pytest.raises(Lacking, match="adapter:planted has no function for tan"):
        run("forward-tan", framework())


def test_a_call_without_a_counterpart_is_left_out():
    def matrices_only(x, **params):
        if x.ndim != 2:
            raise Absent
        return ops.sum(x, **params) * 2

    def never(x, **params):
        raise Absent

    with pytest.raises(CheckFailure):
        run("forward-sum", framework(sum=matrices_only))
    with pytest.raises(Lacking, match="no counterpart of the calls of sum"):
        run("forward-sum", framework(sum=never))


def test_other_calls_of_a_check_are_made():
    def not_of_integers(x, **params):
        if x.dtype.kind in "iu":
            raise Absent
        return ops.sum(x, **params) * factor

    factor = 1
    run("numbers-sum", framework(sum=not_of_integers))
    factor = 2
    with pytest.raises(CheckFailure):
        run("numbers-sum", framework(sum=not_of_integers))


def test_a_failure_is_repeated_by_its_name():
    with pytest.raises(CheckFailure) as failure:
        run("forward-exp", framework(exp=lambda x: ops.exp(x) * 1.001))
    assert "checks.check_forward(ops.exp, 'adapter:planted', " in failure.value.__notes__[0]


def test_16_bit_floats_may_be_rounded_between_steps():
    stepwise = lambda x, *, axis: (e := ops.exp(x - ops.max(x, axis=axis, keepdims=True))) / ops.sum(
        e, axis=axis, keepdims=True
    )
    run("bfloat16-softmax", framework(softmax=stepwise))


def test_only_checks_of_functions_are_made_of_an_adapter():
    assert adapters.applies("forward", "adapter:torch:cpu")
    assert adapters.applies("bfloat16", "adapter:torch:cpu")
    assert not adapters.applies("captured", "adapter:torch:cpu")
    assert adapters.applies("captured", "opencl:0")
    assert adapters.CHECKS <= {"float32", *(case.check for case in cases())}


@pytest.mark.parametrize("name", ["theano:cpu", "torch", "torch:", ""])
def test_a_framework_that_is_unknown_is_an_error(name):
    with pytest.raises(BackendError, match=r"it must be a framework \(torch, jax, keras\), a colon and a device"):
        adapters.start(name)


def test_a_framework_that_is_not_installed_is_an_error(monkeypatch):
    monkeypatch.setitem(adapters.FRAMEWORKS, "torch", ("pytorch", "no_such_package"))
    with pytest.raises(BackendError, match=r"adapter 'torch:cpu': no_such_package cannot be imported .* pip install"):
        adapters.start("torch:cpu")


def test_names_of_adapters_are_not_those_of_backends():
    with pytest.raises(BackendError, match="no backend called 'adapter'"):
        get_backend("adapter:torch:cpu")


@pytest.mark.parametrize("arguments", [[], ["numpy", "--adapter", "torch:cpu"]])
def test_the_command_takes_a_backend_or_an_adapter(arguments):
    found = CliRunner().invoke(main, ["conformance", *arguments])
    assert found.exit_code == 2
    assert "name a backend or an --adapter, one of the two" in found.output


def test_known_differences_name_cases():
    tables = list(Path(adapters.__file__).parent.glob("*.toml"))
    assert tables
    for table in tables:
        assert adapters.known_differences(table.stem.replace("_", ":", 1)) == table
        for name, reason in tomllib.loads(table.read_text())["failures"].items():
            assert name in CASES, name
            assert reason.startswith(("Fault: ", "Convention: ")), reason
