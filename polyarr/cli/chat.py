"""`polyarr chat`: a conversation with a model in the terminal."""

import contextlib
import importlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from polyarr.cli.output import escaped, print_error, print_text
from polyarr.cli.values import FileName
from polyarr.cli.writing import check_stops, open_writer, writing_options
from polyarr.models.conversation import Conversation
from polyarr.training.interruption import interruption

_EXIT, _RESET, _HELP = "/exit", "/reset", "/help"


@click.command()
@click.argument("folder", metavar="DIR", type=FileName())
@click.option("--system", help="System prompt, which stays when the oldest turns are dropped.")
@click.option(
    "--tokens", type=click.IntRange(min=1), default=500, show_default=True, help="Limit of the tokens of an answer."
)
@writing_options
def command(
    folder: Path,
    system: str | None,
    tokens: int,
    weights: str | None,
    dtype: str | None,
    backend: str | None,
    draft: Path | None,
    checkpoint: str,
    **options: Any,
) -> None:
    """Talk with the model of a run or of a Hugging Face folder, which must have a chat template.

    Each line is a message. Ctrl-C stops an answer; Ctrl-D or /exit leaves, /reset begins anew, /help lists these. The
    oldest turns are dropped when the conversation no longer fits into the model's context.
    """
    check_stops(options["stop"])
    with open_writer(folder, checkpoint, backend, weights, dtype, draft, is_chat=True) as writer:
        chat = Conversation(writer, system)
        for line in _lines():
            if line == _RESET:
                chat.reset()
            elif line == _HELP:
                print_error(f"{_RESET} begins anew; Ctrl-D or {_EXIT} leaves; Ctrl-C stops an answer")
            elif line:
                _answer(chat, line, tokens, options)


def _answer(chat: Conversation, line: str, tokens: int, options: dict[str, Any]) -> None:
    """Print the answer to a message as it is made; Ctrl-C ends it, and what is there stays in the conversation.

    SIGTERM and SIGHUP end the answer and the program.
    """
    with interruption() as interrupted, contextlib.closing(chat.answer(line, tokens, **options)) as answer:
        try:
            for text in answer:
                print_text(text)
                if interrupted():
                    break
        except ValueError as error:  # the message does not fit, or the template refuses it
            if not sys.stdin.isatty():
                raise
            print_error(f"polyarr chat: {escaped(str(error))}")
            return
        click.echo()
    if chat.dropped:
        print_error(f"the oldest {chat.dropped} messages are dropped, for the model's context is full")
    if interrupted() not in (0, signal.SIGINT):
        signal.raise_signal(interrupted())


def _lines() -> Iterator[str]:
    """Yield lines from standard input up to its end or /exit; on a terminal after a prompt, which Ctrl-C repeats."""
    is_terminal = sys.stdin.isatty()
    with contextlib.suppress(ImportError):  # Windows has none
        importlib.import_module("readline")  # lets input() edit lines and remember them
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            try:
                line = input("> " if is_terminal else "").strip()
            except KeyboardInterrupt:
                if not is_terminal:
                    raise
                click.echo()
                continue
            except EOFError:
                if is_terminal:
                    click.echo()
                return
            except UnicodeDecodeError as error:
                raise ValueError(f"standard input: {error}") from error
            if line == _EXIT:
                return
            yield line
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
