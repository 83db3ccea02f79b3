"""Output of commands that cannot be written: closed, a full disk, or a pipe without a reader."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from polyarr.cli.output import print_text
from tests.helpers.root import ROOT

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")

TINY = """
import polyarr.cli.train as command
from polyarr.cli import main
from polyarr.training import Recipe

sizes = dict(context_length=4, emb_dim=8, n_heads=2, n_layers=1, drop_rate=0.0, qkv_bias=False)
command.PRESETS["demo"] = Recipe(
    sizes, batch_size=2, steps=2, lr=0.01, min_lr=0.001, warmup=0, eval_every=1, eval_windows=2
)
main()
"""


def shell(line, cwd, unbuffered):
    """Run a line of shell in which P is the command with a tiny preset."""
    (cwd / "tiny.py").write_text(TINY)
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("POLYARR_", "PYTHON"))}
    python = shlex.join([sys.executable, "tiny.py"])
    return subprocess.run(
        ["sh", "-c", line.replace("P ", f"{python} ", 1)],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def unbuffered(request):
    return request.param


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 5)
    return tmp_path


TRAIN = "P train --backend numpy --data a.txt --out run"
WHOLE = ["best.safetensors", "last.safetensors", "loss.png", "metrics.jsonl"]


@pytest.mark.parametrize("closing", ["1>&-", "2>&-", "0<&- 1>&- 2>&-", pytest.param("2>/dev/full", marks=needs_full)])
def test_training_works_without_output(folder, closing, unbuffered):
    found = shell(f"{TRAIN} {closing}", folder, unbuffered)
    assert found.returncode == 0, found.stderr
    assert ("val loss" in found.stdout) == ("1>" not in closing)
    assert sorted(path.name for path in (folder / "run").iterdir()) == WHOLE


@needs_full
@pytest.mark.parametrize("command", [TRAIN, "P backends", "P --help"])
def test_a_full_standard_output_is_named(folder, command, unbuffered):
    found = shell(f"{command} >/dev/full", folder, unbuffered)
    assert (found.returncode, found.stderr) == (1, "polyarr: standard output: No space left on device\n")


@pytest.mark.parametrize(("is_terminal", "due"), [(True, "é\n\t\\x1b[2J\\r"), (False, "é\n\t\x1b[2J\r")])
def test_a_models_text_moves_no_terminals_cursor(monkeypatch, capsys, is_terminal, due):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    print_text("é\n\t\x1b[2J\r")
    assert capsys.readouterr().out == due


@needs_full
def test_an_error_that_cannot_be_shown_is_still_one(folder, unbuffered):
    assert shell("P generate none --backend numpy 2>/dev/full", folder, unbuffered).returncode == 1
    assert shell("P generate none --backend numpy 2>&-", folder, unbuffered).returncode == 1


def test_a_pipe_without_a_reader_is_no_error_message(folder, unbuffered):
    found = shell("P backends | true", folder, unbuffered)
    assert found.stderr == ""


def test_no_file_gets_the_number_of_a_closed_stream(folder):
    (folder / "where.py").write_text(
        "import os, sys\nfrom polyarr.cli.output import standard_streams\n"
        "with standard_streams():\n"
        "    numbers = [os.open('a.txt', os.O_RDONLY)]\n"
        "    ends = [os.path.samestat(os.fstat(n), os.stat(os.devnull)) for n in range(3)]\n"
        "sys.exit(0 if min(numbers) > 2 and all(ends) else 1)\n"
    )
    line = shlex.join([sys.executable, "where.py"]) + " 0<&- 1>&- 2>&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(["sh", "-c", line], cwd=folder, env=environment, timeout=60).returncode == 0
