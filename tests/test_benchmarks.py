"""What benchmarks write beside their tables."""

import argparse
import importlib.util
import json
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "report.py"


@pytest.fixture
def report():
    """The module, which lies in no package."""
    spec = importlib.util.spec_from_file_location("report", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_run_is_written_as_json_and_as_a_picture(report, tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("sys.argv", ["x", "--json", str(tmp_path / "a.json"), "--png", str(tmp_path / "a.png")])
    options = report.parsed(argparse.ArgumentParser())
    rows = {"add": {"NumPy": 1.0, "polyarr": 2.0}, "recorded": {"polyarr": 3.0}}
    report.write(options, {"us": rows}, "A title", "microseconds", rows)
    assert json.loads((tmp_path / "a.json").read_text()) == {"us": rows}
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(report, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["x", "--png", "a.png"])
    monkeypatch.setattr(report.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        report.parsed(argparse.ArgumentParser())
    assert "pip install matplotlib" in capsys.readouterr().err
