"""Which kernels compute what: docs/kernels.md lists all variants, and the trace prints the choice."""

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import polyarr
from tests.helpers.opencl_modules import opencl_modules

gemv, matmul, quantized_linear, gated_linear, linear = opencl_modules(
    "gemv", "matmul", "quantized_linear", "gated_linear", "linear"
)
attention, attention_decode, conv, sort, topk, segments = opencl_modules(
    "attention", "attention_decode", "conv", "sort", "topk", "segments"
)
VENDOR = import_module("polyarr.backends.opencl.runtime.vendor").vendor()
pytestmark = pytest.mark.polyarr_backend("opencl")
PACKAGE = Path(polyarr.__file__).parent
DOCS = PACKAGE.parent / "docs"
# The ops whose kernels a vendor has variants of.
VENDORS_OPS = "matmul or linear or attention or conv or batch_norm"


# The variants of each family that has several, in the order in which they are asked.
FAMILIES = {
    "gemm": (*VENDOR.gemv, *VENDOR.gemm, *gemv.VARIANTS, *matmul.TILED),
    "quantized linear": (*VENDOR.quantized, *quantized_linear.VARIANTS),
    "gated linear": (*VENDOR.gated, *gated_linear.VARIANTS),
    "linear gradient": linear.VARIANTS,
    "attention": (*VENDOR.attention, *attention.VARIANTS),
    "decode attention": (*VENDOR.few_queries, *attention_decode.KERNELS),
    "conv": (conv.DEPTHWISE, *VENDOR.convolution, conv.GROUPED, conv.IM2COL),
    "sort": sort.VARIANTS,
    "top-k": topk.VARIANTS,
    "segments": segments.VARIANTS,
}


def as_table() -> str:
    rows = [
        f"| {family} | {variant.name} | {variant.serves} |"
        for family, variants in FAMILIES.items() for variant in variants
    ]  # fmt: skip
    return "\n".join(["| family | variant | for |", "|---|---|---|", *rows])


def test_the_docs_list_all_variants():
    assert as_table() in (DOCS / "kernels.md").read_text(), f"docs/kernels.md lacks:\n{as_table()}"


def path_with(folder: Path) -> str:
    """Return a PYTHONPATH in which `folder` comes first."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(code: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": path_with(PACKAGE.parent), **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_the_trace_prints_the_choice():
    code = "import polyarr as pa; pa.set_backend('opencl'); (pa.ones((64, 64)) @ pa.ones((64, 64))).numpy()"
    found = run(code, POLYARR_TRACE="1")
    assert found.returncode == 0, found.stderr
    chosen = [line for line in found.stderr.splitlines() if ": gemm: " in line]
    assert len(chosen) == 1 and chosen[0].endswith(")"), found.stderr


def test_the_backend_runs_without_the_vendors_folder(tmp_path):
    """Nothing imports nvidia/ by name, so that other devices need none of it."""
    copy = tmp_path / "polyarr"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("nvidia"))
    assert not (copy / "backends" / "opencl" / "nvidia").exists()
    chosen = "--few-shapes", "-k", f"({VENDORS_OPS}) and (forward or backward or captured)"
    kit = [sys.executable, "-m", "polyarr", "conformance", "opencl", *chosen]
    environment = {**os.environ, "PYTHONPATH": path_with(tmp_path)}
    found = subprocess.run(kit, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0 and " passed" in found.stdout, found.stdout[-2000:] + found.stderr[-2000:]
