"""`polyarr export`: the model of a run as others read it."""

from pathlib import Path

import click

from polyarr.models.formats import WRITTEN
from polyarr.text import SubwordTokenizer
from polyarr.training.files import CHECKPOINTS
from polyarr.training.pretrained import ADAPTERS, export_model


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where to write.")
@click.option(
    "--format", type=click.Choice([*WRITTEN, ADAPTERS]), default="huggingface", show_default=True, help="For whom."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="What the weights are written in.",
)
@click.option(
    "--checkpoint", type=click.Choice(CHECKPOINTS), default="best", show_default=True, help="Which one."
)
def command(folder: Path, out: Path, format: str, dtype: str, checkpoint: str) -> None:
    """Write the model that `polyarr train` or `polyarr import` saved in DIR for other programs to load.

    The format peft is the adapters of `polyarr train --lora` alone, which PEFT puts beside the weights they began with.
    """
    saved = export_model(folder, out, name=checkpoint, format=format, dtype=dtype)
    if format == ADAPTERS:
        click.echo(f"written to {out}: {saved.model.num_parameters(only_trainable=True):,} numbers, for peft")
        return
    if not isinstance(saved.tokenizer, SubwordTokenizer):
        click.echo(f"its tokenizer of {saved.tokenizer.unit} is left out: other programs have none such")
    click.echo(f"written to {out}: {saved.model.num_parameters():,} parameters, for {format}")
