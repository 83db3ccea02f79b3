"""How an elementwise op is declared."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from polyarr.core.op import Op
from polyarr.core.spec import Spec, broadcast, check_kind

DOC = """

    Shapes:  the inputs broadcast
    Dtypes:  {kind} -> {result}
    Errors:  ShapeError if the inputs do not broadcast, DtypeError for another dtype"""


def elementwise(
    kind: str, result: np.dtype | None = None, primitive: bool = True, widen: bool = True
) -> Callable[[Callable], Op]:
    """An elementwise op on dtypes of a kind (a key of KINDS), giving the shared dtype or `result`.

    A primitive's function holds only its docstring; that of any other op is its body. Body and VJP rules compute with
    narrow floats in float32, unless `widen` says that at most one op rounds in each. The labels that follow from kind
    and result are added to the docstring here.
    """

    def decorate(face: Callable) -> Op:
        names = tuple(inspect.signature(face).parameters)

        def rule(*specs: Spec) -> Spec:
            for name, spec in zip(names, specs, strict=True):
                check_kind(face.__name__, name, spec, kind)
            shared = result or next(s.dtype for s in specs if not s.is_number)
            return Spec(broadcast(face.__name__, *specs), shared)

        def body(*args: Any) -> Any:
            for name, a in zip(names, args, strict=True):
                if type(a) in (Spec, tuple):
                    check_kind(face.__name__, name, a, kind)
            return face(*args)

        face.__doc__ = _documented(face.__doc__ or "", names, kind, result)
        if primitive:
            return Op(face, rule=rule, promoted=" ".join(names), widen=widen)
        body.__name__, body.__doc__, body.__module__ = face.__name__, face.__doc__, face.__module__
        body.__signature__ = inspect.signature(face)  # type: ignore[attr-defined]
        return Op(body, body=body, promoted=" ".join(names), widen=widen)

    return decorate


def _documented(doc: str, names: tuple[str, ...], kind: str, result: np.dtype | None) -> str:
    """doc with its labels: those that follow from the dtypes, and unless it says so itself, what has a gradient."""
    text, own, labels = doc.rstrip().partition("\n\n    Grads:")
    text, source, cited = text.partition("\n\n    Source:")
    carries = result is None and kind in ("real", "floating") and "gradient is zero" not in text
    grads = labels if own else "   " + (", ".join(names) if carries else "none")
    made = DOC.format(kind=kind, result=result or "the same")
    return f"{text}{made}\n    Grads:{grads}" + (f"\n    Source:{cited}" if source else "") + "\n"
