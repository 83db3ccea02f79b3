"""A polyarr backend on PyTorch's CPU tensors. PyTorch is imported when the backend starts."""

import importlib.util

from polyarr.core.backend import Backend, DLPack
from polyarr.plugins import hookimpl

HINT = "pip install torch"


def start():
    from polyarr_torch import kernels

    return Backend(
        "torch",
        kernels.KERNELS,
        kernels.upload,
        kernels.download,
        hardware=f"the host's CPU, {kernels.describe()}",
        dlpack=DLPack(lambda buf: buf, kernels.adopt),
    )


@hookimpl
def polyarr_backends(register):
    register("torch", start, summary="PyTorch's CPU tensors", install_hint=HINT, api=2)


@hookimpl
def polyarr_diagnose():
    if importlib.util.find_spec("torch") is None:
        return [("warning", f"polyarr-torch: PyTorch is not installed; to have it: {HINT}")]
    from polyarr_torch import kernels

    return [("ok", f"polyarr-torch: {kernels.describe()}")]
