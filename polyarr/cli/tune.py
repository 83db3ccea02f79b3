"""`polyarr tune`: measure which kernels are the fastest on a device, and save the result."""

import json
import re
import sys
import time
from math import prod
from pathlib import Path
from typing import Any

import click

from polyarr.atomic import write_whole
from polyarr.cli.output import print_json, print_table
from polyarr.cli.train import choose_backend
from polyarr.cli.values import FileName
from polyarr.core.current import get_backend
from polyarr.core.tuning import Kept, Tuning, Work
from polyarr.extras import extra
from polyarr.files import read_regular
from polyarr.training import PRESETS
from polyarr.training.recipes import COMPUTED

SHAPES = "shakespeare-char"
VOCABULARIES = {"gpt2-124m": 50257}  # vocabulary of a preset; other presets have characters
CHARACTERS = 65
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
PRODUCTS = ("NT", "NN", "TN")  # GEMMs of a layer: forward, gradient of the input, gradient of the weight
FILE_KEY = "polyarr tuning"
_MAX_FILE = 2**26  # bytes
_path = FileName(dir_okay=False)


class Seconds(click.ParamType):
    """Duration such as 90, 60s, 2m or 1h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the duration in seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value).strip())
        if not found or not float(found[1]):
            self.fail(f"{value!r} is no time such as 60s or 2m.", param, ctx)
        return float(found[1]) * UNITS[found[2]]


@click.command()
@click.option("--budget", type=Seconds(), default="60s", show_default=True, help="How long to measure.")
@click.option("--ops", help="Tune only these ops, separated by commas.")
@click.option(
    "--shapes", default=SHAPES, show_default=True,
    help=f"Shapes to tune for: presets ({', '.join(PRESETS)}), GEMMs such as 1024x1024x512 (m x n x k), attention such "
    "as 12x1024x1024x64 (batch x heads, queries, keys, head size); separated by commas.",
)
@click.option("--dtype", type=click.Choice((*COMPUTED, "float64")), default=COMPUTED[0], show_default=True)
@click.option("--device", help="Backend and device, such as opencl:0.")
@click.option("--list", "listed", is_flag=True, help="List saved results, without measuring.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
@click.option("--export", "target", type=_path, metavar="FILE", help="Write saved results to a file.")
@click.option("--import", "source", type=_path, metavar="FILE", help="Load results that --export wrote.")
def command(
    budget: float, ops: str | None, shapes: str, dtype: str, device: str | None, listed: bool, as_json: bool,
    target: Path | None, source: Path | None,
) -> None:  # fmt: skip
    """Measure the kernels that a device can choose from, and save the fastest.

    Each candidate is checked before it is timed, in turns with the default kernel. Results are valid for one device,
    driver and version of the kernels; others are ignored, and `polyarr doctor` reports them. Leave the machine idle
    meanwhile. Ctrl-C stops, and keeps the results so far.
    """
    if (listed or as_json) + (target is not None) + (source is not None) > 1:
        raise click.UsageError("give one of --list, --export and --import")
    choose_backend(device)
    tuning = get_backend().tuning
    if tuning is None:
        raise click.ClickException(f"the backend {get_backend().name} offers nothing to tune")
    if source:
        _import(tuning, source)
    elif target:
        _export(tuning, target)
    elif listed or as_json:
        _list(tuning, as_json)
    else:
        _measure(tuning, distinct(tuning, works_of(_ops(ops, tuning), shapes, dtype)), budget)


def _ops(given: str | None, tuning: Tuning) -> tuple[str, ...]:
    wanted = tuple(given.split(",")) if given else tuning.ops
    if unknown := [op for op in wanted if op not in tuning.ops]:
        there = ", ".join(tuning.ops)
        raise click.BadParameter(f"{unknown[0]!r} cannot be tuned; there are {there}.", param_hint="'--ops'")
    return wanted


def works_of(ops: tuple[str, ...], shapes: str, dtype: str) -> list[Work]:
    """Return the work that --shapes names for these ops, the largest first.

    Raises:
        click.BadParameter: A shape is invalid, or none is of these ops.
    """
    found = []
    for text in shapes.split(","):
        if text in PRESETS:
            found += _of_preset(text, dtype)
        elif re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2,3}", text):
            found += _of_lengths(tuple(map(int, text.split("x"))), dtype)
        else:
            presets = ", ".join(PRESETS)
            raise click.BadParameter(
                f"{text!r} is neither a preset ({presets}) nor three or four lengths such as 512x512x512.",
                param_hint="'--shapes'",
            )
    works = [work for work in dict.fromkeys(found) if work.op in ops]
    if not works:
        raise click.BadParameter(f"{shapes} names no work for {', '.join(ops)}.", param_hint="'--shapes'")
    return sorted(works, key=lambda work: -prod(work.shape))


def distinct(tuning: Tuning, works: list[Work]) -> list[Work]:
    """Return the works without those that are tuned together with an earlier one."""
    return list({(work.op, work.dtype, tuning.shape(work)): work for work in reversed(works)}.values())[::-1]


def _of_lengths(lengths: tuple[int, ...], dtype: str) -> list[Work]:
    op, forms = ("matmul", PRODUCTS) if len(lengths) == 3 else ("attention", ("forward", "backward"))
    return [Work(op, dtype, lengths, form) for form in forms]


def _of_preset(name: str, dtype: str) -> list[Work]:
    """Return the GEMMs and the attention of a preset's training step."""
    recipe = PRESETS[name]
    config = recipe.config(VOCABULARIES.get(name, CHARACTERS))
    width, tokens = config.emb_dim, recipe.batch_size * config.context_length
    layers = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width), (config.vocab_size, width))
    works = []
    for wide, deep in layers:
        shapes = (tokens, wide, deep), (tokens, deep, wide), (wide, deep, tokens)
        works += [Work("matmul", dtype, shape, form) for form, shape in zip(PRODUCTS, shapes, strict=True)]
    heads = recipe.batch_size * config.n_heads, config.context_length, config.context_length, width // config.n_heads
    return works + _of_lengths(heads, dtype)


def _measure(tuning: Tuning, works: list[Work], budget: float) -> None:
    tqdm, end = extra("tqdm").tqdm, time.monotonic() + budget
    for i, work in enumerate(works):
        left = end - time.monotonic()
        if left <= 0:
            click.echo(f"no time is left for {len(works) - i} of {len(works)}: give a longer --budget")
            return
        outcome, steps = "", tuning.tune(work, left / (len(works) - i))
        try:
            with tqdm(desc=str(work), leave=False, disable=None, bar_format="{desc} {bar} {n}/{total}") as bar:
                for step in steps:
                    bar.total = step.total
                    bar.update(step.done - bar.n)
                    outcome = step.outcome
        except ValueError as error:  # this work has no parameters to tune on this device
            click.echo(str(error))
            continue
        finally:
            steps.close()
        click.echo(f"{work}: {outcome}")
        sys.stdout.flush()


def _list(tuning: Tuning, as_json: bool) -> None:
    rows = tuning.kept()
    if as_json:
        print_json([row._asdict() for row in rows])
    elif not rows:
        click.echo("nothing is kept")
    else:
        print_table(("op", "dtype", "shape", "measured", "on", "device", "is used"), [_as_row(row) for row in rows])


def _as_row(row: Kept) -> tuple[str, ...]:
    figures = ", ".join(f"{name} {value}" for name, value in row.figures.items())
    return row.op, row.dtype, row.shape, figures, row.date, row.device, f"no: {row.problem}" if row.problem else "yes"


def _export(tuning: Tuning, target: Path) -> None:
    entries = tuning.exported()
    write_whole(target, json.dumps({FILE_KEY: entries}, indent=1).encode())
    click.echo(f"{len(entries)} entries in {target}")


def _import(tuning: Tuning, source: Path) -> None:
    try:
        found = json.loads(read_regular(source, _MAX_FILE))
        count = tuning.imported(found.get(FILE_KEY) if isinstance(found, dict) else None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source}: {error}") from error
    click.echo(f"{count} entries were taken; polyarr tune --list shows which of them are used here")
