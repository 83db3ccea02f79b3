"""The `polyarr` command: loads a subcommand when it is called, and says in one line what went wrong."""

import contextlib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import click

from polyarr.cli.output import complain, flushed, shown, standard_streams
from polyarr.core.errors import DtypeError, GradientError

# name -> where its click command is, and what `polyarr --help` says of it without importing it.
COMMANDS = {
    "train": ("polyarr.cli.train:command", "Train a small GPT on text."),
    "generate": ("polyarr.cli.generate:command", "Generate text with a trained model."),
    "serve": ("polyarr.cli.serve:command", "Answer over HTTP with a trained model, as the OpenAI API does."),
    "prepare": ("polyarr.cli.prepare:command", "Write the tokens of texts into a folder, once."),
    "tokenizer": ("polyarr.cli.tokenizer:command", "Learn a tokenizer from texts, or show one."),
    "import": ("polyarr.cli.importing:command", "Take a model from Hugging Face's files, or the tutorial's."),
    "export": ("polyarr.cli.exporting:command", "Write a model for other programs."),
    "report": ("polyarr.cli.report:command", "Write a page about a run: curves, evaluations, recipe."),
    "inspect": ("polyarr.cli.inspecting:command", "Show what is in a model's files, tensor by tensor."),
    "backends": ("polyarr.cli.backends:command", "List the backends, and what each can do."),
    "devices": ("polyarr.cli.devices:command", "List the devices that the backends can use."),
    "doctor": ("polyarr.cli.doctor:command", "Find out what is wrong, and how to mend it."),
    "conformance": ("polyarr.cli.conformance:command", "Check that a backend does what polyarr promises."),
    "tune": ("polyarr.cli.tune:command", "Find the fastest kernels for a device, and keep them."),
    "ops": ("polyarr.cli.ops:command", "List the ops, and how a backend runs each."),
}
# The messages of these, and so of every polyarr error, are for users; of anything else the type is shown too.
EXPECTED = (DtypeError, GradientError, MemoryError, OSError, RuntimeError, ValueError)
TOGETHER = ("train", "doctor")  # what processes that mpiexec started do together
# How many these are, and which one this is, as launchers have it.
LAUNCHED = (("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK"))
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, and all take --debug.

    Commands stay thin: they raise. An error becomes one line on stderr and exit code 1, bad usage
    (click.UsageError, click.BadParameter) exit code 2, Ctrl-C exit code 130; --debug, before or after the
    command's name, shows the traceback as well.
    """

    is_debugging = False
    is_shared = False  # whether other processes run the command together with this one

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, and give it --debug."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        command.name = cmd_name
        for one in (command, *getattr(command, "commands", {}).values()):
            if not any(param.name == "debug" for param in one.params):
                one.params.append(debug_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which there are."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command called {args[0]!r}; there are: {', '.join(COMMANDS)}")
        size, rank = _ranks()
        self.is_shared = args[0] in TOGETHER and size > 1
        if args[0] not in TOGETHER and size > 1 and rank == 0:
            complain(f"warning: each of {size} processes does all of {args[0]} by itself; leave out mpiexec")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command; errors become a line on stderr and an exit code."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        self.is_debugging = False
        with _plain_warnings(), standard_streams():
            try:
                code = super().main(*args, standalone_mode=False, **extra)
            except Exception as error:
                code = self._explain(error)
            if not code and (failure := flushed(sys.stdout)):
                code = self._explain(failure)
        sys.exit(code if isinstance(code, int) else 0)

    def _explain(self, error: Exception) -> int:
        is_interrupted = isinstance(error, click.Abort) and isinstance(error.__cause__, KeyboardInterrupt)
        code = error.exit_code if isinstance(error, click.ClickException) else INTERRUPTED if is_interrupted else 1
        line = "interrupted" if is_interrupted else shown(message_of(error))  # which may name what a file holds
        if self.is_debugging and not is_interrupted:
            complain("".join(traceback.format_exception(error)).rstrip())
        if not self.is_shared or _is_to_tell(line.partition(": ")[2] or line, code):
            complain(line)
        return code


def _ranks() -> tuple[int, int]:
    """How many processes mpiexec started, and which of them this one is, without a look at MPI."""
    for names in LAUNCHED:
        size, rank = (os.environ.get(name, "") for name in names)
        if size.isdecimal() and rank.isdecimal():
            return int(size), int(rank)
    return 1, 0


def _is_to_tell(line: str, code: int) -> bool:
    """Whether this process says what stopped it, which may have stopped the others, too; those would wait for it."""
    _, rank = _ranks()
    try:
        return bool(importlib.import_module("polyarr.cli.ranks").is_to_tell(rank, line, code))
    except RuntimeError:  # such as that there is no mpi4py
        return rank == 0


def debug_option() -> click.Option:
    """--debug: show the traceback of an error. Tells the group, wherever on the line it stands."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        group = ctx.find_root().command
        if value and isinstance(group, LazyGroup):
            group.is_debugging = True

    return click.Option(
        ["--debug"], is_flag=True, is_eager=True, expose_value=False, callback=note, help="Show tracebacks."
    )


def message_of(error: BaseException) -> str:
    """An error in one line, from the command that it stopped."""
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "polyarr"
        return f"{where}: {_line(error.format_message())} (try: {where} --help)"
    if isinstance(error, click.ClickException):
        return f"polyarr: {_line(error.format_message())}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"polyarr: {error.filename}: {error.strerror}"
    if isinstance(error, EXPECTED) and str(error):
        return f"polyarr: {_line(str(error))}"
    return f"polyarr: {type(error).__name__}: {_line(str(error))} (--debug shows where)"


def _line(text: str) -> str:
    """The first line; a compiler's log may follow it, which --debug shows."""
    lines = text.strip().splitlines()
    return lines[0] + (" (--debug shows the rest)" if len(lines) > 1 else "") if lines else ""


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings as a line each, without the source line that raised them."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
        yield


@click.group(cls=LazyGroup, params=[debug_option()], context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="polyarr")
def main() -> None:
    """Arrays and gradients on any backend, and a GPT that trains on them."""
