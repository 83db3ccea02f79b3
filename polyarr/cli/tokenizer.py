"""`polyarr tokenizer`: train a tokenizer on texts, and show the tokens of a text."""

from pathlib import Path

import click

from polyarr.atomic import write_whole
from polyarr.cli.output import escaped, in_shell, print_json
from polyarr.cli.values import FileName
from polyarr.text import Tokenizer, find_files, is_prepared, load_tokenizer, open_prepared, train_bpe
from polyarr.text.sandbox import SandboxedTokenizer
from polyarr.text.sources import FIELD, read_pieces
from polyarr.text.subword import BYTES

_MAX_LISTED = 20  # tokens that are listed at either end of a vocabulary


@click.group(no_args_is_help=False)
def command() -> None:
    """Train a tokenizer on texts, or show one."""


@command.command("train")
@click.argument("data", nargs=-1, required=True, type=FileName())
@click.option("--size", type=click.IntRange(min=BYTES + 1), required=True, help="Largest number of tokens.")
@click.option(
    "--out", type=FileName(dir_okay=False), required=True, help="File to write, a tokenizer.json."
)
@click.option("--field", default=FIELD, show_default=True, help="Key of the text in JSON lines.")
def train(data: tuple[Path, ...], size: int, out: Path, field: str) -> None:
    """Train a byte-level BPE tokenizer, as GPT-2's, on texts.

    DATA are UTF-8 texts, JSON lines (.jsonl), folders of such files, or patterns in quotes.
    """
    pieces = read_pieces(find_files(data), field)
    tokenizer = train_bpe((piece for piece in pieces if piece), size)
    write_whole(out, tokenizer.to_json().encode())
    fewer = "" if tokenizer.vocab_size == size else f" (no further pairs occur twice, so not {size:,})"
    next_step = f"polyarr train --tokenizer {in_shell(out)}"
    click.echo(f"{tokenizer.vocab_size:,} tokens{fewer}, saved in {out}; now try: {next_step}")


@command.command("show")
@click.argument("path", metavar="FILE", type=FileName())
@click.option("--text", help="Show the tokens of a text.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(path: Path, text: str | None, as_json: bool) -> None:
    """Show a tokenizer, or the tokens of a text.

    FILE is a tokenizer.json, a folder with one or with GPT-2's files, or a folder that `polyarr prepare` wrote.
    """
    tokenizer = open_prepared(path).tokenizer if is_prepared(path) else load_tokenizer(path)
    try:
        tokens = None if text is None else _encoded(tokenizer, text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--text'") from error
    if as_json:
        print_json(_described(tokenizer, tokens))
        return
    click.echo(f"{tokenizer.vocab_size:,} {tokenizer.unit}; {_end(tokenizer)}")
    numbers = tokens if tokens is not None else [*range(tokenizer.vocab_size)]
    if tokens is not None and text is not None:
        click.echo(f"{len(text):,} characters, {len(text.encode()):,} bytes, {len(tokens):,} {tokenizer.unit}:")
    elif len(numbers) > 2 * _MAX_LISTED:
        click.echo(_listed(tokenizer, numbers[:_MAX_LISTED]) + "\n...")
        numbers = numbers[-_MAX_LISTED:]
    click.echo(_listed(tokenizer, numbers))


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    with SandboxedTokenizer(tokenizer, is_shared=True) as programs:
        return programs.encode(text).tolist()


def _end(tokenizer: Tokenizer) -> str:
    if tokenizer.end is None:
        return "none ends a text"
    return f"{tokenizer.end}, {escaped(tokenizer.token(tokenizer.end))}, ends a text"


def _listed(tokenizer: Tokenizer, numbers: list[int]) -> str:
    return "  ".join(f"{number} {tokenizer.token(number)!r}" for number in numbers)


def _described(tokenizer: Tokenizer, tokens: list[int] | None) -> dict:
    found = {"vocab_size": tokenizer.vocab_size, "unit": tokenizer.unit, "end": tokenizer.end}
    if tokens is None:
        return {**found, "tokens": [tokenizer.token(number) for number in range(tokenizer.vocab_size)]}
    return {**found, "tokens": [{"number": number, "token": tokenizer.token(number)} for number in tokens]}
