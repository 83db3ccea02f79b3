"""The documentation site: all pages are built, links work, and nothing is loaded from other sites."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from html import escape

import pytest

from polyarr.core.op import OPS
from tests.helpers.root import ROOT

PLANTED = """# Planted

[a page](no-such-page.md), [a file](../polyarr/no_such_file.py), [a place](compile.md#no-such-place),
[a page of the site](precision.md), [a file of the repository](../polyarr/core/program.py) and
[a place there](write-a-backend.md#4-test-it).
"""

MEASURED = {
    "title": "Planted products", "unit": "ms", "machine": "a device", "date": "2026-01-02", "polyarr": "0.1.0",
    "command": "python x", "rows": {"n=1": {"polyarr": 1.2345, "a peer": 2}, "n=2": {"a peer": 3}}, "measured": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the site with one page that mkdocs.yml does not name, and the build's output."""
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    folder = tmp_path_factory.mktemp("site")
    for entry in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "mkdocs.yml", "examples", "polyarr"):
        (folder / entry).symlink_to(ROOT / entry)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "docs" / "planted.md").write_text(PLANTED)
    (folder / "docs" / "benchmarks").mkdir(exist_ok=True)
    (folder / "docs" / "benchmarks" / "planted.json").write_text(json.dumps(MEASURED))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder / "built"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return folder / "built", done


def test_what_leads_nowhere_is_an_error_and_nothing_else_is(built):
    """Three planted links give one warning each, and there is no other."""
    _, done = built
    found = re.findall(r"^WARNING +- +(.*)$", done.stdout + done.stderr, re.M)
    assert done.returncode == 1 and len(found) == 3, done.stdout + done.stderr
    for name in ("no-such-page.md", "no_such_file.py", "no-such-place"):
        assert any("planted.md" in line and name in line for line in found), found


def test_a_page_missing_in_the_navigation_is_built(built):
    site, _ = built
    home = (site / "index.html").read_text()
    for page in ("planted", "data", "decisions/0023-replay", "examples/polyarr-tiny/index"):
        assert f'href="{page}.html"' in home
    page = (site / "planted.html").read_text()
    assert 'href="source/polyarr/core/program.py.html"' in page and 'href="write-a-backend.html#4-test-it"' in page


def test_tutorials_show_their_results(built):
    """Each tutorial is a page with output and pictures, and a notebook with the same; the gallery has all pictures."""
    site, _ = built
    gallery = (site / "gallery.html").read_text()
    for page in (ROOT / "docs" / "tutorials").glob("*.md"):
        text = (site / "tutorials" / f"{page.stem}.html").read_text()
        shown = re.findall(r'src="([^"]+\.png)"', text)
        assert shown and all((site / "tutorials" / name).read_bytes().startswith(b"\x89PNG") for name in shown)
        assert all(f"tutorials/{name}" in gallery for name in shown)
        notebook = json.loads((site / "tutorials" / f"{page.stem}.ipynb").read_text())
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert len(code) == page.read_text().count("```python")
        printed = [each["text"] for cell in code for each in cell["outputs"] if "text" in each]
        assert printed and all(escape(line, quote=False) in text for part in printed for line in part.splitlines())


def test_measurements_are_shown_with_machine_and_date(built):
    site, _ = built
    text = re.sub(r"\s*<[^>]+>\s*", "|", (site / "benchmarks.html").read_text())
    assert "Planted products" in text and "a device; polyarr 0.1.0, 2026-01-02;" in text
    assert re.search(r"\|n=1\|+1.23\|+2\|", text) and re.search(r"\|n=2\|+3\|", text)


def test_a_tutorial_that_fails_stops_the_build(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    notebooks = importlib.import_module("notebooks")
    with pytest.raises(RuntimeError, match=r"(?s)tutorials/planted\.md: .*block 2.*NameError"):
        notebooks.executed("tutorials/planted.md", "# Planted\n\n```python\nx = 1\n```\n\n```python\ny\n```\n")


def test_the_reference_has_every_op(built):
    site, _ = built
    text = "".join(path.read_text() for path in (site / "reference" / "ops").iterdir())
    ours = [op.name for op in OPS if op.__module__.startswith("polyarr.")]
    assert [name for name in ours if f'<h2 id="{name}">' not in text] == []
    assert text.count("<strong>Gradients:</strong> ") == len(ours)


def test_the_reference_has_the_public_names(built):
    site, _ = built
    for page, names in {
        "nn": ("Linear", "TransformerBlock"), "optim": ("AdamW", "warmup_cosine"), "text": ("Corpus", "train_bpe"),
        "models": ("GPTModel", "load_pretrained"), "training": ("Recipe", "new_run"), "autograd": ("vjp", "grad"),
    }.items():  # fmt: skip
        text = (site / "reference" / f"{page}.html").read_text()
        assert all(f'<h2 id="polyarr.{page}.{name}"' in text for name in names), page


def test_no_asterisk_of_a_pattern_is_taken_for_emphasis(built):
    """Patterns such as "att.*" without backticks; only words are emphasized."""
    site, _ = built
    found = {
        (path.name, text)
        for path in site.rglob("*.html")
        for text in re.findall(r"<em>(.*?)</em>", path.read_text(), re.S)
        if not re.fullmatch(r"\w.*[\w.]", text, re.S)
    }
    assert found == set()


def test_code_is_broken_where_a_window_is_narrow(built):
    site, _ = built
    (rule,) = re.findall(r"pre > code \{(.*?)\}", (site / "site.css").read_text())
    assert "white-space: pre-wrap" in rule and "overflow-wrap: anywhere" in rule


def test_nothing_is_fetched_from_elsewhere(built):
    """Pages have links, but no script, style, font or picture of another site."""
    site, _ = built
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    fetched = re.compile(r"<(?:script|img|iframe)[^>]* src=\W?https?:|<link[^>]* href=\W?https?:")
    assert [path.name for path in pages if fetched.search(path.read_text())] == []
