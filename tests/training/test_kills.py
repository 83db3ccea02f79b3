"""Training killed at every file-system operation: no file is torn, and no two runs are mixed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyarr.training.files import remove_left_overs
from tests.helpers.root import ROOT

HERE = Path(__file__).parent
NAMES = ["best.safetensors", "last.safetensors", "loss.png", "metrics.jsonl"]


def killed_runs(mode, folder, *stride):
    """Files of a complete run and of another one, and the results of the killed runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POLYARR_")}
    found = subprocess.run(
        [sys.executable, HERE / "killed_runs.py", mode, folder, *map(str, stride)],
        env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert found.returncode == 0, found.stderr
    return list(map(json.loads, found.stdout.splitlines()))


def is_whole(row):
    return any(name in row["found"] for name in NAMES[:2])


def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_end(tmp_path):
    whole, _, *rows = killed_runs("plain", tmp_path)
    assert whole[1] == NAMES and rows[-1]["code"] == 0 and len(rows) > 25
    for row in rows:
        if is_whole(row):
            assert row["ending"] == whole, (row["where"], row["found"], row["said"])
        else:
            assert row["said"].startswith("FileNotFoundError: ") and "no checkpoint 'last' here" in row["said"]
    assert len([row for row in rows if not is_whole(row)]) == 11  # up to the first replace


def test_a_run_that_replaces_another_leaves_the_one_or_the_other(tmp_path):
    new, old, *rows = killed_runs("overwrite", tmp_path)
    assert rows[-1]["code"] == 0 and rows[-1]["ending"] == new and len(rows) > 25
    endings = [row["ending"] for row in rows]
    first = endings.index(new)
    assert first > 3 and endings == [old] * first + [new] * (len(rows) - first)


# A run of some hundred file-system operations; `python tests/training/killed_runs.py kept FOLDER` kills at each.
@pytest.mark.parametrize("mode", ["kept", "full"])
def test_a_run_that_keeps_checkpoints_and_ends_early_goes_on_exactly(tmp_path, mode):
    """After a kill, and after a full disk."""
    whole, _, *rows = killed_runs(mode, tmp_path, 11)
    names = [name for name in whole[1] if name.startswith("step-")]
    assert len(names) == 2 and "step-20.safetensors" not in names and len(rows) > 6
    for row in rows:
        if is_whole(row):
            assert row["ending"] == whole, (row["where"], row["found"], row["said"])
        if mode == "full" and row["code"]:
            assert ": OSError: [Errno 28] No space left on device: " in row["where"]
            assert not any(name.startswith(".") for name in row["found"])
    assert rows[-1]["code"] == 0 and len([row for row in rows if not is_whole(row)]) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, name):
    kept = [tmp_path / name, tmp_path / ".hidden.tmp", tmp_path / "notes.tmp"]
    for path in (tmp_path / f".{name}.123.tmp", tmp_path / f".{name}.4567.tmp", *kept):
        path.write_text("half")
    remove_left_overs(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
