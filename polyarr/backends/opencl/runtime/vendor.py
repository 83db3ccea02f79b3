"""What the devices of one vendor offer beyond OpenCL; see docs/decisions/0049.

Nothing outside the vendor's folder imports it: a device asks its `vendor`. Without that folder, all devices have the
defaults below, and the portable kernels compute everything.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

FOLDER = "polyarr.backends.opencl.nvidia"


class Vendor:
    """Kernels and memory for some devices only; this one has none.

    Attributes:
        gemv, quantized, gated, gemm, attention, few_queries, convolution: Variants of these families, which are asked
            before the portable ones.
    """

    gemv: tuple[Any, ...] = ()
    quantized: tuple[Any, ...] = ()
    gated: tuple[Any, ...] = ()
    gemm: tuple[Any, ...] = ()
    attention: tuple[Any, ...] = ()
    few_queries: tuple[Any, ...] = ()
    convolution: tuple[Any, ...] = ()

    def driver(self, context: Any, device: Any) -> Any:
        """Return another driver than OpenCL's for a device; None if there is none."""
        return None

    def macros(self, features: Any) -> dict[str, str]:
        """Return macros for all programs of a device, by which kernels reach instructions that OpenCL C lacks."""
        return {}

    def diagnose(self, device: Any) -> list[tuple[str, str]]:
        """Return lines of `polyarr doctor` on a device's driver."""
        return []

    def graphs(self, device: Any) -> Any:
        """Return how to launch many kernels at once; None if the device cannot."""
        return None

    def dlpack(self, device: Any) -> Any:
        """Return the DLPack functions of a device; None if its memory cannot be shared."""
        return None

    def communicator(self, device: Any) -> Any:
        """Return how processes meet to reduce on their devices; None if only the host's memory connects them."""
        return None

    def rows_at_once(self, features: Any) -> int:
        """Return the number of rows that a linear layer computes in about the time of one."""
        return 1

    def saved_operands(self, device: Any, known: dict[str, Any], terms: int) -> dict[str, Any] | tuple[()]:
        """Return what a convolution saves of its operands for backward; no tuple if there may be any."""
        return ()


@cache
def vendor() -> Vendor:
    """Return the vendor whose folder is in this package, or else one that offers nothing."""
    return import_module(FOLDER).VENDOR if find_spec(FOLDER) else Vendor()
