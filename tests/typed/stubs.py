"""Write the stubs: what type checkers see of the ops and of an array's methods. To be run as `make stubs`.

Signatures and defaults are those of the ops, and methods are those that polyarr.ops gives to Array. Types go by the
names of parameters: see PARAMETERS, in which a new name needs a line unless its default says what it is.
"""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from polyarr import ops
from polyarr.core.array import NUMBERS, Array
from polyarr.core.op import Op
from polyarr.core.spec import DTYPES, Spec
from polyarr.ops import catalogue, inner

ROOT = Path(__file__).parents[2]
NOTE = "# Written by `make stubs` out of the ops, which are the place for changes.\n"

ARRAYS, INTS = "Sequence[Array]", "int | Sequence[int]"
INPUTS = {  # that are not one array
    "arrays": ARRAYS, "params": ARRAYS, "grads": ARRAYS, "velocity": ARRAYS, "m": ARRAYS, "adamw.v": ARRAYS,
    "lr": "Array | float", "scale": "Array | float", "step": "Array | float", "start": "float", "iota.step": "float",
    "fill.value": "float | SupportsComplex", "key": "Array | int", "counter": "Array | int",
    "starts": "Sequence[Array | int]", "rtol": "Array | float",
}  # fmt: skip
PARAMETERS = {  # `op.name` goes before `name`, and that before the type of the default
    "precision": "str",
    "axis": INTS, "argmax.axis": "int", "argmin.axis": "int", "cumulative_sum.axis": "int", "repeat.axis": "int",
    "expand_dims.axis": "int | Sequence[int]", "dft.axis": "int | Sequence[int]",
    "axes": "Sequence[int]", "tensordot.axes": "int | Sequence[Sequence[int]]", "constant_values": "float",
    "destination": INTS, "source": INTS, "shape": INTS, "shift": INTS, "repetitions": INTS, "indices_or_sections": INTS,
    "pad_width": "int | Sequence[int] | Sequence[Sequence[int]]", "steps": "Sequence[int]",
    "dtype": "DType", "size": "int", "repeats": "int", "k": "int", "n": "int",
    "activation": "str", "rows_at_once": "int", "scale": "float", "eps": "float", "rate": "float",
    "momentum": "float", "beta1": "float", "beta2": "float", "weight_decay": "Sequence[float]",
    "nesterov": "bool", "decoupled": "bool", "inverse": "bool", "upper": "bool", "groups": "int",
    "kernel": INTS, "stride": INTS, "dilation": INTS, "output_padding": INTS, "divisor": "float",
    "padding": "str | int | Sequence[int] | Sequence[Sequence[int]]", "interpolate.scale": "float | Sequence[float]",
    "adaptive_mean_pool.shape": "int | Sequence[int | None]",
}  # fmt: skip
RESULTS = {  # that are not one array
    **dict.fromkeys(("eig", "eigh", "qr", "slogdet"), "tuple[Array, Array]"),
    "svd": "tuple[Array, Array, Array]",
    "cross_entropy_and_gradient": "tuple[Array, Array]", "batch_norm": "tuple[Array, Array, Array]",
    "split": "tuple[Array, ...]", "unstack": "tuple[Array, ...]", "topk": "tuple[Array, Array]",
    "astype_all": "tuple[Array, ...]",
    "sgd": "tuple[tuple[Array, ...], ...]", "adamw": "tuple[tuple[Array, ...], ...]",
}  # fmt: skip
SHARED = {  # signatures of many ops, each of which is a class that these ops are declared by
    "(x: Array) -> Array": "_Unary",
    "(x: Array | float, y: Array | float) -> Array": "_Binary",
    "(x: Array, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array": "_Reduction",
}
PLAIN = {  # the methods that are not an op and do not say it themselves
    "__eq__": "(self, y: object, /) -> Array: ...  # type: ignore[override]",
    "__ne__": "(self, y: object, /) -> Array: ...  # type: ignore[override]",
    "__setitem__": "(self, key: Any, value: Array | float, /) -> None: ...",
    "__bool__": "(self) -> bool: ...", "__int__": "(self) -> int: ...", "__float__": "(self) -> float: ...",
    "__complex__": "(self) -> complex: ...",
    "__deepcopy__": "(self, memo: Any) -> Array: ...", "__copy__": "(self) -> Array: ...",
    "astype": "(self, dtype: DType) -> Array: ...", "tolist": "(self) -> Any: ...",
}  # fmt: skip

OPS_HEAD = '''"""The public ops, as type checkers see them."""
# fmt: off

from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from polyarr.core.array import Array
from polyarr.core.op import Op

DType = np.dtype[Any] | type | str
P = ParamSpec("P")
R = TypeVar("R", covariant=True)

class _Op(Op, Generic[P, R]):
    def __call__(self, *args: P.args, **params: P.kwargs) -> R: ...

def _op(face: Callable[P, R]) -> _Op[P, R]: ...
'''
OPS_HEAD += "".join(
    f"\nclass {name}(Op):\n    def __call__{signature.replace('(', '(self, ', 1)}: ...\n"
    for signature, name in SHARED.items()
)
INNER_HEAD = '''"""The ops of inner.py, as type checkers see them."""
# fmt: off

from collections.abc import Sequence
from typing import SupportsComplex

from polyarr.core.array import Array
from polyarr.ops.catalogue import DType, _Binary, _op, _Unary
'''
METHODS_HEAD = '''"""Methods that polyarr.ops gives to Array, for type checkers; no program meets this class."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from polyarr.core.array import Array

DType = np.dtype[Any] | type | str

class Methods:
    __hash__: None  # type: ignore[assignment]
'''


def stubs() -> dict[Path, str]:
    """Return the text of every stub."""
    return {
        ROOT / "polyarr/ops/catalogue.pyi": NOTE + OPS_HEAD + _functions(catalogue),
        ROOT / "polyarr/ops/inner.pyi": NOTE + INNER_HEAD + _functions(inner),
        ROOT / "polyarr/core/methods.pyi": NOTE + METHODS_HEAD + "".join(_methods()),
    }


def _functions(module: ModuleType) -> str:
    exports = textwrap.fill(", ".join(f'"{name}"' for name in module.__all__), 118)
    ops = [getattr(module, name) for name in module.__all__]
    return "".join(f"\n{_function(op)}" for op in ops) + f"\n__all__ = [\n{exports}\n]\n"


def _function(op: Op) -> str:
    signature = f"({', '.join(_arguments(op))}) -> {RESULTS.get(op.name, 'Array')}"
    return f"{op.name}: {SHARED[signature]}" if signature in SHARED else f"@_op\ndef {op.name}{signature}: ..."


# ---- the arguments of an op --------------------------------------------------------------------------------------


def _arguments(op: Op) -> list[str]:
    arguments = list(inspect.signature(op).parameters.values())
    found = [_argument(op, a) for a in arguments]
    named = next((i for i, a in enumerate(arguments) if a.kind is a.KEYWORD_ONLY), None)
    return found if named is None else [*found[:named], "*", *found[named:]]


def _argument(op: Op, a: inspect.Parameter) -> str:
    kind = _input(op, a.name) if a.name in op.inputs else _parameter(op, a)
    if a.default is a.empty:
        return f"{a.name}: {kind}"
    return f"{a.name}: {kind}{' | None' if a.default is None else ''} = {a.default!r}"


def _input(op: Op, name: str) -> str:
    listed = INPUTS.get(f"{op.name}.{name}") or INPUTS.get(name)
    return listed or ("Array | float" if _takes_numbers(op, name) else "Array")


def _takes_numbers(op: Op, name: str) -> bool:
    """Return whether a Python number is accepted as an input next to arrays."""
    if len(op.promoted) < 2 or op.inputs.index(name) not in op.promoted:
        return False
    for dtype in DTYPES:
        number = {"b": bool, "i": int, "u": int}.get(dtype.kind, float)
        try:
            op.plan(tuple(NUMBERS[number] if i == name else Spec((2, 2), dtype) for i in op.inputs), op.defaults)
        except (TypeError, ValueError, IndexError):
            continue
        return True
    return False


def _parameter(op: Op, a: inspect.Parameter) -> str:
    if kind := PARAMETERS.get(f"{op.name}.{a.name}"):
        return kind
    if a.name == "axis" and type(a.default) is int:
        return "int"
    if kind := PARAMETERS.get(a.name):
        return kind
    if type(a.default) in (bool, int, float, str):
        return type(a.default).__name__
    raise TypeError(f"{op.name}: nothing says what {a.name} is; PARAMETERS in {Path(__file__).name} must have a line")


# ---- the methods of an array -------------------------------------------------------------------------------------

_BINARY = {**ops.BINARY, "pow": ops.pow}
OPERATORS = {
    **{f"__{way}{name}__": op for name, op in _BINARY.items() for way in ("", "r", "i")},
    **{f"__{name}__": op for name, op in (ops.COMPARISONS | ops.UNARY).items()},
}


def _methods() -> list[str]:
    given = {name: value for name, value in vars(Array).items() if _home(value).startswith("polyarr.ops")}
    return [f"    @property\n    def {name}(self) -> Array: ...\n" if isinstance(value, property)
            else f"    def {name}{_method(name, value)}\n" for name, value in given.items()]  # fmt: skip


def _home(value: Any) -> str:
    return getattr(value.fget if isinstance(value, property) else value, "__module__", "")


def _method(name: str, value: Callable) -> str:
    signature, op = inspect.signature(value), getattr(ops, name, None)
    if name in PLAIN:
        return PLAIN[name]
    if name in OPERATORS:
        others = [f"{i}: {_input(OPERATORS[name], i)}" for i in OPERATORS[name].inputs[1:]]
        return f"({', '.join(['self', *others, '/'])}) -> Array: ..."
    if isinstance(op, Op) and signature == inspect.signature(op):
        return f"({', '.join(['self', *_arguments(op)[1:]])}) -> {RESULTS.get(name, 'Array')}: ..."
    if any(a.annotation is a.empty for a in signature.parameters.values()) or signature.return_annotation is None:
        raise TypeError(f"Array.{name}: nothing says what it takes and gives; annotate it, or give it a line in PLAIN")
    return _spelt(signature) + ": ..."


def _spelt(signature: inspect.Signature) -> str:
    """Return an annotated signature as the stub has it."""
    text = str(signature).replace("(x: polyarr.core.array.Array", "(self").replace("numpy.", "np.")
    return text.replace("polyarr.core.array.", "").replace("collections.abc.", "")


def main() -> None:
    """Write every stub that differs."""
    for path, text in stubs().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
