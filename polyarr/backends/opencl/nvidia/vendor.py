"""NVIDIA's answers to what a device asks its vendor; on other devices they are those of the base class."""

from typing import Any

from polyarr.backends.opencl.nvidia import (
    attention_wgmma,
    conv_tma,
    cuda,
    deferred_reduce,
    graphs,
    mma,
    sharing,
    split,
    wgmma,
)
from polyarr.backends.opencl.runtime.vendor import Vendor


class Nvidia(Vendor):
    """Kernels for tensor cores, and memory that CUDA knows, too."""

    gemm = wgmma.VARIANT, mma.VARIANT
    attention = (attention_wgmma.VARIANT,)
    convolution = conv_tma.VARIANTS

    def pool(self, context: Any, plain: Any) -> Any:
        return cuda.pool_of(context, plain)

    def is_lent(self, memory: Any) -> bool:
        return cuda.is_lent(memory)

    def graphs(self, device: Any) -> Any:
        return graphs.graphs_of(device)

    def dlpack(self, device: Any) -> Any:
        return sharing.dlpack_of(device)

    def communicator(self, device: Any) -> Any:
        return deferred_reduce.communicator_of(device)

    def saved_operands(self, device: Any, known: dict[str, Any], terms: int) -> tuple[Any, ...]:
        return split.saved_operands(device, known, terms)

    def restored_operands(self, saved: tuple[Any, ...]) -> dict[str, Any]:
        return split.restored_operands(saved)


VENDOR = Nvidia()
