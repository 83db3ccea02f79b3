"""`polyarr evaluate`: score a model on texts."""

import math
from pathlib import Path
from typing import Any

import click

from polyarr.cli.output import escaped, print_json, print_table
from polyarr.cli.starting import check_exists, loaded, model_options
from polyarr.cli.train import choose_backend
from polyarr.cli.values import FileName
from polyarr.text import find_files
from polyarr.text.documents import read_documents
from polyarr.text.sources import FIELD
from polyarr.training.evaluation import Score, score_documents, total_score

_WINDOW = 1024  # largest default window


@click.command()
@click.argument("folder", metavar="DIR", type=FileName())
@click.option(
    "--data", type=FileName(), required=True,
    help="A UTF-8 text, a folder or a pattern of them, or JSON lines of texts or of conversations.",
)
@click.option("--field", default=FIELD, show_default=True, help="Key of the text in JSON lines.")
@click.option("--by-document", is_flag=True, help="Also show each text file, and each line of JSON lines.")
@click.option(
    "--window", type=click.IntRange(min=1),
    help=f"Number of tokens per window.  [default: the model's context, at most {_WINDOW:,}]",
)
@click.option("--stride", type=click.IntRange(min=1), help="Tokens by which windows advance.  [default: window / 2]")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Windows at once.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@model_options
def command(
    folder: Path,
    data: Path,
    field: str,
    by_document: bool,
    window: int | None,
    stride: int | None,
    batch_size: int,
    as_json: bool,
    weights: str | None,
    dtype: str | None,
    backend: str | None,
    checkpoint: str,
) -> None:
    """Score the model of a run or of a Hugging Face folder on texts: loss, perplexity and bits per byte.

    Each token is scored once, given the tokens before it in a sliding window over its document. Of conversations and of
    prompts with completions, the answers are scored.
    """
    check_exists(folder)
    files = find_files([data])
    choose_backend(backend)
    model, tokenizer = loaded(folder, checkpoint, dtype, weights)
    length: int = window or min(model.config.context_length, _WINDOW)
    stride = stride or max(length // 2, 1)
    documents = read_documents(files, tokenizer, field)
    scores = score_documents(model, documents, length, stride, batch_size)
    total = total_score("all", scores)
    if not total.tokens:
        raise ValueError(f"{data}: there is no token to score; a text must have at least two")
    shown = [*scores, total] if by_document else [total]
    if as_json:
        facts = {"window": length, "stride": stride, "documents": len(scores)}
        print_json({**facts, "scores": [_fields(score) for score in shown]})
        return
    if by_document:
        print_table(("document", "tokens", "bytes", "loss", "perplexity", "bits per byte"), [_row(s) for s in shown])
    else:
        click.echo(f"loss {total.loss:.4f}  perplexity {total.perplexity:.2f}  bits per byte {total.bits_per_byte:.4f}")
    click.echo(
        f"{len(scores):,} {'document' if len(scores) == 1 else 'documents'}, {total.tokens:,} {tokenizer.unit} and "
        f"{total.bytes:,} bytes scored; windows of {length:,} with a stride of {stride:,}"
    )


def _fields(score: Score) -> dict[str, Any]:
    """Return a score for JSON, in which null stands for numbers that are not finite."""
    numbers = {"loss": score.loss, "perplexity": score.perplexity, "bits_per_byte": score.bits_per_byte}
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {"document": score.name, "tokens": score.tokens, "bytes": score.bytes, **finite}


def _row(score: Score) -> tuple[str, ...]:
    numbers = f"{score.loss:.4f}", f"{score.perplexity:.2f}", f"{score.bits_per_byte:.4f}"
    return escaped(score.name), f"{score.tokens:,}", f"{score.bytes:,}", *numbers
