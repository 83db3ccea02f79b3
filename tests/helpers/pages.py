"""Execution of a documentation page: its commands and its Python code, in order.

Blocks marked `sh` hold polyarr commands, one per line; blocks marked `python` form one program. All run in one process,
because importing takes longer than most of them, in a folder of their own. Other blocks are not run.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.helpers.root import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)

# Presets of tiny models and few steps: the times and losses on a page are too long for a test.
RUN_ALL = """
import dataclasses, json, sys
import click
from polyarr.cli import main
from polyarr.training import PRESETS

sizes = dict(context_length=8, emb_dim=8, n_heads=2, n_layers=1, drop_rate=0.0, qkv_bias=False)
small = dict(model=sizes, batch_size=2, accumulation=1, steps=4, decay_steps=4, warmup=0, eval_every=100,
             eval_windows=2)
for name in PRESETS:
    PRESETS[name] = dataclasses.replace(PRESETS[name], **small)
names, (parts, unused) = {"__name__": "__main__"}, json.load(sys.stdin)
for kind, part in parts:
    if kind == "python":
        exec(compile(part, "page.py", "exec"), names)
    elif part[0] in unused:  # only parse the command
        main.get_command(click.Context(main), part[0]).make_context(part[0], part[1:])
    else:
        if "--steps" in part:
            at = part.index("--steps") + 1
            part[at] = str(min(int(part[at]), 8))
        try:
            main(part)
        except SystemExit as ended:
            if ended.code:
                raise
    print(end="\\0", flush=True)
"""


def parts_of(page: Path) -> list[tuple[str, str | list[str]]]:
    """Return the parts of a page in order: ("sh", a command's words) and ("python", a block)."""
    found: list[tuple[str, str | list[str]]] = []
    for kind, block in BLOCK.findall(page.read_text()):
        if kind == "sh":
            lines = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()]
            assert all(words[0] == "polyarr" for words in lines), f"{page.name}: {block}"
            found += [(kind, words[1:]) for words in lines]
        elif kind == "python":
            found.append((kind, block))
    return found


def follow(page: Path, folder: Path, unused: tuple[str, ...] = (), **settings: str) -> list[str]:
    """Return what each part of a page prints when run in a folder; `unused` commands are only parsed.

    `settings` are environment variables; polyarr settings from outside are ignored.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POLYARR_")}
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps([parts_of(page), unused]),
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "POLYARR_BACKEND": "numpy", **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{page.name}: {done.stdout[-2000:]}\n{done.stderr}"
    return done.stdout.split("\0")[:-1]
