"""Files that benchmarks write next to their tables, and figures derived from measurements."""

import argparse
import importlib.util
import json

import pytest

from tests.helpers.root import ROOT

FOLDER = ROOT / "benchmarks"


def loaded(name: str):
    """Import a benchmark, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def report():
    return loaded("report")


@pytest.fixture(scope="module")
def cost():
    return loaded("cost")


def test_a_run_is_written_as_json_and_as_a_picture(report, tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("sys.argv", ["x", "--json", str(tmp_path / "a.json"), "--png", str(tmp_path / "a.png")])
    options = report.parsed(argparse.ArgumentParser())
    rows = {"add": {"NumPy": 1.0, "polyarr": 2.0}, "recorded": {"polyarr": 3.0}}
    report.write(options, {"us": rows}, "A title", "microseconds", rows)
    written = json.loads((tmp_path / "a.json").read_text())
    assert (written["measured"], written["rows"], written["unit"]) == ({"us": rows}, rows, "microseconds")
    assert written["machine"] and written["date"] and written["command"].startswith("python x --json")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(report, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["x", "--png", "a.png"])
    monkeypatch.setattr(report.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        report.parsed(argparse.ArgumentParser())
    assert "pip install matplotlib" in capsys.readouterr().err


def test_a_wire_is_found_again_from_what_it_takes(cost) -> None:
    wire = cost.Wire(20e-6, 5e9)
    for ranks in (2, 3, 8):
        found = cost.fitted({n: cost.ring(ranks, n, wire) for n in (1 << 12, 1 << 20, 1 << 28)}, ranks)
        assert found == pytest.approx(wire)


def test_the_ways_of_a_step_as_the_formulas_say(cost) -> None:
    wire, work = cost.Wire(1e-3, 1e9), cost.Work(gradient=0.9, update=0.1, nbytes=4e8)
    assert cost.by_ring(2, work, wire) == pytest.approx(1 + 2e-3 + 0.4)
    assert cost.by_ring(8, work, wire) == pytest.approx(1 + 14e-3 + 2 * 7 / 8 * 0.4)
    assert cost.by_tree(8, work, wire) == pytest.approx(1 + 6e-3 + 0.8)
    assert cost.sharded(8, work, wire) == pytest.approx(cost.by_ring(8, work, wire) - 0.1 * 7 / 8)
    assert cost.overlapped(2, work, wire) == pytest.approx(1)  # 0.402 under 0.6 of backward
    assert cost.overlapped(8, work, wire) == pytest.approx(0.3 + 14e-3 + 0.7 + 0.1)
    assert [cost.efficiency(way, 1, work, wire) for way in cost.WAYS] == [1] * 4
    assert cost.scaled(work, 2, 4) == pytest.approx((1.8, 0.2, 8e8))
