"""The reference pages of ops, generated from the ops."""

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType

from docstrings import as_markdown, escaped

from polyarr.core.op import OPS, Op
from polyarr.ops import catalogue

TABLE = "| op | kind | gradient | group |\n|---|---|---|---|\n"


def pages() -> Iterator[tuple[str, str]]:
    """Yield (path, Markdown): the list of all ops, then one page per family."""
    ours = [op for op in OPS if op.__module__.startswith("polyarr.")]
    modules = dict.fromkeys(op.__module__ for op in ours)
    families = {name: [op for op in ours if op.__module__ == name] for name in modules}
    yield "reference/ops.md", _list(families)
    for module, ops in families.items():
        yield f"reference/ops/{_page(module)}", _family(sys.modules[module], ops)


def _page(module: str) -> str:
    return f"{module.rpartition('.')[2]}.md"


def _list(families: dict[str, list[Op]]) -> str:
    ours = [op for ops in families.values() for op in ops]
    primitives = sum(op.decomposition is None for op in ours)
    head = (
        f"# Ops: all of them\n\n{len(ours)} ops, of which {primitives} are primitives. A backend must have every "
        "primitive, except those of a group, which it may lack together. All other ops are composed of primitives; the "
        "gradient of a composed op is that of its decomposition, unless the op states its own.\n\n"
    )
    return head + TABLE + "".join(map(_row, sorted(ours, key=lambda op: op.name)))


def _row(op: Op) -> str:
    kind = "primitive" if op.decomposition is None else "composed"
    return f"| [`{op.name}`](ops/{_page(op.__module__)}#{op.name}) | {kind} | {gradient(op)} | {op.group} |\n"


def gradient(op: Op) -> str:
    """Return whether an op has a gradient, and what states it."""
    lines = (op.__doc__ or "").splitlines()
    found = next(line.partition(":")[2].strip() for line in lines if line.strip().startswith("Gradients:"))
    if found.startswith("none"):
        return "no"
    return "rule" if op.rules else "custom VJP" if op.custom_vjp else "of its decomposition"


def _family(module: ModuleType, ops: list[Op]) -> str:
    title = module.__name__.rpartition(".")[2]
    return f"# Ops: {title}\n\n{escaped((module.__doc__ or '').strip())}\n\n" + "\n\n".join(map(_entry, ops)) + "\n"


def _entry(op: Op) -> str:
    public = op.name in catalogue.__all__
    home = "polyarr" if public else "polyarr.ops"
    kind = "primitive" if op.decomposition is None else "composed"
    facts = [kind, f"gradient: {gradient(op)}", *([f"group {op.group}"] if op.group else [])]
    return (
        f"## {op.name} {{ #{op.name} }}\n\n```python\n{home}.{op.name}{inspect.signature(op)}\n```\n\n"
        f"{', '.join(facts)}\n\n{as_markdown(op.__doc__ or '')}"
    )
