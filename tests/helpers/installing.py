"""Installation of plugins in tests, with the metadata that `pip install` would write."""

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from polyarr import plugins
from tests.helpers.root import ROOT


@contextlib.contextmanager
def installed(sources):
    """Make distributions fake-<name> with these sources, {name: source}, importable in this process."""
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources.items():
            install(Path(folder), name, source)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            with plugins.fresh():
                yield Path(folder)
        finally:
            sys.path.remove(folder)
            for name in sources:
                sys.modules.pop(module_of(name), None)


def install(folder, name, source, distribution=None, version="1.2"):
    """Write a module and the metadata of a distribution that names it as an entry point."""
    (folder / f"{module_of(name)}.py").write_text(textwrap.dedent(source).replace("{name}", name))
    distribution = distribution or f"fake-{name}"
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[polyarr]\n{name} = {module_of(name)}\n")


def module_of(name):
    return f"fake_plugin_{name.replace('.', '_')}"


def child(code, folder=None, **environment):
    """Run code in a new process with `folder` on its path."""
    path = os.pathsep.join(map(str, [folder, ROOT] if folder else [ROOT]))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**_clean(), "PYTHONPATH": path, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def _clean():
    return {name: value for name, value in os.environ.items() if not name.startswith("POLYARR_")}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """Clear POLYARR_ settings, plugins and the current backend before every test."""
    for name in set(os.environ) - set(_clean()):
        monkeypatch.delenv(name)
    with plugins.fresh():
        yield
