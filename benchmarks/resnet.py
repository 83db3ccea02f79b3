"""Training steps of ResNets and LeNet, compared with PyTorch's eager step of the same model.

    python benchmarks/resnet.py [--model resnet-18] [--batch-size 16] [--size 64] [--backend opencl] [--steps 20]
    python benchmarks/resnet.py --model lenet --batch-size 64 --size 8
    python benchmarks/resnet.py --model resnet-50 --batch-size 64 --size 224 --torch-device cuda [--precision high]
    any with                    [--dtype bfloat16] [--threads 2] [--json FILE] [--png FILE]

polyarr's step is captured by polyarr.compile and donates nothing. PyTorch uses channels-last memory, as polyarr does;
other dtypes run under autocast, precision "high" in tf32. Both run forward, backward, running statistics and SGD with
momentum from the same weights on the same images, alternating in one process. On a CPU the first steps of a turn are
not timed: the other library's threads still spin on the same cores. The first losses must agree, or nothing is timed.
PyTorch is optional: pip install torch
"""

import argparse
import statistics
import time

import numpy as np
import report

import polyarr as pa
from polyarr import nn, optim
from polyarr.models import LeNet, ResNetModel
from polyarr.models.resnet import PRESETS, ResNetConfig

WARM_UP, TURNS = 3, 10
UNTIMED = {"cpu": 2, "cuda": 0}  # untimed steps at the start of a turn
LR, MOMENTUM = 0.01, 0.9

try:
    import torch
    import torch.nn.functional as F  # noqa: N812  the customary name
except ImportError:
    torch = None


class PolyarrStep:
    """A training step in polyarr; a call returns the loss without waiting."""

    def __init__(self, model, dtype, batches):
        self.model, self.optimizer = model, optim.SGD(LR, momentum=MOMENTUM)
        self.state = self.optimizer.init(model)
        self.batches = [(pa.asarray(images), pa.asarray(classes)) for images, classes in batches]

        def loss_of(model, images, classes):
            with nn.observing(model.astype(dtype)) as (model, seen):
                return pa.cross_entropy(model(images.astype(dtype)), classes), seen

        def step(model, state, images, classes):
            (loss, seen), grads = pa.value_and_grad(loss_of, has_aux=True)(model, images, classes)
            model, state = self.optimizer.update(grads, state, model)
            return loss, model.with_arrays(seen), state

        self.step = pa.compile(step)

    def __call__(self, i):
        loss, self.model, self.state = self.step(self.model, self.state, *self.batches[i])
        return loss


# ---- PyTorch's ---------------------------------------------------------------------------------------------------


def torch_resnet(config: ResNetConfig):
    """Return the same network in PyTorch, with torchvision's names."""
    conv, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d

    class Block(torch.nn.Module):
        def __init__(self, channels, width, out, stride):
            super().__init__()
            if config.bottleneck:
                shapes = [(channels, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
            else:
                shapes = [(channels, width, 3, stride), (width, out, 3, 1)]
            self.count = len(shapes)
            for i, (first, last, kernel, step) in enumerate(shapes, 1):
                setattr(self, f"conv{i}", conv(first, last, kernel, step, kernel // 2, bias=False))
                setattr(self, f"bn{i}", norm(last))
            if stride != 1 or channels != out:
                self.downsample = torch.nn.Sequential(conv(channels, out, 1, stride, bias=False), norm(out))

        def forward(self, x):
            y = x
            for i in range(1, self.count + 1):
                y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
                y = F.relu(y) if i < self.count else y
            return F.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))

    class ResNet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            channels = config.width
            self.conv1, self.bn1 = conv(config.channels, channels, 7, 2, 3, bias=False), norm(channels)
            for stage, count in enumerate(config.blocks):
                width = config.width * 2**stage
                out, blocks = width * (4 if config.bottleneck else 1), []
                for i in range(count):
                    blocks.append(Block(channels, width, out, 2 if stage and not i else 1))
                    channels = out
                setattr(self, f"layer{stage + 1}", torch.nn.Sequential(*blocks))
            self.fc = torch.nn.Linear(channels, config.num_classes)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
            for stage in range(len(config.blocks)):
                x = getattr(self, f"layer{stage + 1}")(x)
            return self.fc(x.mean((2, 3)))

    return ResNet()


def torch_lenet(model):
    """Return the same network in PyTorch."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("conv1", "conv2"):
                out, k, _, channels = getattr(model, name).weight.shape
                padding = getattr(model, name).padding
                setattr(self, name, torch.nn.Conv2d(channels, out, k, padding=padding))
            for name in ("linear1", "linear2", "head"):
                out, n = getattr(model, name).weight.shape
                setattr(self, name, torch.nn.Linear(n, out))

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2).permute(0, 2, 3, 1).flatten(1)
            return self.head(F.relu(self.linear2(F.relu(self.linear1(x)))))

    return Net()


class TorchStep:
    """The same training step in PyTorch, from the same weights."""

    def __init__(self, model, dtype, batches, device):
        net = torch_lenet(model) if isinstance(model, LeNet) else torch_resnet(model.config)
        with torch.no_grad():  # both have the same order of parameters, except for shortcuts and heads
            for theirs, ours in paired(net, model):
                host = np.array(ours.numpy())
                theirs.copy_(torch.from_numpy(np.moveaxis(host, -1, 1) if host.ndim == 4 else host))
        self.device, self.dtype = device, dtype
        self.net = net.to(device, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(self.net.parameters(), LR, MOMENTUM)
        self.batches = [
            (
                torch.from_numpy(images.transpose(0, 3, 1, 2)).to(device, memory_format=torch.channels_last),
                torch.from_numpy(classes).long().to(device),
            )
            for images, classes in batches
        ]

    def __call__(self, i):
        images, classes = self.batches[i]
        narrow = self.dtype != "float32"
        with torch.autocast(self.device, getattr(torch, self.dtype) if narrow else None, enabled=narrow):
            loss = F.cross_entropy(self.net(images), classes)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def paired(net, model):
    """Return PyTorch's parameters with polyarr's."""
    if isinstance(model, LeNet):
        ours = model.named_parameters()
    else:
        from polyarr.models.torchvision import names_of

        names = names_of(model.config)
        ours = {names[own]: a for own, a in model.named_parameters().items()}
    return [(theirs, ours[name]) for name, theirs in net.named_parameters()]


# ---- beside each other -------------------------------------------------------------------------------------------


def measure(steps, count, dtype, untimed):
    """Return the times of each step function, by name; they alternate."""
    losses = {}
    for name, step in steps.items():
        started = time.perf_counter()
        losses[name] = [float(step(i)) for i in range(WARM_UP)]
        print(f"{name}: {time.perf_counter() - started:.1f} s for what is built or searched at first", flush=True)
    for found in losses.values():
        tolerance = 1e-4 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(found[0], losses["polyarr"][0], rtol=tolerance, err_msg="the two models differ")
        # A deep network's first steps amplify rounding errors: see docs/images.md.
        np.testing.assert_allclose(found, losses["polyarr"], rtol=5e-2, err_msg="the two steps differ")
    times = {name: [] for name in steps}
    turn = -(-count // TURNS)
    for _ in range(-(-count // turn)):
        for name, step in steps.items():
            for i in range(untimed + turn):
                started = time.perf_counter()
                float(step(i % WARM_UP))  # waits for all earlier work in the queue
                times[name].append(time.perf_counter() - started)
            del times[name][-untimed - turn : -turn]
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--model", default="resnet-18", choices=["lenet", *PRESETS])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=64, help="of the square images")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2, help="for PyTorch")
    parser.add_argument("--torch-device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--precision", default="highest", choices=["highest", "high"])
    options = report.parsed(parser)
    backend = pa.set_backend(options.backend)
    pa.set_matmul_precision(options.precision)
    pa.random.seed(0)
    is_lenet = options.model == "lenet"
    model = LeNet(options.size, padding="same") if is_lenet else ResNetModel(PRESETS[options.model])
    rng, shape = np.random.default_rng(0), (options.batch_size, options.size, options.size, 1 if is_lenet else 3)
    classes = 10 if is_lenet else model.config.num_classes
    batches = [
        (rng.standard_normal(shape, dtype=np.float32), rng.integers(0, classes, shape[0], dtype=np.int32))
        for _ in range(WARM_UP)
    ]
    steps = {"polyarr": PolyarrStep(model, options.dtype, batches)}
    if torch is None:
        print("PyTorch is not installed, so there is nothing to compare with: pip install torch")
    else:
        torch.set_num_threads(options.threads)
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.precision != "highest"
        torch.backends.cudnn.benchmark = True
        steps["PyTorch"] = TorchStep(model, options.dtype, batches, options.torch_device)
    times = measure(steps, options.steps, options.dtype, UNTIMED[options.torch_device])
    what = f"{options.model}, batch {options.batch_size}, {options.size} x {options.size}"
    print(f"{what}, {options.dtype}, {options.precision}; polyarr on {backend.hardware}")
    print(f"{'':8}  {'median ms':>9}  {'best ms':>9}  {'images/s':>9}  {'polyarr takes':>15}")
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        ratio = f"{medians['polyarr'] / medians[name]:.2f}, best {min(times['polyarr']) / min(found):.2f}"
        speed = f"{options.batch_size / medians[name]:9,.0f}"
        print(f"{name:8}  {1e3 * medians[name]:9.2f}  {1e3 * min(found):9.2f}  {speed}  {ratio:>15}")
    facts = {"model": options.model, "dtype": options.dtype, "precision": options.precision, "all": times}
    report.write(options, {**facts, "seconds": medians}, f"A step of {what}", "seconds", {"step": medians})


if __name__ == "__main__":
    main()
