"""A polyarr backend on tinygrad's tensors. tinygrad is imported when the backend starts."""

from polyarr.core.backend import Backend
from polyarr.plugins import hookimpl


@hookimpl
def polyarr_backends(register):
    register("tinygrad", start, summary="tinygrad's tensors, op by op", install_hint="pip install tinygrad", api=2)


def start():
    from polyarr_tinygrad import kernels

    return Backend("tinygrad", kernels.KERNELS, kernels.upload, kernels.download, hardware=kernels.describe())
