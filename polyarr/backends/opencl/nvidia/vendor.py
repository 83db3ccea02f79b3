"""NVIDIA's answers to what a device asks its vendor; on other devices they are those of the base class."""

from typing import Any

from polyarr.backends.opencl.nvidia import (
    attention_few,
    attention_wgmma,
    conv_tma,
    deferred_reduce,
    driver,
    graphs,
    mma,
    sharing,
    skinny,
    skinny_gated,
    skinny_quantized,
    split,
    wgmma,
)
from polyarr.backends.opencl.runtime.vendor import Vendor

# Instructions by the names under which prelude.cl and shares.cl ask for them: results first.
ROUND_TO_BFLOAT16 = 'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v))'
SHUFFLE = 'asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, -1;" : "=f"(found) : "f"(v), "r"(distance))'
INSTRUCTIONS = {
    "SHUFFLE_XOR(found, v, distance)": SHUFFLE,  # the number of the work-item of a warp at this distance
    "APPROXIMATE_EXP2(v, x)": 'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x))',
    "APPROXIMATE_RECIPROCAL(v, x)": 'asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x))',
}
ROWS_AT_ONCE = 256  # on Hopper, by benchmarks/many_clients.py
# For kernels that begin while the one before them ends: see driver.py.
DEPENDENT_LAUNCH = {
    "AWAIT_BEFORE()": f'asm volatile("{driver.AWAIT_BEFORE}" ::: "memory")',
    "ALLOW_NEXT()": f'asm volatile("{driver.ALLOW_NEXT}" ::: "memory")',
}


class Nvidia(Vendor):
    """Kernels for tensor cores, and memory that CUDA knows, too."""

    gemv = (skinny.VARIANT,)
    quantized = (skinny_quantized.VARIANT,)
    gated = (skinny_gated.VARIANT,)
    gemm = wgmma.VARIANT, mma.VARIANT
    attention = (attention_wgmma.VARIANT,)
    few_queries = (attention_few.VARIANT,)
    convolution = conv_tma.VARIANTS

    def driver(self, context: Any, device: Any) -> Any:
        return driver.driver_of(context, device)

    def macros(self, features: Any) -> dict[str, str]:
        if not features.architecture:
            return {}
        has_bfloat16 = features.architecture >= 80  # Ampere
        found = INSTRUCTIONS | ({"ROUND_TO_BFLOAT16(bits, v)": ROUND_TO_BFLOAT16} if has_bfloat16 else {})
        return found | (DEPENDENT_LAUNCH if features.architecture >= driver.HOPPER else {})

    def diagnose(self, device: Any) -> list[tuple[str, str]]:
        return driver.diagnose(device)

    def graphs(self, device: Any) -> Any:
        return graphs.graphs_of(device)

    def dlpack(self, device: Any) -> Any:
        return sharing.dlpack_of(device)

    def communicator(self, device: Any) -> Any:
        return deferred_reduce.communicator_of(device)

    def rows_at_once(self, features: Any) -> int:
        return ROWS_AT_ONCE if features.architecture >= driver.HOPPER else 1

    def saved_operands(self, device: Any, known: dict[str, Any], terms: int) -> dict[str, Any] | tuple[()]:
        return split.saved_operands(device, known, terms)


VENDOR = Nvidia()
