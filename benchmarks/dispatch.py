"""Host time per op on 16 elements, compared with NumPy and PyTorch.

    python benchmarks/dispatch.py [--turns 15] [--only slice] [--json FILE] [--png FILE]

Only the host's calls are timed, neither the device's work afterwards nor waiting for it. Rows: ops that are not
recorded, ops recorded for a gradient, views and slices, gradients, and a whole small training step. polyarr runs on
NumPy and on the OpenCL device that POLYARR_DEVICE names; PyTorch (optional) on CUDA if available. All alternate in one
process, after their results were compared.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import report

import polyarr as pa

try:
    import torch
except ImportError:
    torch = None

CALLS, STEPS = 200, 10  # calls per turn, of an op and of a step
TENSORS = 150  # tensors that AdamW updates: as many as GPT-2 has
SHAPE = (4, 4)
LAYERS = ((32, 16), (32,), (1, 32), (1,))  # parameters of the trained model: two layers


class Side(NamedTuple):
    """A library: arrays of 16 elements, and functions to wait, to record ops, and to train.

    Attributes:
        recorded: (run) -> run(x) while ops on x are recorded; None if nothing is recorded.
        gradient: (x, y) -> the gradient of sum(x * y) with respect to x.
        step: Runs a training step of a small model.
        update: Runs AdamW alone, for many tensors.
    """

    name: str
    x: Any
    y: Any
    wait: Callable[[], Any]
    exp: Callable[[Any], Any]
    recorded: Callable[[Callable[[Any], float]], float] | None = None
    gradient: Callable[[Any, Any], Any] | None = None
    step: Callable[[], Any] | None = None
    update: Callable[[], Any] | None = None


OPS = {
    "x + y": lambda s, x: x + s.y,
    "x * 2": lambda s, x: x * 2,
    "exp(x)": lambda s, x: s.exp(x),
    "x.sum()": lambda s, x: x.sum(),
    "x @ y": lambda s, x: x @ s.y,
    "x.T": lambda s, x: x.T,
    "x.reshape(2, 8)": lambda s, x: x.reshape(2, 8),
    "slice x[1:3]": lambda s, x: x[1:3],
    "slice x[1, 1:3]": lambda s, x: x[1, 1:3],
}
RECORDED = ("x + y", "exp(x)", "x @ y", "slice x[1:3]")


# ---- the sides -----------------------------------------------------------------------------------------------------


def arrays() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return tuple(generator.standard_normal((2, *SHAPE), np.float32))


def on_numpy() -> Side:
    x, y = arrays()
    return Side("NumPy", x, y, lambda: None, np.exp)


def on_polyarr(name: str) -> Side:
    backend = pa.set_backend(name)
    x, y = map(pa.asarray, arrays())
    gradient = pa.grad(lambda x, y: pa.sum(x * y))

    def recorded(run: Callable[[Any], float]) -> float:
        seconds = []

        def inside(x: Any) -> Any:
            seconds.append(run(x))
            return pa.sum(x)

        pa.vjp(inside, x)
        return seconds[0]

    optimizer = pa.optim.AdamW(1e-3)
    step, update = _polyarr_step(optimizer), _polyarr_update(optimizer)
    return Side(f"polyarr {backend.family}", x, y, backend.synchronize, pa.exp, recorded, gradient, step, update)


def _polyarr_step(optimizer: Any) -> Callable[[], Any]:
    parameters = [pa.asarray(p) for p in _parameters()]
    inputs, targets = (pa.asarray(a) for a in _examples())

    def loss(p: list, x: Any, y: Any) -> Any:
        return pa.ops.mse(pa.ops.linear(pa.ops.linear(x, p[0], p[1], activation="relu"), p[2], p[3]), y)

    pull, kept = pa.value_and_grad(loss), [parameters, optimizer.init(parameters)]

    def step() -> Any:
        value, grads = pull(kept[0], inputs, targets)
        kept[:] = optimizer.update(grads, kept[1], kept[0])
        return value

    return step


def _polyarr_update(optimizer: Any) -> Callable[[], Any]:
    many = [pa.ones((16,)) for _ in range(TENSORS)]
    kept = [many, optimizer.init(many)]

    def update() -> None:
        kept[:] = optimizer.update(many, kept[1], kept[0])

    return update


def on_torch() -> Side:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    x, y = (torch.from_numpy(a).to(device) for a in arrays())
    tracked = x.clone().requires_grad_()

    def gradient(x: Any, y: Any) -> Any:
        return torch.autograd.grad((tracked * y).sum(), tracked)[0]

    many = [torch.nn.Parameter(torch.ones(16, device=device)) for _ in range(TENSORS)]
    for p in many:
        p.grad = torch.ones_like(p)
    update = torch.optim.AdamW(many, 1e-3, fused=True).step
    name = f"PyTorch {device}"
    return Side(name, x, y, wait, torch.exp, lambda run: run(tracked), gradient, _torch_step(device), update)


def _torch_step(device: str) -> Callable[[], Any]:
    parameters = [torch.nn.Parameter(torch.from_numpy(p).to(device)) for p in _parameters()]
    inputs, targets = (torch.from_numpy(a).to(device) for a in _examples())
    optimizer = torch.optim.AdamW(parameters, 1e-3, weight_decay=0.01, fused=True)
    linear, mse = torch.nn.functional.linear, torch.nn.functional.mse_loss

    def step() -> Any:
        first, first_bias, second, second_bias = parameters
        loss = mse(linear(torch.relu(linear(inputs, first, first_bias)), second, second_bias), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _parameters() -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.standard_normal(shape, np.float32) for shape in LAYERS]


def _examples() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(2)
    return generator.standard_normal((16, 16), np.float32), generator.standard_normal((16, 1), np.float32)


# ---- measuring -----------------------------------------------------------------------------------------------------


def rows(sides: list[Side]) -> Iterator[tuple[str, dict[str, Callable[[], float]]]]:
    """Yield a row's name, and by side a function that returns the host's seconds per call."""
    for name, op in OPS.items():
        yield name, {s.name: lambda s=s, op=op: _loop(s, lambda x: op(s, x), s.x, CALLS) for s in sides}
    for name in RECORDED:
        op, able = OPS[name], [s for s in sides if s.recorded]
        yield f"{name}, recorded", {
            s.name: lambda s=s, op=op: s.recorded(lambda x: _loop(s, lambda x: op(s, x), x, CALLS)) for s in able
        }
    able = [s for s in sides if s.gradient]
    yield "gradient of (x * y).sum()", {
        s.name: lambda s=s: _loop(s, lambda x: s.gradient(x, s.y), s.x, STEPS) for s in able
    }
    yield "step of a model of two layers", {s.name: lambda s=s: _loop(s, lambda _: s.step(), None, STEPS) for s in able}
    yield f"AdamW of {TENSORS} tensors", {s.name: lambda s=s: _loop(s, lambda _: s.update(), None, STEPS) for s in able}


def _loop(side: Side, run: Callable[[Any], Any], x: Any, calls: int) -> float:
    """Return the seconds per call, without the device's work after the last one."""
    run(x)
    side.wait()
    began = time.perf_counter()
    for _ in range(calls):
        run(x)
    seconds = (time.perf_counter() - began) / calls
    side.wait()
    return seconds


def agree(sides: list[Side]) -> None:
    """Compare all results with those of the first side."""
    for name, op in OPS.items():
        expected = op(sides[0], sides[0].x)
        for side in sides[1:]:
            np.testing.assert_allclose(_host(op(side, side.x)), expected, rtol=1e-5, err_msg=f"{side.name}: {name}")
    for side in sides[1:]:
        np.testing.assert_allclose(_host(side.gradient(side.x, side.y)), sides[0].y, rtol=1e-6)
    losses = [[float(side.step()) for _ in range(3)] for side in sides[1:]]
    np.testing.assert_allclose(losses, [losses[0]] * len(losses), rtol=1e-4)


def _host(x: Any) -> np.ndarray:
    return x.cpu().numpy() if torch is not None and isinstance(x, torch.Tensor) else np.asarray(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=15, help="how often each is timed")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = report.parsed(parser)
    sides = [on_numpy(), on_polyarr("numpy"), on_polyarr("opencl")] + ([on_torch()] if torch else [])
    agree(sides)
    hardware = pa.get_backend("opencl").hardware
    print(f"polyarr {pa.__version__} on {hardware}, NumPy {np.__version__}", end="")
    print(f", PyTorch {torch.__version__}" if torch else ", no PyTorch")
    print(f"{'microseconds by medians':32}" + "".join(f"{side.name:>16}" for side in sides))
    found: dict[str, dict[str, float]] = {}
    for name, runs in rows(sides):
        if options.only not in name:
            continue
        times: dict[str, list[float]] = {who: [] for who in runs}
        for _ in range(options.turns):
            for who, run in runs.items():
                times[who].append(1e6 * run())
        found[name] = {who: statistics.median(took) for who, took in times.items()}
        cells = (f"{found[name][side.name]:16.2f}" if side.name in found[name] else f"{'-':>16}" for side in sides)
        print(f"{name:32}" + "".join(cells), flush=True)
    report.write(options, {"hardware": hardware, "us": found}, "Host time of a call", "microseconds", found)


if __name__ == "__main__":
    main()
