"""`polyarr generate`: generate text with a trained model, and print it token by token."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import numpy as np

from polyarr.cli.output import print_text
from polyarr.cli.values import FileName
from polyarr.cli.writing import check_stops, open_writer, writing_options
from polyarr.files import read_regular
from polyarr.models import Writer
from polyarr.models.completion import Part
from polyarr.models.generation import limit_to_context
from polyarr.models.shared_writer import Call, SharedWriter
from polyarr.schema import loaded_json
from polyarr.text import Tokenizer, start_of
from polyarr.text.constraints import MAX_GRAMMAR
from polyarr.text.grammar import json_rule
from polyarr.text.sandbox import SandboxedTokenizer

_MAX_PROMPT = 2**24  # bytes of a prompt's file


@click.command()
@click.argument("folder", metavar="DIR", type=FileName())
@click.option("--prompt", help="Start of the text.  [default: the token that begins a text, as <s>, or a line end]")
@click.option(
    "--prompt-file", "file", metavar="FILE", type=FileName(),
    help="UTF-8 file with the prompt, or - for standard input; a last line end is left out.",
)
@click.option("--chat", "is_chat", is_flag=True, help="Answer the prompt as a message, by the model's chat template.")
@click.option("--tokens", type=click.IntRange(min=0), default=200, show_default=True, help="Limit of new tokens.")
@click.option(
    "--json-schema", "schema", metavar="FILE", type=FileName(),
    help="Write JSON that is valid by the JSON schema in a file.",
)
@click.option("--stop-at-context", is_flag=True, help="Stop when the model's context is full.")
@writing_options
def command(
    folder: Path,
    prompt: str | None,
    file: Path | None,
    is_chat: bool,
    tokens: int,
    schema: Path | None,
    weights: str | None,
    dtype: str | None,
    backend: str | None,
    draft: Path | None,
    checkpoint: str,
    **options: Any,
) -> None:
    """Generate text with the model of a run or of a Hugging Face folder, up to an end token or a number of tokens."""
    hint = "'--prompt'" if file is None else "'--prompt-file'"
    if file is not None:
        if prompt is not None:
            raise click.UsageError("--prompt and --prompt-file are both given; leave out one")
        prompt = _content(file)
    if prompt == "":
        raise click.BadParameter("it is empty; give at least one character.", param_hint=hint)
    if is_chat and prompt is None:
        raise click.UsageError("--chat answers a message; give it with --prompt or --prompt-file")
    check_stops(options["stop"])
    with open_writer(folder, checkpoint, backend, weights, dtype, draft, is_chat) as writer:
        context = writer.model.config.context_length
        if is_chat:
            programs = cast("SandboxedTokenizer", writer.tokenizer)  # that of open_writer
            start: Any = programs.encode_messages([{"role": "user", "content": prompt}], context)
        else:
            prompt, start = _beginning(writer.tokenizer, prompt, hint)
        if options["stop_at_context"] and tokens and not limit_to_context(writer.model, len(start), tokens):
            text = f"it has {len(start):,} tokens, the model's context {context:,}; leave room for more"
            raise click.BadParameter(text, param_hint=hint)
        begun = list(map(int, start))
        if schema is not None:
            parts = _structured(writer, begun, tokens, schema, options)
        else:
            parts = writer.write([begun], tokens, **options)  # raises for bad options
        print_text(prompt if prompt and not is_chat else "")
        for part in parts:
            print_text(part.text)
        click.echo()


def _structured(
    writer: Writer, start: list[int], tokens: int, schema: Path, options: dict[str, Any]
) -> Iterator[Part]:
    """Return the parts of a text of JSON after a prompt, which is valid by the schema in a file."""
    del options["stop_at_context"], options["speculate"]  # the context always ends these texts, which have no drafts
    shared, text = SharedWriter(writer.model, writer.tokenizer, rows=1), read_regular(schema, MAX_GRAMMAR)
    try:
        found = loaded_json(text)
        if not isinstance(found, dict):
            raise ValueError("it must be an object, which is a JSON schema")
        shared.constraints.check(grammar := f"start: {json_rule(found)}")
    except ValueError as error:
        raise ValueError(f"{schema}: {error}") from error
    return _parts_of(shared, shared.begin([start], tokens, grammar=grammar, **options))


def _parts_of(writer: SharedWriter, call: Call) -> Iterator[Part]:
    while not call.is_done:
        yield from (part for _, part in writer.step())
    writer.constraints.close()
    if call.error:
        raise call.error


def _content(file: Path) -> str:
    """Return the text of a file, or of standard input, without a last line end."""
    is_input = str(file) == "-"
    name = "standard input" if is_input else file
    data = sys.stdin.buffer.read(_MAX_PROMPT + 1) if is_input else read_regular(file, _MAX_PROMPT)
    if len(data) > _MAX_PROMPT:
        raise ValueError(f"{name}: the prompt has more than {_MAX_PROMPT:,} bytes")
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8, byte {data[error.start]:#04x} at position {error.start}") from error


def _beginning(tokenizer: Tokenizer, prompt: str | None, hint: str) -> tuple[str, np.ndarray]:
    """Return a prompt and its tokens (T,); without one, the tokens that begin a text, or a line end."""
    if prompt is None and (start := start_of(tokenizer)):
        return "", np.array(start, np.int32)
    try:
        return prompt or "\n", tokenizer.encode(prompt or "\n")
    except ValueError as error:
        if prompt is None:
            return tokenizer.decode([0]), np.zeros(1, np.int32)
        raise click.BadParameter(str(error), param_hint=hint) from error
