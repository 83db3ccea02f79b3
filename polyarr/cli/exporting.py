"""`polyarr export`: write the model of a run for other programs."""

from pathlib import Path

import click

from polyarr.cli.values import FileName
from polyarr.models.folders import CONFIG, read_json
from polyarr.models.formats import WRITTEN
from polyarr.models.gguf import TYPES
from polyarr.saving.gguf_file import is_gguf
from polyarr.text import NumberTokenizer
from polyarr.training.files import CHECKPOINTS
from polyarr.training.pretrained import ADAPTERS, GGUF, export_model
from polyarr.training.recipes import COMPUTED


@click.command()
@click.argument("folder", metavar="DIR", type=FileName())
@click.option(
    "--out", type=FileName(), required=True, help="Folder to write; for gguf, the file."
)
@click.option(
    "--format", type=click.Choice([*WRITTEN, GGUF, ADAPTERS]), default="huggingface", show_default=True,
    help="File format.",
)
@click.option(
    "--dtype", type=click.Choice(COMPUTED), help="Dtype of the written weights.  [default: the run's dtype]"
)
@click.option(
    "--checkpoint", type=click.Choice(CHECKPOINTS), default="best", show_default=True, help="Checkpoint to export."
)
@click.option(
    "--gguf-type", type=click.Choice(list(TYPES)),
    help="Type of the matrices of a GGUF file.  [default: the run's dtype]",
)
@click.option("--base", metavar="NAME", help="Base model of adapters.  [default: the one that the run began with]")
def command(
    folder: Path, out: Path, format: str, dtype: str | None, checkpoint: str, gguf_type: str | None, base: str | None
) -> None:
    """Write the model that `polyarr train` or `polyarr import` saved in DIR for other programs to load.

    The format gguf is a file for llama.cpp. The format peft has only the adapters of `polyarr train --lora`, which PEFT
    adds to the base model.
    """
    if is_gguf(out) and format != GGUF:
        raise click.UsageError(f"{out} would be a folder; --format gguf writes a GGUF file")
    if gguf_type is not None and format != GGUF:
        raise click.UsageError("--gguf-type is of GGUF files; give it with --format gguf")
    if dtype is not None and format == GGUF:
        raise click.UsageError("--dtype is of safetensors files; give --gguf-type")
    if base is not None and format != ADAPTERS:
        raise click.UsageError("--base is of adapters; give it with --format peft")
    saved = export_model(folder, out, name=checkpoint, format=format, dtype=dtype, base=base, gguf_type=gguf_type)
    if format == ADAPTERS:
        click.echo(f"written to {out}: {saved.model.num_parameters(only_trainable=True):,} numbers, for peft")
        begun = Path(read_json(out / "adapter_config.json")["base_model_name_or_path"])
        if begun.is_dir() and not (begun / CONFIG).exists():
            click.echo(f"their base {begun} is a run, which PEFT does not load: export it and name it with --base")
        return
    if isinstance(saved.tokenizer, NumberTokenizer) or (format == GGUF and saved.tokenizer.unit != "tokens"):
        click.echo(f"its tokenizer of {saved.tokenizer.unit} is left out: other programs have none such")
    click.echo(f"written to {out}: {saved.model.num_parameters():,} parameters, for {format}")
