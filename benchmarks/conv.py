"""Convolutions, compared with PyTorch on the same device.

    python benchmarks/conv.py [--dtype float32,high,bfloat16] [--batch N] [--only 3x3] [--turns 9]
                              [--json FILE] [--png FILE]

Rows: a layer's forward pass, and the gradients of its input and of its weight; resnet.py times whole steps. "high" is
float32 with that precision, for which PyTorch may use tf32. PyTorch uses channels-last memory. polyarr runs on the
OpenCL device that POLYARR_DEVICE names, PyTorch on CUDA, or on the CPU if that is one. Both alternate in one process.
On a CPU, PyTorch's threads sleep between its calls, which slows down its small layers; with OMP_WAIT_POLICY=active they
spin, which slows down polyarr's. A fair figure needs both runs, and the better time of each side.
Needs PyTorch: pip install torch
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # PyTorch reads it when imported: its idle threads sleep

import numpy as np
import report
import torch
import torch.nn.functional as F  # noqa: N812  the customary name
from rows import Row, measure, sides

import polyarr as pa
from polyarr import ops

CLOSE = {"float32": 2e-4, "high": 4e-3, "bfloat16": 2e-2}  # relative to the largest result; cuDNN's sums are inaccurate


class Layer(NamedTuple):
    """A convolution layer; x is (batch, length, length, channels)."""

    name: str
    channels: int
    outputs: int
    length: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1

    @property
    def where(self) -> dict[str, int]:
        """Return stride, padding and groups as both libraries take them."""
        return {"stride": self.stride, "padding": self.kernel // 2, "groups": self.groups}


LAYERS = (
    Layer("7x7 / 2, 3 to 64", 3, 64, 224, 7, 2), Layer("3x3, 64", 64, 64, 56),
    Layer("3x3 / 2, 128", 128, 128, 56, 3, 2), Layer("3x3, 128", 128, 128, 28),
    Layer("3x3, 256", 256, 256, 14), Layer("3x3, 512", 512, 512, 7),
    Layer("1x1, 256 to 64", 256, 64, 56, 1), Layer("1x1 / 2, 256 to 512", 256, 512, 56, 1, 2),
    Layer("3x3, 128 in 32 groups", 128, 128, 56, groups=32), Layer("3x3 depthwise, 256", 256, 256, 28, groups=256),
)  # fmt: skip


def pair(host: np.ndarray, dtype: str, where: str) -> tuple[pa.Array, torch.Tensor]:
    """Return equal numbers for both, channels last in memory; PyTorch's second axis is the channels."""
    name = "float32" if dtype == "high" else dtype
    t = torch.from_numpy(host).to(where, getattr(torch, name))
    return pa.astype(pa.asarray(host), getattr(pa, name)), t.movedim(-1, 1) if host.ndim == 4 else t


def rows_of(layer: Layer, dtype: str, batch: int, where: str) -> Iterator[Row]:
    generator, out = np.random.default_rng(0), -(-layer.length // layer.stride)
    shapes = (
        (batch, layer.length, layer.length, layer.channels),
        (layer.outputs, layer.kernel, layer.kernel, layer.channels // layer.groups),
        (batch, out, out, layer.outputs),
    )
    (x, t), (w, v), (g, h) = (pair(generator.standard_normal(s, np.float32), dtype, where) for s in shapes)
    given, shape = {**layer.where, "precision": "high" if dtype == "high" else None}, (layer.kernel,) * 2

    def backward(*mask: bool) -> torch.Tensor:
        steps, pads = [layer.stride] * 2, [layer.kernel // 2] * 2
        told = (None, steps, pads, [1, 1], False, [0, 0], layer.groups, [*mask, False])
        return torch.ops.aten.convolution_backward(h, t, v, *told)[mask.index(True)]

    flops = 2 * g.size * w.size / layer.outputs
    yield Row("forward", lambda: ops.conv(x, w, **given), lambda: F.conv2d(t, v, **layer.where), flops)
    if layer.channels > 3:  # the gradient of an image is not needed
        yield Row("input", lambda: ops.conv_input_gradient(g, w, shape=x.shape[1:-1], **given),
                  lambda: backward(True, False), flops)  # fmt: skip
    yield Row("weight", lambda: ops.conv_weight_gradient(g, x, shape=shape, **given),
              lambda: backward(False, True), flops)  # fmt: skip


def agree(row: Row, dtype: str) -> None:
    mine, theirs = row.polyarr(), row.torch().movedim(1, -1).float().cpu().numpy()
    worst = np.abs(pa.astype(mine, pa.float32).numpy() - theirs).max() / np.abs(theirs).max()
    assert worst <= CLOSE[dtype], f"{worst:.1e} off, at most {CLOSE[dtype]:.1e} would do"


# ---- the table -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", help="of float32, high, bfloat16, separated by commas")
    parser.add_argument("--batch", type=int, help="images (64; on a processor 16)")
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--turns", type=int, default=9, help="how often each is timed")
    parser.add_argument("--threads", type=int, help="for PyTorch, on a processor")
    options = report.parsed(parser)
    name, peer, where, wait = sides(options.threads)
    batch, found = options.batch or (64 if where == "cuda" else 16), []
    print(f"PyTorch's time / polyarr's, milliseconds of both, TFLOP/s of polyarr; {batch} images")
    for dtype in options.dtype.split(","):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = dtype == "high"
        layers = [layer for layer in LAYERS if options.only in layer.name]
        if where == "cpu":  # as in a ResNet for small images
            layers = [layer._replace(length=max(4, layer.length // 4)) for layer in layers]
        for layer in layers:
            for row in rows_of(layer, dtype, batch, where):
                agree(row, dtype)
                found.append(shown(f"{layer.name} {row.name}", dtype, row, measure(row, wait, options.turns)))
    picture = {f"{row['name']} ({row['dtype']})": row["seconds"] for row in found}
    report.write(options, {"device": name, "peer": peer, "rows": found}, f"Layers on {name}", "seconds", picture)


def shown(name: str, dtype: str, row: Row, seconds: dict[str, float]) -> dict[str, Any]:
    mine, theirs = seconds["polyarr"], seconds["PyTorch"]
    rate = f"{row.nbytes / mine / 1e12:7.2f}" if row.nbytes else ""
    print(f"{name:34} {dtype:9} {theirs / mine:5.2f} {mine * 1e3:9.3f} {theirs * 1e3:9.3f} {rate}", flush=True)
    return {"name": name, "dtype": dtype, "seconds": seconds}


if __name__ == "__main__":
    main()
