"""Keep PoCL working on processors that are newer than the LLVM inside it.

PoCL asks LLVM for the name of the host's processor. An LLVM that does not know it answers "generic", and PoCL then
refuses every program with "unknown target CPU 'generic'" (pocl/pocl issues 512 and 1049). The wheel's PoCL 3.0 with
LLVM 14 does so on AMD Zen 4, Zen 5 and recent Intel processors. No setting names another processor, so this module
replaces the name in the device record of this process by the oldest processor with the features that PoCL's own
choice of built-in library relies on. See docs/decisions/0002-pocl-on-new-processors.md.
"""

import ctypes
import itertools
import sys
from pathlib import Path

import pyopencl as cl

from polyarr.backends.opencl.quirks import POCL

RECORD_BYTES = 1024  # the names lie in the first part of PoCL's device record
# Features -> an LLVM processor that has them, the most capable first; mirrors PoCL's choice of built-in library.
PROCESSORS = (
    ({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}, b"skylake-avx512"),
    ({"avx2", "fma"}, b"haswell"),
    ({"avx"}, b"sandybridge"),
    ({"sse4_1"}, b"penryn"),
    (set(), b"x86-64"),
)
_names = {name: ctypes.create_string_buffer(name) for _, name in PROCESSORS}  # PoCL keeps the pointer


def name_the_processor(device: cl.Device) -> None:
    """Give a PoCL device with the processor "generic" a name that LLVM knows. Nothing changes on any other device."""
    if POCL not in device.platform.name or sys.platform != "linux":
        return
    slot = _generic_slot(device.int_ptr)
    if slot is not None:
        name = next(name for needed, name in PROCESSORS if needed <= _cpu_features())
        ctypes.c_void_p.from_address(slot).value = ctypes.addressof(_names[name])


def _generic_slot(record: int) -> int | None:
    """The address of the pointer to "generic" that follows the one to the x86-64 target triple."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # a bad address is an error here, not a crash

        def read(address: int, length: int) -> bytes:
            try:
                memory.seek(address)
                return memory.read(length)
            except (OSError, OverflowError, ValueError):
                return b""

        words = memoryview(read(record, RECORD_BYTES)).cast("Q")
        for i, (triple, name) in enumerate(itertools.pairwise(words)):
            if read(triple, 7) == b"x86_64-" and read(name, 8) == b"generic\0":
                return record + 8 * (i + 1)
    return None


def _cpu_features() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()
