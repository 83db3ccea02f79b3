"""`polyarr generate`: text from a trained model, character by character as it is drawn."""

from pathlib import Path

import click

from polyarr import creation
from polyarr.cli.train import choose_backend
from polyarr.models.generation import stream
from polyarr.training import load_checkpoint


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--prompt", help="What the text begins with.  [default: a line end]")
@click.option("--tokens", type=click.IntRange(min=0), default=200, show_default=True, help="How many to add.")
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.8, show_default=True, help="0: the likeliest."
)
@click.option("--top-k", type=click.IntRange(min=1), help="Choose among the K likeliest.")
@click.option(
    "--top-p", type=click.FloatRange(0, 1, min_open=True), help="Choose among the likeliest that make up P."
)
@click.option("--seed", type=click.IntRange(min=0), help="The same seed gives the same text.")
@click.option("--backend", help="What to compute on.  [default: $POLYARR_BACKEND, or opencl]")
@click.option(
    "--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Which one."
)
def command(
    folder: Path,
    prompt: str | None,
    tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    backend: str | None,
    checkpoint: str,
) -> None:
    """Generate text with the model that `polyarr train` saved in DIR."""
    if prompt == "":
        raise click.BadParameter("it is empty; give at least one character.", param_hint="'--prompt'")
    choose_backend(backend)
    model, tokenizer, *_ = load_checkpoint(folder, checkpoint)
    if prompt is None:
        prompt = "\n" if "\n" in tokenizer.characters else tokenizer.characters[0]
    try:
        start = creation.asarray(tokenizer.encode(prompt)[None])  # (1, T)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--prompt'") from error
    click.echo(prompt, nl=False)
    for token in stream(model, start, tokens, temperature, top_k, top_p, seed):  # (1, 1)
        click.echo(tokenizer.decode([int(token)]), nl=False)
    click.echo()
