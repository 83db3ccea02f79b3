"""Ctrl-C while the `polyarr` command imports its modules; polyarr/__init__.py imports this module before all others."""

import contextlib
import os
import signal
import sys
from typing import Any

INTERRUPTED = 130  # exit code of shells for Ctrl-C: 128 + SIGINT


def runs_command() -> bool:
    """Return whether this process is the script `polyarr` or `python -m polyarr`, not another program."""
    program = sys.orig_argv[-len(sys.argv) :][:1]  # sys.argv[0], but behind -m: the name of the module
    return [os.path.basename(path) for path in program] in (["polyarr"], ["polyarr.exe"])


def end(*_: Any) -> None:
    """End the process with one line, as a handler of SIGINT.

    Nothing needs to be cleaned up during the imports, and an exception could be caught by the modules that it crosses.
    """
    with contextlib.suppress(OSError):
        os.write(2, b"\ninterrupted\n")  # below the ^C that a terminal shows, as click prints it
    os._exit(INTERRUPTED)


if runs_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end)  # until the command runs: polyarr.cli replaces the handler
