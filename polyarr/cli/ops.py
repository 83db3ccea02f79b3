"""`polyarr ops`: list the ops, how backends run them, and their tolerances."""

import importlib
from typing import Any

import click

from polyarr.cli.output import print_json, print_table
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import get_backend
from polyarr.core.groups import NOT_OFFERED, groups, offer
from polyarr.core.op import OPS, Op
from polyarr.core.spec import KINDS, float32
from polyarr.plugins.diagnosis import no_plugin_warnings, status
from polyarr.testing.tolerance import TABLE


@click.command()
@click.option("--backend", "name", help="Show only this backend; by default all that start.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List the ops: how backends run each, its dtypes and its tolerance.

    An op is primitive, or composed of others. For a composed one a backend may have a kernel, or a fused kernel with
    its VJP. In brackets are the precisions that a kernel distinguishes besides "highest". Ops of a group, such as
    linalg, may be missing from a backend together; the last lines list the groups of each backend. The
    tolerance is a class and a multiple of float32's eps (polyarr/testing/tolerance.py).
    """
    with no_plugin_warnings():
        shown = [get_backend(name)] if name else [row.backend for row in status(start=True) if row.backend]
    checked = _checked()
    rows: list[dict[str, Any]] = [
        {
            "op": op.name,
            "kind": "primitive" if op.decomposition is None else "composed",
            **({"group": op.group} if op.group else {}),
            "on": {b.name: _how(op, b) for b in shown},
            **checked.get(op, {}),
        }
        for op in sorted(OPS, key=lambda op: op.name)
    ]
    if not checked:
        click.echo("dtypes and tolerances need: pip install 'polyarr[testing]'", err=True)
    if as_json:
        print_json(rows)
        return
    more = {"dtypes": "dtypes", "class": "tolerance", "float32": "times eps"} if checked else {}
    headers = ("op", "kind", *(f"on {b.name}" for b in shown), *more.values())
    print_table(
        headers, [(row["op"], row["kind"], *row["on"].values(), *(row.get(key, "-") for key in more)) for row in rows]
    )
    for group in groups():
        names = ", ".join(row["op"] for row in rows if row.get("group") == group)
        click.echo(f"{group} ({names}): {', '.join(f'{offer(b, group)} by {b.name}' for b in shown)}")


def _how(op: Op, backend: Backend) -> str:
    kernel = backend.kernels.get(op)
    if kernel is None:
        if op.group and offer(backend, op.group) == NOT_OFFERED:
            return NOT_OFFERED
        return "lacking" if op.decomposition is None else "as other ops"
    precisions = ", ".join(backend.precisions.get(op, ()))
    return ("fused" if isinstance(kernel, Fused) else "kernel") + (f" ({precisions})" if precisions else "")


def _checked() -> dict[Op, dict[str, Any]]:
    """Return the dtypes and the tolerance of each op in the conformance kit; empty if its libraries are missing."""
    try:
        samples: Any = importlib.import_module("polyarr.testing.samples").SAMPLES
    except ImportError:
        return {}
    return {
        op: {"dtypes": _compactly(e.dtypes), "class": e.kind, "float32": TABLE[e.kind][float32]}
        for op, e in samples.items()
    }


def _compactly(dtypes: tuple[str, ...]) -> str:
    """Return the name of the kind with exactly these dtypes, or else their names."""
    kinds = {frozenset(d.name for d in members): kind for kind, members in KINDS.items()}
    return kinds.get(frozenset(dtypes)) or ", ".join(dtypes)
