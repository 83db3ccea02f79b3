"""`polyarr devices`: list the devices of the installed backends."""

import click

from polyarr.cli.output import print_json, print_table
from polyarr.plugins import DeviceInfo
from polyarr.plugins.diagnosis import devices


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List the devices that the backends can use, and their features. A star marks the default one."""
    rows = devices()
    if as_json:
        print_json([{**row._asdict(), "features": dict(row.features)} for row in rows])
    elif not rows:
        click.echo("no installed backend lists devices; `polyarr doctor` says why")
    else:
        print_table(("", "use as", "device", "platform", "version", "driver"), [_as_row(row) for row in rows])
        for row in rows:
            detail = f"broken: {row.problem}" if row.problem else features_of(row)
            click.echo(f"\n{row.backend}:{row.index}  {detail}")


def _as_row(row: DeviceInfo) -> tuple[str, ...]:
    star = "*" if row.chosen else "!" if row.problem else ""
    return star, f"{row.backend}:{row.index}", row.name, row.platform, row.version, row.driver


def features_of(row: DeviceInfo) -> str:
    """Return the names of flags that are set, then all features with values."""
    flags = [name for name, value in row.features.items() if value is True]
    lacking = [f"no {name}" for name, value in row.features.items() if value is False]
    values = [
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
        for name, value in row.features.items()
        if not isinstance(value, bool)
    ]
    return ", ".join([*flags, *lacking, *values]) or "features unknown"
