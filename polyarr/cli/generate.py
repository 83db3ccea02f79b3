"""`polyarr generate`: text from a trained model, as it is drawn."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from polyarr.cli.output import print_text
from polyarr.cli.starting import loaded
from polyarr.cli.train import choose_backend
from polyarr.models import Writer
from polyarr.nn import merge_lora
from polyarr.text import Tokenizer


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--prompt", help="What the text begins with.  [default: the end of another text, or a line end]")
@click.option("--tokens", type=click.IntRange(min=0), default=200, show_default=True, help="How many to add at most.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this; may be given several times.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.8, show_default=True, help="0: the likeliest.")
@click.option("--top-k", type=click.IntRange(min=1), help="Choose among the K likeliest.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Choose among the likeliest that make up P.")
@click.option(
    "--min-p", type=click.FloatRange(0, 1), help="Choose among those at least P times as likely as the first."
)
@click.option(
    "--repetition-penalty",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Above 1: tokens of the text become less likely.",
)
@click.option("--seed", type=click.IntRange(min=0), help="The same seed gives the same text.")
@click.option("--int8", is_flag=True, help="Round the weights to a byte each: faster where memory is the limit.")
@click.option("--backend", help="What to compute on.  [default: $POLYARR_BACKEND, or opencl]")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Which one.")
def command(
    folder: Path, prompt: str | None, tokens: int, int8: bool, backend: str | None, checkpoint: str, **options: Any
) -> None:
    """Generate text with the model of a run, or of a Hugging Face folder, up to the end of a text or so many tokens."""
    for name, given in (("--prompt", [prompt]), ("--stop", options["stop"])):
        if "" in given:
            raise click.BadParameter("it is empty; give at least one character.", param_hint=f"'{name}'")
    choose_backend(backend)
    model, tokenizer = loaded(folder, checkpoint)
    prompt, start = _beginning(tokenizer, prompt)
    model = model.quantised() if int8 else merge_lora(model)
    parts = Writer(model, tokenizer).write([start.tolist()], tokens, **options)  # which checks them
    print_text(prompt)
    for part in parts:
        print_text(part.text)
    click.echo()


def _beginning(tokenizer: Tokenizer, prompt: str | None) -> tuple[str, np.ndarray]:
    """A prompt and its tokens (T,); without one what a text may follow: the end of another, or a line end."""
    if prompt is None and tokenizer.end is not None:
        return "", np.array([tokenizer.end], np.int32)
    try:
        return prompt or "\n", tokenizer.encode(prompt or "\n")
    except ValueError as error:
        if prompt is None:
            return tokenizer.decode([0]), np.zeros(1, np.int32)
        raise click.BadParameter(str(error), param_hint="'--prompt'") from error
