"""PyTorch on one of its devices: polyarr's ops as functions of PyTorch, gradients by its autograd.

pytorch_arrays.py and pytorch_networks.py have the functions. A PrivateUse1 device is named as PyTorch names it: an
extension that declares the entry point `torch.backends` is loaded with PyTorch.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from polyarr.core.errors import BackendError
from polyarr.core.spec import bfloat16
from polyarr.testing.adapters import Framework, pytorch_arrays, pytorch_networks
from polyarr.testing.adapters.pytorch_arrays import fill, iota


def framework(device: str) -> Framework:
    """Return PyTorch on a device such as "cpu", "cuda:1" or a renamed PrivateUse1 device.

    Raises:
        BackendError: PyTorch has no such device.
    """
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BackendError(f"PyTorch has no device {device!r}: {reason}") from error
    functions = pytorch_arrays.FUNCTIONS | pytorch_networks.FUNCTIONS
    functions |= {"fill": partial(fill, place), "iota": partial(iota, place)}
    hardware = f"{place}, PyTorch {torch.__version__}"
    return Framework(functions, vjp, partial(upload, place), download, hardware)


def upload(device: torch.device, host: np.ndarray) -> Tensor:
    """Return a tensor on a device with a copy of a host array."""
    host = np.array(host, order="C")
    if host.dtype == bfloat16:
        return torch.from_numpy(host.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(host).to(device)


def download(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a host array of its dtype."""
    found = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    host = found.view(torch.int16).numpy().view(bfloat16) if found.dtype == torch.bfloat16 else found.numpy()
    return np.array(host, order="C")


def vjp(function: Callable[..., list], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients by PyTorch's autograd. Gradients of complex numbers are the conjugates of polyarr's."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        results = function(*leaves)
    pairs = [(y, g.conj()) for y, g in zip(results, cotangents, strict=True) if y.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]
    outputs, directions = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, leaves, directions, allow_unused=True)
    return [torch.zeros_like(x) if d is None else d.conj() for x, d in zip(inputs, found, strict=True)]
