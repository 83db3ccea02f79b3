"""`polyarr backends`: list all backends and their capabilities."""

import click

from polyarr.cli.output import print_json, print_table
from polyarr.core.backend import Backend
from polyarr.core.op import OPS
from polyarr.core.spec import DTYPES
from polyarr.plugins.diagnosis import BackendStatus, no_plugin_warnings, status


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List the backends: their packages, whether they start, and what they support."""
    with no_plugin_warnings():
        rows = status(start=True)
    if as_json:
        print_json([_as_json(row) for row in rows])
        return
    print_table(("backend", "from", "state", "hardware", "kernels", "dtypes"), [_as_row(row) for row in rows])
    for row in rows:
        if text := row.reason or row.summary:
            click.echo(f"\n{row.name}: {text}")


def _as_row(row: BackendStatus) -> tuple[str, ...]:
    if row.backend is None:
        return row.name, row.distribution, row.state, "-", "-", "-"
    kernels = f"{len(_kernels(row.backend))} of {len(OPS)} ops"
    return row.name, row.distribution, row.state, row.backend.hardware, kernels, _dtypes(row.backend)


def _as_json(row: BackendStatus) -> dict[str, object]:
    found = row._asdict()
    del found["failure"]
    if row.backend:
        found["backend"] = {
            "hardware": row.backend.hardware,
            "dtypes": [d.name for d in DTYPES if d in row.backend.dtypes],
            "kernels": sorted(op.name for op in _kernels(row.backend)),
            "ops": len(OPS),
        }
    return found


def _kernels(backend: Backend) -> set:
    return backend.kernels.keys() & set(OPS)


def _dtypes(backend: Backend) -> str:
    lacking = [d.name for d in DTYPES if d not in backend.dtypes]
    return "all but " + ", ".join(lacking) if lacking else "all"
