"""The `polyarr` command: it imports subcommands when they are called, and reports errors in one line."""

import contextlib
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import click

from polyarr.cli.output import escaped, flushed, print_error, standard_streams
from polyarr.core.errors import DtypeError, GradientError
from polyarr.interrupts import INTERRUPTED, end

# name -> (module:attribute of its click command, its line in `polyarr --help`, which is shown without importing it)
COMMANDS = {
    "train": ("polyarr.cli.train:command", "Train a language model on text."),
    "generate": ("polyarr.cli.generate:command", "Generate text with a trained model."),
    "chat": ("polyarr.cli.chat:command", "Talk with a model in the terminal."),
    "evaluate": ("polyarr.cli.evaluate:command", "Score a model on texts: loss, perplexity, bits per byte."),
    "serve": ("polyarr.cli.serve:command", "Serve a model over HTTP, in the format of the OpenAI API."),
    "prepare": ("polyarr.cli.prepare:command", "Tokenize texts into a folder, once for many runs."),
    "tokenizer": ("polyarr.cli.tokenizer:command", "Train a tokenizer on texts, or show one."),
    "import": ("polyarr.cli.importing:command", "Import a model from Hugging Face's files, or the tutorial's."),
    "export": ("polyarr.cli.exporting:command", "Export a model for other programs."),
    "report": ("polyarr.cli.report:command", "Write an HTML report of a run: curves, evaluations, recipe."),
    "inspect": ("polyarr.cli.inspecting:command", "Show the content of a model's files, tensor by tensor."),
    "backends": ("polyarr.cli.backends:command", "List the backends, and what each can do."),
    "devices": ("polyarr.cli.devices:command", "List the devices that the backends can use."),
    "doctor": ("polyarr.cli.doctor:command", "Find problems of the installation, and how to fix them."),
    "conformance": ("polyarr.cli.conformance:command", "Check a backend with the conformance kit."),
    "new-backend": ("polyarr.cli.new_backend:command", "Write a package with a backend to start from."),
    "tune": ("polyarr.cli.tune:command", "Find the fastest kernels for a device, and keep them."),
    "ops": ("polyarr.cli.ops:command", "List the ops, and how a backend runs each."),
}
# Errors whose message is for users, as every polyarr error's is; for all others the type is shown too.
EXPECTED = (DtypeError, GradientError, MemoryError, OSError, RuntimeError, ValueError)
ON_ALL_RANKS = ("train", "doctor")  # commands that run on all processes of mpiexec together
# Environment variables in which launchers give the number of processes and the rank.
LAUNCHED = (("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK"))


class LazyGroup(click.Group):
    """Command group that imports a command when it runs, and gives each the option --debug.

    Commands raise errors, which the group turns into one line on stderr and exit code 1; bad usage (click.UsageError,
    click.BadParameter) into exit code 2, and Ctrl-C into 130. --debug, before or after the command's name, also shows
    the traceback.
    """

    is_debugging = False
    is_shared = False  # whether other processes run the command too

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, and add --debug to it."""
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
        """Find the command, or fail with the list of commands."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command called {args[0]!r}; there are: {', '.join(COMMANDS)}")
        size, rank = _ranks()
        self.is_shared = args[0] in ON_ALL_RANKS and size > 1
        if args[0] not in ON_ALL_RANKS and size > 1 and rank == 0:
            print_error(f"warning: each of {size} processes does all of {args[0]} by itself; leave out mpiexec")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; errors become a line on stderr and an exit code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        self.is_debugging = False
        if args is None:  # called as a program, not from Python
            _interrupt_once()
        with _plain_warnings(), standard_streams():
            try:
                code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            except Exception as error:
                code = self._explain(error)
            if not code and (failure := flushed(sys.stdout)):
                code = self._explain(failure)
        sys.exit(code if isinstance(code, int) else 0)

    def _explain(self, error: Exception) -> int:
        is_interrupted = isinstance(error, click.Abort) and isinstance(error.__cause__, KeyboardInterrupt)
        code = error.exit_code if isinstance(error, click.ClickException) else INTERRUPTED if is_interrupted else 1
        line = "interrupted" if is_interrupted else escaped(message_of(error))  # it may quote a file's content
        if self.is_debugging and not is_interrupted:
            print_error("".join(traceback.format_exception(error)).rstrip())
        if not self.is_shared or _reports_error(line.partition(": ")[2] or line, code):
            print_error(line)
        return code


def _interrupt_once() -> None:
    """Let the first Ctrl-C raise KeyboardInterrupt, and the second end the process, which would only print a traceback.

    Where nothing can be raised, as in a callback of the garbage collector, the first one ends the process as well.
    """
    if signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, end):
        return
    unraisable = sys.unraisablehook

    def note(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    def end_if_interrupted(what: Any) -> None:
        if isinstance(what.exc_value, KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        unraisable(what)

    signal.signal(signal.SIGINT, note)
    sys.unraisablehook = end_if_interrupted


def _ranks() -> tuple[int, int]:
    """Return the number of processes that mpiexec started and the rank of this one, without importing MPI."""
    for names in LAUNCHED:
        size, rank = (os.environ.get(name, "") for name in names)
        if size.isdecimal() and rank.isdecimal():
            return int(size), int(rank)
    return 1, 0


def _reports_error(line: str, code: int) -> bool:
    """Return whether this process reports its error; ranks that did not fail are ended, or they would wait for it."""
    _, rank = _ranks()
    try:
        return bool(importlib.import_module("polyarr.cli.ranks").reports_error(rank, line, code))
    except RuntimeError:  # MPI cannot be used, for example because mpi4py is missing
        return rank == 0


def debug_option() -> click.Option:
    """Return the option --debug, which shows the traceback of an error wherever it stands on the line."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        group = ctx.find_root().command
        if value and isinstance(group, LazyGroup):
            group.is_debugging = True

    return click.Option(
        ["--debug"], is_flag=True, is_eager=True, expose_value=False, callback=note, help="Show tracebacks."
    )


def message_of(error: BaseException) -> str:
    """Return an error as one line for users, which begins with the name of the command."""
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
    """Return the first line of a message; --debug shows the rest, such as a compiler's log."""
    lines = text.strip().splitlines()
    return lines[0] + (" (--debug shows the rest)" if len(lines) > 1 else "") if lines else ""


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings as a line each, without the source line that raised them."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print_error(f"warning: {message}")
        yield


@click.group(
    cls=LazyGroup,
    params=[debug_option()],
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(package_name="polyarr")
@click.pass_context
def main(context: click.Context) -> None:
    """Arrays and automatic differentiation on any backend, and language models that train on them."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
