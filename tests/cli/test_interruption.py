"""A burst of signals ends a command without a traceback."""

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
LATE = "import atexit\natexit.register(signal.raise_signal, 2)"


@pytest.mark.skipif(sys.platform == "win32", reason="processes do not end by signals there")
@pytest.mark.parametrize("rest", [AGAIN, CALLBACK, LATE], ids=["again", "in a callback", "at exit"])
def test_another_interrupt_ends_the_process_in_silence(rest):
    kept = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
    found = subprocess.run(
        [sys.executable, "-c", BEGIN + rest], env={**kept, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=120
    )
    assert (found.returncode, found.stdout, found.stderr) == (-signal.SIGINT, b"", b"")
