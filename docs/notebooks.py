"""Tutorials: pages of docs/tutorials/ whose Python blocks are run when the site is built, and notebooks of them.

A block's output, the value of its last expression and its figures follow it on the page, as in a notebook.
"""

import base64
import json
import posixpath
import re
import subprocess
import sys
from typing import Any, NamedTuple

BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)
# Runs blocks in one namespace; writes [{"text": ..., "figures": [base64 of a PNG]}] as its last line.
PROGRAM = """
import ast, base64, contextlib, io, json, sys
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt

names, found = {"__name__": "__main__"}, []
plt.show = lambda: None
for number, block in enumerate(json.load(sys.stdin), 1):
    tree, text, figures = ast.parse(block), io.StringIO(), []
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(text):
        exec(compile(tree, f"block {number}", "exec"), names)
        if last and (value := eval(compile(ast.Expression(last.value), f"block {number}", "eval"), names)) is not None:
            print(value)
    for figure in map(plt.figure, plt.get_fignums()):
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=90)
        figures.append(base64.b64encode(image.getvalue()).decode())
    plt.close("all")
    found.append({"text": text.getvalue(), "figures": figures})
print(json.dumps(found))
"""


class Result(NamedTuple):
    """The output of a block, and its figures as PNG in base64."""

    text: str
    figures: list[str]


class Tutorial(NamedTuple):
    """A page, and the results of its Python blocks.

    Attributes:
        path: Path of the page on the site.
        text: The page as written.
    """

    path: str
    text: str
    results: list[Result]

    @property
    def title(self) -> str:
        """First heading of the page."""
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def notebook(self) -> str:
        """Path of the notebook on the site."""
        return self.path.removesuffix(".md") + ".ipynb"

    @property
    def pictures(self) -> dict[str, bytes]:
        """Figures as PNG, by their paths on the site."""
        return {
            self.picture(i, j): base64.b64decode(figure)
            for i, result in enumerate(self.results)
            for j, figure in enumerate(result.figures)
        }

    def picture(self, block: int, number: int) -> str:
        """Return the path of a figure on the site."""
        return f"{self.path.removesuffix('.md')}-{block}-{number}.png"


def executed(path: str, text: str) -> Tutorial:
    """Run the Python blocks of a page in one process.

    Raises:
        RuntimeError: A block raised an error.
    """
    given = json.dumps(BLOCK.findall(text))
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{path}: {done.stderr}")
    return Tutorial(path, text, [Result(**found) for found in json.loads(done.stdout.splitlines()[-1])])


def page_of(tutorial: Tutorial, text: str) -> str:
    """Return the page `text` with the results behind its blocks, and a link to the notebook below its title."""
    each = iter(enumerate(tutorial.results))
    title, _, rest = text.partition("\n")
    link = f"[As a notebook]({posixpath.basename(tutorial.notebook)})"
    return f"{title}\n\n{link}\n{BLOCK.sub(lambda block: block[0] + _shown(tutorial, *next(each)), rest)}"


def _shown(tutorial: Tutorial, number: int, result: Result) -> str:
    text = f"\n```text\n{result.text}```\n" if result.text else ""
    names = (posixpath.basename(tutorial.picture(number, j)) for j, _ in enumerate(result.figures))
    return text + "".join(f"\n![a figure]({name})\n" for name in names)


def notebook_of(tutorial: Tutorial) -> str:
    """Return a tutorial as a Jupyter notebook."""
    cells: list[dict[str, Any]] = []
    for i, part in enumerate(BLOCK.split(tutorial.text)):
        cell = {"id": f"cell-{i}", "metadata": {}, "source": part.strip("\n")}
        if i % 2:
            outputs = _outputs(tutorial.results[i // 2])
            cells.append({**cell, "cell_type": "code", "execution_count": None, "outputs": outputs})
        elif part.strip():
            cells.append({**cell, "cell_type": "markdown"})
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def _outputs(result: Result) -> list[dict[str, Any]]:
    text = [{"output_type": "stream", "name": "stdout", "text": result.text}] if result.text else []
    shown = {"output_type": "display_data", "metadata": {}}
    return text + [{**shown, "data": {"image/png": figure}} for figure in result.figures]
