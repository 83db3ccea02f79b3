"""How fast are convolutions, and steps of ResNets, beside PyTorch's on the same device?

    python benchmarks/conv.py [--dtype float32,high,bfloat16] [--batch N] [--only 3x3] [--turns 9] [--no-step]
                              [--json FILE] [--png FILE]

A layer's forward pass, the gradient of its input and that of its weight; then a whole step of a ResNet: 50 layers and
images of 224 x 224 on a GPU, 18 layers and 64 x 64 on a processor. "high" is float32 with that precision, for which
PyTorch may use tf32. PyTorch runs eagerly, with channels last and, for bfloat16, under autocast; polyarr's step is
compiled. polyarr runs on the OpenCL device that POLYARR_DEVICE names, PyTorch on CUDA, or on the processor if that is
one. Both take turns in one process. Needs PyTorch: pip install torch
"""

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import report
import torch
import torch.nn.functional as F  # noqa: N812  the name it has everywhere
from rows import Row, measure, sides

import polyarr as pa
from polyarr import nn, ops
from polyarr.models.resnet import RESNET_18, RESNET_50, ResNetModel

CLOSE = {"float32": 2e-4, "high": 4e-3, "bfloat16": 2e-2}  # of the largest result; cuDNN's own sums are rough


class Layer(NamedTuple):
    """x is (batch, length, length, channels)."""

    name: str
    channels: int
    outputs: int
    length: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1

    @property
    def where(self) -> dict[str, int]:
        """As both libraries take it."""
        return {"stride": self.stride, "padding": self.kernel // 2, "groups": self.groups}


LAYERS = (
    Layer("7x7 / 2, 3 to 64", 3, 64, 224, 7, 2), Layer("3x3, 64", 64, 64, 56),
    Layer("3x3 / 2, 128", 128, 128, 56, 3, 2), Layer("3x3, 128", 128, 128, 28),
    Layer("3x3, 256", 256, 256, 14), Layer("3x3, 512", 512, 512, 7),
    Layer("1x1, 256 to 64", 256, 64, 56, 1), Layer("1x1 / 2, 256 to 512", 256, 512, 56, 1, 2),
    Layer("3x3, 128 in 32 groups", 128, 128, 56, groups=32), Layer("3x3 depthwise, 256", 256, 256, 28, groups=256),
)  # fmt: skip


def pair(host: np.ndarray, dtype: str, where: str) -> tuple[pa.Array, torch.Tensor]:
    """The same numbers for both, channels last in memory; PyTorch's with its channels as the second axis."""
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
    if layer.channels > 3:  # nobody wants that of an image
        yield Row("input", lambda: ops.conv_input_gradient(g, w, shape=x.shape[1:-1], **given),
                  lambda: backward(True, False), flops)  # fmt: skip
    yield Row("weight", lambda: ops.conv_weight_gradient(g, x, shape=shape, **given),
              lambda: backward(False, True), flops)  # fmt: skip


def agree(row: Row, dtype: str) -> None:
    mine, theirs = row.polyarr(), row.torch().movedim(1, -1).float().cpu().numpy()
    worst = np.abs(pa.astype(mine, pa.float32).numpy() - theirs).max() / np.abs(theirs).max()
    assert worst <= CLOSE[dtype], f"{worst:.1e} off, at most {CLOSE[dtype]:.1e} would do"


# ---- a step --------------------------------------------------------------------------------------------------------


class TorchBlock(torch.nn.Module):
    """A residual block, as polyarr.models.resnet has it."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.convs, self.norms = torch.nn.ModuleList(map(torch_conv, block.convs)), torch.nn.ModuleList()
        for conv in self.convs:
            self.norms.append(torch.nn.BatchNorm2d(conv.out_channels))
        self.shortcut = torch.nn.Identity()
        if block.shortcut:
            conv = torch_conv(block.shortcut[0])
            self.shortcut = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(conv.out_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(F.relu(y, inplace=True) if i else y))
        return F.relu(y + self.shortcut(x), inplace=True)


def torch_conv(conv: Any) -> torch.nn.Conv2d:
    n, k, _, c = conv.weight.shape
    return torch.nn.Conv2d(c, n, k, conv.stride, k // 2, bias=False)


def torch_resnet(model: ResNetModel, where: str) -> torch.nn.Module:
    blocks = [TorchBlock(block) for stage in model.stages for block in stage]
    stem = [torch_conv(model.conv), torch.nn.BatchNorm2d(64), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(3, 2, 1)]
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(model.head.weight.shape[1], 1000)]
    return torch.nn.Sequential(*stem, *blocks, *head).to(where, memory_format=torch.channels_last)


def step_of(dtype: str, batch: int, where: str) -> Row:
    """Forward, backward and SGD with momentum."""
    config, length = (RESNET_50, 224) if where == "cuda" else (RESNET_18, 64)
    pa.random.seed(0)
    model, optimizer = ResNetModel(config), pa.optim.SGD(0.01, momentum=0.9)
    other = torch_resnet(model, where)
    peer = torch.optim.SGD(other.parameters(), 0.01, momentum=0.9)
    generator = np.random.default_rng(0)
    images, theirs = pair(generator.standard_normal((batch, length, length, 3), np.float32), "float32", where)
    host = np.arange(batch) % 1000
    labels, targets = pa.asarray(host), torch.from_numpy(host).to(where)

    @pa.compile
    def step(model: Any, state: Any, images: pa.Array, labels: pa.Array) -> Any:
        def loss_of(model: Any) -> Any:
            used = model.astype(pa.bfloat16) if dtype == "bfloat16" else model
            with nn.observing(used) as (used, seen):
                logits = used(images.astype(pa.bfloat16) if dtype == "bfloat16" else images)
                loss = pa.cross_entropy(logits, labels)
            return loss, seen

        (loss, seen), grads = pa.value_and_grad(loss_of, has_aux=True)(model)
        model, state = optimizer.update(grads, state, model)
        return model.with_arrays(seen), state, loss

    kept = [model, optimizer.init(model)]

    def mine() -> Any:
        with pa.use_matmul_precision("high" if dtype == "high" else "highest"):
            kept[0], kept[1], loss = step(*kept, images, labels)
        return loss

    def peers() -> torch.Tensor:
        with torch.autocast(where, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = F.cross_entropy(other(theirs), targets)
        peer.zero_grad()
        loss.backward()
        peer.step()
        return loss

    return Row(f"ResNet-{18 if where == 'cpu' else 50} step", mine, peers, 0)


# ---- the table -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", help="of float32, high, bfloat16, separated by commas")
    parser.add_argument("--batch", type=int, help="images (64; on a processor 16)")
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--turns", type=int, default=9, help="how often each is timed")
    parser.add_argument("--no-step", dest="step", action="store_false")
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
        if options.step:
            row = step_of(dtype, batch, where)
            found.append(shown(row.name, dtype, row, measure(row, wait, options.turns)))
    picture = {f"{row['name']} ({row['dtype']})": row["seconds"] for row in found}
    report.write(options, {"device": name, "peer": peer, "rows": found}, f"Layers on {name}", "seconds", picture)


def shown(name: str, dtype: str, row: Row, seconds: dict[str, float]) -> dict[str, Any]:
    mine, theirs = seconds["polyarr"], seconds["PyTorch"]
    rate = f"{row.nbytes / mine / 1e12:7.2f}" if row.nbytes else ""
    print(f"{name:34} {dtype:9} {theirs / mine:5.2f} {mine * 1e3:9.3f} {theirs * 1e3:9.3f} {rate}", flush=True)
    return {"name": name, "dtype": dtype, "seconds": seconds}


if __name__ == "__main__":
    main()
