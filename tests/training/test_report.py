"""`polyarr report`: one self-contained HTML page, with everything escaped."""

import json
import re
from html.parser import HTMLParser

import pytest

import polyarr as pa
from polyarr.cli import main
from polyarr.training import Recipe, load_checkpoint, new_run, train
from polyarr.training.curves import MAX_POINTS, Line, chart, downsampled
from polyarr.training.files import RUN_FILES
from polyarr.training.report import rendered, write_report
from tests.helpers.pages import follow
from tests.helpers.root import ROOT

pytest.importorskip("jinja2")

TEXT = "the quick brown fox jumps over the lazy dog; " * 12
SIZES = {"context_length": 4, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "drop_rate": 0.0, "qkv_bias": False}
RECIPE = Recipe(
    {**SIZES, "tie_embeddings": True}, batch_size=2, steps=25, lr=1e-2, min_lr=1e-3, warmup=5, eval_every=15
)  # fmt: skip
VOID = {"meta", "link", "line", "br"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of 25 steps."""
    found = tmp_path_factory.mktemp("reported")
    with pa.use_backend("numpy"):
        train(new_run(TEXT, RECIPE, seed=1), found, quiet=True)
    return found


class Page(HTMLParser):
    """A parser that records elements, attributes and text, and whether all elements are closed."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.given, self.text = [], [], [], ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.given += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.given += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_has_all_of_a_run(folder, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder)])
    assert ended.value.code == 0 and capsys.readouterr().out == f"written: {folder / 'report.html'}\n"
    page = Page((folder / "report.html").read_text())
    assert page.tags.count("svg") == 4 and page.tags.count("path") == 5 and page.tags.count("circle") == 2
    with pa.use_backend("numpy"):
        info = load_checkpoint(folder).info
    for row in info["history"]:
        assert f"{row['val']:.4f}" in page.text
    for shown in ("25 of 25", "Learning rate", "model.emb_dim", "weight_decay", "numpy (the host's CPU", info["run"]):
        assert shown in page.text
    assert "Samples" not in page.text


def test_the_page_needs_nothing_else(folder):
    source = write_report(folder).read_text()
    page = Page(source)
    assert not {"script", "img", "iframe", "object"} & set(page.tags)
    assert [value for name, value in page.given if name in ("src", "href", "action")] == ["data:,"]
    assert not re.search(r"https?:|url\(|@import", source) and not any(name.startswith("on") for name, _ in page.given)


EVIL = "</pre><script>alert(1)</script>\"'&<img src=x onerror=y>"


def test_nothing_is_taken_for_markup(folder):
    info = {
        "run": "a", "preset": EVIL, "data": EVIL, "seed": 1, "step": 1, "seconds": 1.0, "tokenizer": {"kind": EVIL},
        "history": [], "curve": [], "versions": {"polyarr": EVIL, EVIL: EVIL},
        "recipe": {"steps": 2, EVIL: EVIL, "model": {EVIL: EVIL}},
    }  # fmt: skip
    rows = [{"run": "a", "step": 0, "backend": EVIL, "hardware": EVIL}, {"run": "a", "step": 1, "lr": EVIL}]
    page = Page(rendered(info, rows, [EVIL]))
    assert not {"script", "img"} & set(page.tags) and page.text.count(EVIL) == 15
    assert "not finished yet" in page.text and "svg" not in page.tags


def test_rates_are_those_of_the_run_and_memory_is_the_most():
    info = {
        "run": "a", "preset": "p", "data": None, "seed": 1, "step": 20, "seconds": 10.0, "tokenizer": {"kind": "k"},
        "history": [{"step": n, "train": 2.0, "val": v, "seconds": n} for n, v in ((5, 1.5), (10, 1.25), (20, 1.75))],
        "curve": [], "versions": {"polyarr": "0"}, "recipe": {"steps": 20},
    }  # fmt: skip
    rows = [
        {"run": "a", "step": 10, "seconds": 9.0, "tokens_per_second": 100, "tflops": 1.0, "memory_peak": 3_000_000},
        {"run": "a", "step": 10, "seconds": 9.0, "val_loss": 1.0},
        {"run": "a", "step": 20, "seconds": 10.0, "tokens_per_second": 1000, "tflops": 10.0, "memory_peak": 1_000_000},
    ]
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", rendered(info, rows)))
    assert (facts["tokens/s"], facts["TFLOP/s"]) == ("190", "1.9")
    assert facts["memory of the device, at most"] == "3 MB"
    assert facts["best validation loss"] == "1.2500 at step 10" and facts["its perplexity"] == "3.49"


@pytest.mark.parametrize("last", [600, 100_000, 999_999, 12_345_678])
def test_texts_of_ticks_are_inside_the_picture(last):
    """With 7 of 760 pixels per character at most."""
    drawn = chart("t", [Line("l", [(0, 1.0), (last, 2.0)])])
    for tick in drawn["x_ticks"]:
        half = 3.5 * len(tick["text"])
        assert 0 <= tick["middle"] - half and tick["middle"] + half <= drawn["width"]
    assert drawn["x_ticks"][0]["middle"] == drawn["x_ticks"][0]["place"]


def test_damaged_metrics_leave_the_rest(folder, tmp_path):
    for name in RUN_FILES[:2]:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    run = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["run"]
    rows = [{"step": 10**400}, {"step": -1}, {"step": 3, "lr": 10**400}, {"step": 4, "lr": float("nan")}]
    lines = [json.dumps({"run": run} | row) for row in (*rows, {"step": 5, "lr": True}, {"step": 6, "lr": 0.5})]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, "[", '{"run": 1}']))
    page = Page(write_report(tmp_path).read_text())
    assert page.tags.count("svg") == 2 and "Learning rate" in page.text
    (tmp_path / "metrics.jsonl").unlink()
    assert Page(write_report(tmp_path).read_text()).tags.count("svg") == 1


def test_what_is_no_run_is_one_line(tmp_path, capsys):
    def said(*args):
        with pytest.raises(SystemExit) as ended:
            main(["report", *map(str, args)])
        out, err = capsys.readouterr()
        assert ended.value.code == 1 and out == "" and err.count("\n") == 1
        return err

    assert "no checkpoint is here; a report is of a run that was saved" in said(tmp_path)
    assert "no checkpoint is here" in said(tmp_path / "nowhere")
    (tmp_path / "best.safetensors").write_bytes(b"damaged")
    assert "best.safetensors: damaged checkpoint: " in said(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.safetensors"]


def test_the_page_of_the_documentation(tmp_path):
    _, last, said = follow(ROOT / "docs" / "watch-a-run.md", tmp_path)
    assert re.fullmatch(r"4 \d\.\d+\n", last) and said == "written: runs/mine/report.html\n"


def test_samples_are_shown(folder, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("first <b>\n")
    (tmp_path / "b.txt").write_bytes(b"second \xff\n")
    with pytest.raises(SystemExit):
        main(["report", str(folder), "--sample", str(tmp_path / "a.txt"), "--sample", str(tmp_path / "b.txt")])
    page = Page((folder / "report.html").read_text())
    assert "first <b>" in page.text and "second \ufffd" in page.text and page.tags.count("pre") == 2


# ---- curves ------------------------------------------------------------------------------------------------------


def test_points_lie_where_they_belong():
    found = chart("x", [Line("a", [(0, 0.0), (10, 1.0)]), Line("b", [(5, 0.5)])])
    left, right, bottom, top = found["left"], found["right"], found["bottom"], 12
    assert found["lines"][0]["path"] == f"M{left:.1f} {bottom:.1f} L{right:.1f} {top:.1f}"
    (dot,) = found["lines"][1]["dots"]
    assert (dot["x"], dot["y"]) == ((left + right) / 2, (bottom + top) / 2) and dot["text"] == "step 5: 0.5"
    assert [tick["text"] for tick in found["x_ticks"]] == ["0", "2", "4", "6", "8", "10"]


RANGES = [[0.0], [5.0, 5.0], [1e30, -1e30], [3e299, -3e299], [1e-300, 2e-300], [1, 1 + 1e-15]]


@pytest.mark.parametrize("values", RANGES)
def test_every_range_can_be_drawn(values):
    found = chart("x", [Line("a", list(enumerate(values)))])
    numbers = [float(n) for n in re.findall(r"[-\d.e+]+", found["lines"][0]["path"].replace("L", " ")[1:])]
    assert len(numbers) == 2 * len(values) and all(0 <= n <= 760 for n in numbers) and "nan" not in str(found)


def test_nothing_to_draw_is_no_chart():
    assert chart("x", [Line("a", [])]) is None


def test_of_many_points_neighbours_are_drawn_as_their_mean():
    found = downsampled([(step, step % 2) for step in range(4 * MAX_POINTS)])
    assert len(found) == MAX_POINTS and found[0] == (1.5, 0.5) and found[-1] == (4 * MAX_POINTS - 2.5, 0.5)
    assert len(downsampled([(step, 0.0) for step in range(MAX_POINTS + 1)])) == MAX_POINTS
