"""Options and functions of commands that write text with a model."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from polyarr.cli.starting import adding, check_exists, loaded, model_options
from polyarr.cli.train import choose_backend
from polyarr.cli.values import FileName
from polyarr.models import Writer
from polyarr.models.decoder import LanguageModel
from polyarr.text import Tokenizer
from polyarr.text.sandbox import SandboxedTokenizer
from polyarr.text.tokenizer import same_tokens

# Options of sampling, and those of the model.
writing_options = adding(
    click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this string; may be repeated."),
    click.option("--temperature", type=click.FloatRange(min=0), default=0.8, show_default=True, help="0: greedy."),
    click.option("--top-k", type=click.IntRange(min=1), help="Sample from the K most likely tokens."),
    click.option(
        "--top-p", type=click.FloatRange(0, 1, min_open=True),
        help="Sample from the most likely tokens whose probabilities add up to P.",
    ),
    click.option(
        "--min-p", type=click.FloatRange(0, 1), help="Sample from tokens at least P times as likely as the most likely."
    ),
    click.option(
        "--repetition-penalty",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        show_default=True,
        help="Above 1: tokens that are in the text become less likely.",
    ),
    click.option("--seed", type=click.IntRange(min=0), help="The same seed gives the same text."),
    click.option(
        "--draft", metavar="DIR", type=FileName(),
        help="Let a smaller model with the same tokenizer draft tokens, which are checked in one pass.",
    ),
    click.option(
        "--speculate", type=click.IntRange(0, 64), metavar="N",
        help="Draft N tokens at a time, by --draft, or from the text so far: faster if it repeats itself.  "
        "[default: 4 with --draft, or 0]",
    ),
    model_options,
)


def check_stops(stop: tuple[str, ...]) -> None:
    """Raise BadParameter if a stop string is empty."""
    if "" in stop:
        raise click.BadParameter("it is empty; give at least one character.", param_hint="'--stop'")


@contextlib.contextmanager
def open_writer(
    folder: Path,
    checkpoint: str,
    backend: str | None,
    weights: str | None,
    dtype: str | None,
    draft: Path | None,
    is_chat: bool = False,
) -> Iterator[Writer]:
    """Load a model, maybe with one that drafts, and its tokenizer, whose programs run in processes of their own.

    Raises:
        FileNotFoundError: There is no such folder or file.
        ValueError: A chat is asked for, and the model has no chat template; or the models have different tokens.
    """
    check_exists(folder, draft)
    choose_backend(backend)
    model, tokenizer = loaded(folder, checkpoint, dtype, weights)
    if is_chat and tokenizer.chat is None:
        raise ValueError(f"{folder}: this model has no chat template; only generate without --chat writes with it")
    draft_model = None if draft is None else loaded_draft(draft, folder, tokenizer, dtype)
    with SandboxedTokenizer(tokenizer, is_shared=not is_chat) as programs:
        yield Writer(model, programs, draft_model)  # pyright: ignore[reportArgumentType]  # __getattr__ has the rest


def loaded_draft(draft: Path, folder: Path, tokenizer: Tokenizer, dtype: str | None) -> LanguageModel:
    """Return the model that drafts, which must have the tokens of the other."""
    model, own = loaded(draft, "best", dtype)
    if not same_tokens(own, tokenizer):
        raise ValueError(f"--draft: {draft} has another tokenizer than {folder}; both must have the same tokens")
    return model
