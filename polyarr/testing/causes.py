"""Probable causes of the conformance kit's failures: the function of a kernel, and an op that many ops use."""

import inspect
from collections.abc import Sequence
from typing import Any

from polyarr.core.backend import Backend, Fused
from polyarr.core.op import Op

# Property shared by the calls of a check, as a phrase that follows the op's name.
ASPECTS = {
    "special": "of nan, infinities and extreme numbers", "alone": "of one special number among usual ones",
    "layout": "of strided arrays", "large": "of large arrays", "huge": "of huge arrays", "sweep": "of some magnitudes",
    "numbers": "of whole numbers near the limits", "held": "of numbers in arrays", "indices": "of wrong indices",
    "alias": "of one array in two places", "bounds": "near the ends of memory", "captured": "in compiled functions",
    "threads": "in several threads", "concurrent": "in several threads", "memory": "and its memory",
    "transfers": "and its transfers", "backward": "and its gradient", "cotangents": "and its gradient",
    "wanted": "and its gradient",
}  # fmt: skip
SHOWN = 6  # cases named in a line


def causes(results: Sequence[Any]) -> list[dict[str, Any]]:
    """Return groups of failed cases, the largest first: an op, its cases, and a line that describes them.

    An op counts as the cause of other ops' failures if its own cases fail in the same checks and the other cases call
    its kernel. Of several candidates the one that explains most failures counts, then the one that calls fewest ops.
    `results` are those of one backend, report.Result each.
    """
    left = [r for r in results if r.outcome == "failed"]
    found = []
    while left:
        group = max((_explained(op, left) for op in {r.subject for r in left}), key=_weight)
        found.append(group)
        left = [r for r in left if r not in group[1]]
    return [_described(subject, cases) for subject, cases in sorted(found, key=lambda group: -len(group[1]))]


def _explained(subject: str, left: list[Any]) -> tuple[str, list[Any]]:
    """Return the failures that are explained if this op is wrong in the checks in which its own cases fail."""
    own = [r for r in left if r.subject == subject]
    checks = {r.check for r in own}
    whole = "forward" in checks  # ordinary calls fail, so any other check may fail, too
    wide = ("backend", "layer")  # these do not check a single op
    others = [r for r in left if r.subject != subject and subject in r.uses]
    others = [r for r in others if whole or r.check in checks or r.check in wide]
    return subject, own + others


def _weight(group: tuple[str, list[Any]]) -> tuple[int, int, str]:
    subject, cases = group
    return len(cases), -min(len(r.uses) for r in cases if r.subject == subject), subject


def _described(subject: str, cases: list[Any]) -> dict[str, Any]:
    names = [r.name for r in cases]
    checks = {r.check for r in cases if r.subject == subject}
    what = f"{subject} {_aspect(checks)}".strip()
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    line = f"{len(cases)} failures, all where {what} is used: {shown}" if len(cases) > 1 else f"1 failure: {shown}"
    return {"op": subject, "cases": names, "message": line}


def _aspect(checks: set[str]) -> str:
    """Return the phrase shared by all the checks, or "" if they differ."""
    phrases = {ASPECTS.get(check, f"in {check}" if check[-1].isdigit() else "") for check in checks}
    return phrases.pop() if len(phrases) == 1 else ""


def computed_by(op: Op, backend: Backend) -> str:
    """Return a comment line that names the functions of an op's kernel, with their lines; "" if there are none."""
    kernel = backend.kernels.get(op)
    functions = (kernel.forward, kernel.backward) if isinstance(kernel, Fused) else (kernel,)
    names = [name for function in functions if (name := _place_of(function))]
    return f"\n    # computed by {' and '.join(names)}" if names else ""


def _place_of(function: Any) -> str:
    """Return the qualified name and the line of a Python function, in a partial or a wrapper too; "" of any other."""
    while function is not (inner := inspect.unwrap(getattr(function, "func", function))):
        function = inner
    code = getattr(function, "__code__", None)
    return f"{function.__module__}.{function.__qualname__}, line {code.co_firstlineno}" if code else ""
