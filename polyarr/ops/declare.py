"""Declaration of elementwise ops."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr.core.op import Op
from polyarr.core.spec import Spec, broadcast, check_kind, complex_of

ARRAYS = {
    "any": "Array of any dtype",
    "numeric": "Integer, floating-point or complex array",
    "real": "Integer or floating-point array",
    "real or bool": "Integer, floating-point or bool array",
    "inexact": "Floating-point or complex array",
    "complex": "Complex array",
    "floating": "Floating-point array",
    "signed": "Signed integer or floating-point array",
    "integer": "Integer array",
    "integer or bool": "Integer or bool array",
}


ELEMENTWISE: list[Op] = []  # ops declared below, in order; a batching rule serves all of them
Result = np.dtype | Callable[[np.dtype], np.dtype] | None  # None: the shared dtype


def elementwise(
    kind: str, result: Result = None, primitive: bool = True, widen: bool = True, group: str = ""
) -> Callable[[Callable], Op]:
    """Declare an elementwise op on dtypes of a kind (a key of KINDS).

    The dtype of the result is `result`, or `result` of the dtype that the inputs share, or this dtype itself.

    The decorated function of a primitive holds only a docstring; that of any other op is its decomposition. Both the
    decomposition and the VJP rules compute in float32 for 16-bit floats, unless `widen` is False: then at most one op
    rounds. The docstring gives a first line, perhaps more text, `Gradients:` and `Source:` where needed, and an
    example; the sections that follow from kind and result are added here.
    """

    def decorate(face: Callable) -> Op:
        names = tuple(inspect.signature(face).parameters)

        def rule(*specs: Spec) -> Spec:
            for name, spec in zip(names, specs, strict=True):
                check_kind(face.__name__, name, spec, kind)
            shared = result if isinstance(result, np.dtype) else next(s.dtype for s in specs if not s.is_number)
            return Spec(broadcast(face.__name__, *specs), result(shared) if callable(result) else shared)

        def decomposition(*args: Any) -> Any:
            for name, a in zip(names, args, strict=True):
                if type(a) in (Spec, tuple):
                    check_kind(face.__name__, name, a, kind)
            return face(*args)

        shared: dict[str, Any] = {"promoted": " ".join(names)}
        if kind in ("inexact", "floating"):
            shared["floats"] = shared["promoted"]
        face.__doc__ = _documented(face.__doc__ or "", names, kind, result)
        if primitive:
            return _listed(Op(face, rule=rule, **shared, widen=widen, group=group))
        decomposition.__name__, decomposition.__doc__ = face.__name__, face.__doc__
        decomposition.__module__ = face.__module__
        decomposition.__signature__ = inspect.signature(face)  # type: ignore[attr-defined]
        return _listed(Op(decomposition, decomposition=decomposition, **shared, widen=widen))

    return decorate


def _listed(op: Op) -> Op:
    ELEMENTWISE.append(op)
    return op


def _documented(doc: str, names: tuple[str, ...], kind: str, result: Result) -> str:
    """Return doc with the sections that follow from the dtypes, and with the gradient unless doc states it."""
    blocks = inspect.cleandoc(doc).split("\n\n")
    examples = [b for b in blocks if b.startswith(">>>")]
    labels = [b for b in blocks if b.startswith(("Gradients:", "Source:"))]
    text = [b for b in blocks if b not in examples and b not in labels]
    if not any(b.startswith("Gradients:") for b in labels):
        carries = not isinstance(result, np.dtype) and kind not in ("complex", "signed", "integer", "integer or bool")
        labels.insert(0, f"Gradients: {', '.join(names) if carries else 'none'}")
    if examples:
        shown = "\n".join([">>> import polyarr as pa", *examples])
        examples = ["Examples:\n" + "\n".join(f"    {line}" for line in shown.splitlines())]
    return "\n\n".join([*text, *_sections(names, kind, result), *examples, *labels]) + "\n"


def _sections(names: tuple[str, ...], kind: str, result: Any) -> list[str]:
    """Return the sections Args, Returns and Raises of an elementwise op."""
    dtypes = ARRAYS[kind]
    given = "Complex " if result is complex_of else "Real " if callable(result) else f"{result.name} " if result else ""
    if kind in ("inexact", "floating"):
        dtypes += " (integers and bools are cast to float32)"
    if len(names) == 1:
        args = [f"{names[0]}: {dtypes}, of any shape."]
        raised = [] if kind in ("any", "inexact") else [f"DtypeError: {names[0]} has another dtype."]
        found = f"{given}array of the shape of x." if given else "Array of the shape and dtype of x."
    else:
        args = [f"{name}: {dtypes}, or a Python number." for name in names]
        found = "Array of the broadcast shape and the promoted dtype."
        found = f"{given}array of the broadcast shape." if given else found
        raised = [
            "DtypeError: An input has another dtype, or the dtypes do not promote.",
            f"ShapeError: {' and '.join(names)} do not broadcast.",
        ]
    sections = {"Args": args, "Returns": [found], "Raises": raised}
    return [f"{title}:\n" + "\n".join(f"    {line}" for line in lines) for title, lines in sections.items() if lines]
