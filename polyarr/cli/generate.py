"""`polyarr generate`: generate text with a trained model, and print it token by token."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from polyarr.cli.output import print_text
from polyarr.cli.starting import loaded
from polyarr.cli.train import choose_backend
from polyarr.models import Writer
from polyarr.models.generation import limit_to_context
from polyarr.nn import merge_lora
from polyarr.text import Tokenizer, start_of
from polyarr.text.sandbox import SandboxedTokenizer


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--prompt", help="Start of the text.  [default: the token that begins a text, as <s>, or a line end]")
@click.option("--tokens", type=click.IntRange(min=0), default=200, show_default=True, help="Limit of new tokens.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this string; may be repeated.")
@click.option("--stop-at-context", is_flag=True, help="Stop when the model's context is full.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.8, show_default=True, help="0: greedy.")
@click.option("--top-k", type=click.IntRange(min=1), help="Sample from the K most likely tokens.")
@click.option(
    "--top-p", type=click.FloatRange(0, 1, min_open=True),
    help="Sample from the most likely tokens whose probabilities add up to P.",
)
@click.option(
    "--min-p", type=click.FloatRange(0, 1), help="Sample from tokens at least P times as likely as the most likely."
)
@click.option(
    "--repetition-penalty",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Above 1: tokens that are in the text become less likely.",
)
@click.option("--seed", type=click.IntRange(min=0), help="The same seed gives the same text.")
@click.option("--int8", is_flag=True, help="Use int8 weights: faster if memory bandwidth is the limit.")
@click.option("--backend", help="Backend, such as opencl:0.  [default: $POLYARR_BACKEND, or opencl]")
@click.option(
    "--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Checkpoint to load."
)
def command(
    folder: Path, prompt: str | None, tokens: int, int8: bool, backend: str | None, checkpoint: str, **options: Any
) -> None:
    """Generate text with the model of a run or of a Hugging Face folder, up to an end token or a number of tokens."""
    for name, given in (("--prompt", [prompt]), ("--stop", options["stop"])):
        if "" in given:
            raise click.BadParameter("it is empty; give at least one character.", param_hint=f"'{name}'")
    choose_backend(backend)
    model, tokenizer = loaded(folder, checkpoint)
    with SandboxedTokenizer(tokenizer, is_shared=True) as programs:
        prompt, start = _beginning(programs, prompt)
        if options["stop_at_context"] and tokens and not limit_to_context(model, len(start), tokens):
            context = model.config.context_length
            text = f"it has {len(start):,} tokens, the model's context {context:,}; leave room for more"
            raise click.BadParameter(text, param_hint="'--prompt'")
        model = model.quantised() if int8 else merge_lora(model)
        parts = Writer(model, programs).write([start.tolist()], tokens, **options)  # raises for bad options
        print_text(prompt)
        for part in parts:
            print_text(part.text)
        click.echo()


def _beginning(tokenizer: Tokenizer, prompt: str | None) -> tuple[str, np.ndarray]:
    """Return a prompt and its tokens (T,); without one, the tokens that begin a text, or a line end."""
    if prompt is None and (start := start_of(tokenizer)):
        return "", np.array(start, np.int32)
    try:
        return prompt or "\n", tokenizer.encode(prompt or "\n")
    except ValueError as error:
        if prompt is None:
            return tokenizer.decode([0]), np.zeros(1, np.int32)
        raise click.BadParameter(str(error), param_hint="'--prompt'") from error
