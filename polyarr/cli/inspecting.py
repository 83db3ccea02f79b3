"""`polyarr inspect`: show the content of a run, a model's folder or a file, tensor by tensor."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from polyarr.cli.output import escaped, print_json, print_table
from polyarr.cli.values import FileName
from polyarr.contents import Contents, Statistics, Tensor, contents_of, save_histograms
from polyarr.extras import extra
from polyarr.schema import flattened

HEADERS = ("tensor", "shape", "dtype", "bytes", "min", "max", "mean", "std", "nan", "inf")
_MAX_SETTING = 200  # characters of a setting's line


@click.command()
@click.argument("path", type=FileName())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--plot", type=FileName(dir_okay=False), help="Plot histograms into a PNG.")
@click.option("--statistics/--no-statistics", default=True, help="Compute statistics.  [default: statistics]")
def command(path: Path, as_json: bool, plot: Path | None, statistics: bool) -> None:
    """Show the content of a model's files: tensors, configuration, progress of training, vocabulary.

    PATH is a run or a checkpoint, a Hugging Face folder, prepared tokens, a tokenizer, or a safetensors, npz or npy
    file. Files may be larger than memory, and nothing is ever unpickled.
    """
    if plot and not statistics:
        raise click.UsageError("--plot draws what --statistics reads; leave out --no-statistics")
    with extra("tqdm").tqdm(unit="B", unit_scale=True, file=sys.stderr, disable=None, leave=False) as bar:
        found = contents_of(path, statistics=statistics, progress=bar.update)
    drawn = save_histograms(plot, found) if plot else 0
    if as_json:
        print_json(found.to_dict())
        return
    for line in _lines(found):
        click.echo(escaped(line))
    if found.tensors:
        click.echo()
        print_table(HEADERS, [_row(tensor) for tensor in found.tensors])
    if plot:
        click.echo(f"\n{drawn} histograms drawn in {escaped(str(plot))}")


def _lines(found: Contents) -> Iterator[str]:
    yield f"{found.path}: {found.kind} ({', '.join(found.files)})"
    if found.tensors:
        totals = found.totals
        of_model = f", {totals['parameters']:,} of them parameters" if totals["parameters"] < totals["size"] else ""
        yield f"{totals['tensors']:,} tensors, {totals['size']:,} numbers{of_model}, {totals['bytes']:,} bytes"
        if totals["nan"] or totals["inf"]:
            yield f"not finite: {totals['nan']:,} nan, {totals['inf']:,} infinite"
    if found.progress:
        yield "progress: " + ", ".join(f"{name} {_number(value)}" for name, value in found.progress.items())
    for name, value in flattened(found.settings):
        yield f"  {name}: {value}"[:_MAX_SETTING]
    if words := found.vocabulary:
        tokens = [f"{word['number']} {word['token']!r}" for word in words["tokens"]]
        half = len(tokens) // 2
        if words["size"] > len(tokens):
            tokens[half:half] = ["..."]
        yield f"vocabulary: {words['size']:,} {words['unit']}: " + "  ".join(tokens)


def _row(tensor: Tensor) -> tuple[str, ...]:
    shape = " x ".join(map(str, tensor.shape)) or "scalar"
    return escaped(tensor.name), shape, escaped(tensor.dtype), f"{tensor.nbytes:,}", *_cells(tensor.statistics)


def _cells(statistics: Statistics | None) -> tuple[str, ...]:
    return ("-",) * 6 if statistics is None else tuple(map(_number, statistics))


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
