"""Signals end a command without a traceback: early ones, and several."""

import os
import signal
import subprocess
import sys

import pytest

from tests.helpers.root import ROOT

DEFAULT = "import signal\nsignal.signal(2, signal.default_int_handler)\n"  # a shell ignores SIGINT in the background
BEGIN = DEFAULT + "from polyarr.cli import _interrupt_once\n_interrupt_once()\n"
AGAIN = "try:\n    signal.raise_signal(2)\nexcept KeyboardInterrupt:\n    signal.raise_signal(2)\nprint('not reached')"
CALLBACK = "class A:\n    def __del__(self):\n        signal.raise_signal(2)\na = A()\ndel a\nprint('not reached')"
# A sitecustomize module, which Python imports first: it sends SIGINT when a module is about to be imported.
AT_IMPORT = DEFAULT + """
import os, sys
class Finder:
    def find_spec(name, *_):
        if name == os.environ["AT"]:
            signal.raise_signal(2)
sys.meta_path.insert(0, Finder)
"""
# As pip writes it.
SCRIPT = "import sys\nfrom polyarr.cli import main\nsys.exit(main())"
LATE = "import atexit\natexit.register(signal.raise_signal, 2)"


@pytest.mark.skipif(sys.platform == "win32", reason="processes do not end by signals there")
@pytest.mark.parametrize("rest", [AGAIN, CALLBACK, LATE], ids=["again", "in a callback", "at exit"])
def test_another_interrupt_ends_the_process_in_silence(rest):
    kept = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
    found = subprocess.run(
        [sys.executable, "-c", BEGIN + rest], env={**kept, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=120
    )
    assert (found.returncode, found.stdout, found.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.skipif(sys.platform == "win32", reason="raise_signal ends processes there")
@pytest.mark.parametrize("how", ["script", "module"])
@pytest.mark.parametrize("at", ["numpy", "polyarr.tree", "click", "polyarr.cli.output", "polyarr.cli.devices"])
def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path, at, how):
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    (tmp_path / "polyarr").write_text(SCRIPT)
    program = [str(tmp_path / "polyarr")] if how == "script" else ["-m", "polyarr"]
    kept = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
    env = {**kept, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "AT": at}
    found = subprocess.run(
        [sys.executable, *program, "devices"], env=env, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stdout, found.stderr.strip()) == (130, "", "interrupted")


def test_other_programs_keep_their_handler_of_interrupts():
    code = DEFAULT + "import polyarr\nassert signal.getsignal(2) is signal.default_int_handler"
    kept = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
    for arguments in ([], ["polyarr"]):
        command = [sys.executable, "-c", code, *arguments]
        subprocess.run(command, env={**kept, "PYTHONPATH": str(ROOT)}, check=True, timeout=120)
