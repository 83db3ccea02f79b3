"""`polyarr ops`: every op, and how a backend runs it."""

import click

from polyarr.cli.output import print_table
from polyarr.core.backend import Backend, Fused
from polyarr.core.op import OPS, Op
from polyarr.plugins import get_backend


@click.command()
@click.option("--backend", "name", help="The backend to look at; by default the current one.")
def command(name: str | None) -> None:
    """List the ops, and how a backend runs each: by a kernel, by a fused pair, or as other ops."""
    backend = get_backend(name)
    rows = [(op.name, "primitive" if op.body is None else "composed", _how(op, backend)) for op in OPS]
    print_table(("op", "kind", f"on {backend.name}"), sorted(rows))


def _how(op: Op, backend: Backend) -> str:
    kernel = backend.kernels.get(op)
    if kernel is None:
        return "lacking" if op.body is None else "as other ops"
    return "forward and backward kernels" if isinstance(kernel, Fused) else "kernel"
