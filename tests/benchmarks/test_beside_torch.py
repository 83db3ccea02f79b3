"""shakespeare-char and the same model in PyTorch: equal losses from equal weights and batches.

A few steps; BESIDE_TORCH_STEPS=200 runs more, BESIDE_TORCH_TEXT=FILE uses another text than the standard library's.
"""

import importlib
import os
from pathlib import Path

import numpy as np
import pytest

import polyarr as pa
from polyarr.text import standard_library_text
from polyarr.training import PRESETS, new_run
from polyarr.training.steps import step_of
from tests.helpers.root import ROOT

torch = pytest.importorskip("torch")
STEPS = int(os.environ.get("BESIDE_TORCH_STEPS", "4"))
FILE = os.environ.get("BESIDE_TORCH_TEXT")


@pytest.fixture
def train_step(monkeypatch):
    """The benchmark module that defines the model in PyTorch."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("train_step")


@pytest.mark.filterwarnings("ignore")
def test_the_losses_of_shakespeare_char_are_those_of_pytorch(train_step, backend):
    text = Path(FILE).read_text() if FILE else standard_library_text()[:200_000]
    run = new_run(text, PRESETS["shakespeare-char"], seed=1)
    theirs = train_step.TorchStep(run.recipe, run.model, "cpu")
    step, differences, found = pa.compile(step_of(run.recipe), donate=("model", "state")), [], []
    for number in range(STEPS):
        (windows,) = run.windows(number)
        loss, run.model, run.state, _ = step(run.model, run.state, [pa.asarray(windows)])
        found.append((float(loss), float(theirs(windows))))
        differences.append(abs(found[-1][0] - found[-1][1]))
    print(f"{STEPS} steps on {backend.name}: at most {max(differences):.2e} apart; {found[0]} to {found[-1]}")
    assert max(differences) < 1e-2, int(np.argmax(differences))
    assert found[-1][0] < found[0][0]
