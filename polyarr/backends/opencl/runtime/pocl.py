"""Makes PoCL compile for the processor that it runs on.

PoCL compiles for the processor that LLVM names, and links its built-in functions from a library chosen by the
processor's features. The two can disagree: an LLVM that does not know a processor calls it "generic", for which PoCL
builds nothing (pocl/pocl issues 512 and 1049), or by the name of its predecessor, which lacks AVX-512 (Zen 4 is
"znver3"). Then vectors are passed in other registers than the library reads, and sin(double8) is wrong or crashes. No
setting selects another processor. So if the compiler's registers are narrower than the library's, the name in the
device record of this process is replaced by that of the oldest processor with the library's features. See
docs/decisions/0002-pocl-on-new-processors.md.
"""

import ctypes
import hashlib
import itertools
import re
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pyopencl as cl

from polyarr.backends.opencl.runtime.caches import store_of
from polyarr.backends.opencl.runtime.quirks import POCL

RECORD_BYTES = 1024  # the names lie in the first part of PoCL's device record
UNKNOWN = 1  # floats in a register, if the compiler does not say
ANSWERS = {str(floats).encode(): floats for floats in (UNKNOWN, 4, 8, 16)}


class Processor(NamedTuple):
    """Features that a processor must have for an LLVM name, and the floats that its registers hold."""

    features: frozenset[str]
    name: str
    floats: int


# Most capable first, as PoCL chooses its built-in library.
PROCESSORS = (
    Processor(frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}), "skylake-avx512", 16),
    Processor(frozenset({"avx2", "fma"}), "haswell", 8),
    Processor(frozenset({"avx"}), "sandybridge", 8),
    Processor(frozenset({"sse4_1"}), "penryn", 4),
    Processor(frozenset({"sse2"}), "x86-64", 4),
)
_names = {p.name: ctypes.create_string_buffer(p.name.encode()) for p in PROCESSORS}  # PoCL keeps the pointer
_given: dict[int, str] = {}  # the names that devices were given, by their records

# The compiler's own answer, in a property that can be read without running a kernel.
QUESTION = """
#if defined(__AVX512F__)
#define FLOATS 16
#elif defined(__AVX__)
#define FLOATS 8
#elif defined(__SSE__)
#define FLOATS 4
#else
#define FLOATS 1
#endif
__kernel __attribute__((reqd_work_group_size(FLOATS, 1, 1))) void registers(void) {}
"""


def name_the_processor(device: cl.Device) -> None:
    """Give a PoCL device a processor name that fits the built-in library; leave other devices alone."""
    name = target_of(device)
    if not name or sys.platform != "linux":
        return
    better = better_name(name, compiled_floats(device), features_of_processor())
    slot = _slot(device.int_ptr, name) if better else None
    if better and slot is not None:
        ctypes.c_void_p.from_address(slot).value = ctypes.addressof(_names[better])
        _given[device.int_ptr] = better


def better_name(name: str, floats: int, features: frozenset[str]) -> str | None:
    """Return the name that fits the library for these features; None to keep the one with `floats` per register."""
    fitting = next((p for p in PROCESSORS if p.features <= features), None)
    if fitting is None or floats in (fitting.floats, UNKNOWN) or name == fitting.name:
        return None
    return fitting.name


def target_of(device: cl.Device) -> str:
    """Return LLVM's name of the processor that PoCL compiles for; empty for other drivers."""
    if POCL not in device.platform.name:
        return ""
    return _given.get(device.int_ptr) or device.version.strip().rpartition("-gnu-")[2]


def compiled_floats(device: cl.Device) -> int:
    """Return the floats per register of compiled code; UNKNOWN, or 0 if nothing compiles."""
    return _answer(device, target_of(device))


@lru_cache
def _answer(device: cl.Device, target: str) -> int:
    """Return the compiler's answer for this target; cached on disk, because asking takes half a second."""
    driver = f"{device.platform.name} {device.driver_version} {device.version}"
    name = hashlib.sha256(f"{driver} {target}{QUESTION}".encode()).hexdigest()
    store = store_of("what compilers were asked")
    known = store.load(name)
    if known in ANSWERS:
        return ANSWERS[known]
    floats = _ask(device, target)
    if floats:  # a compiler that fails may be repaired
        store.save(name, str(floats).encode())
    return floats


def questions() -> int:
    """Return how many questions compilers were asked in this process, most with a program that PoCL keeps."""
    return _answer.cache_info().misses


def _ask(device: cl.Device, target: str) -> int:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            source = f"// {target}{QUESTION}"  # so that no cache answers for another target
            context = cl.Context([device])  # Intel's driver needs it for as long as the program is in use
            kernel = cl.Program(context, source).build(["-w"]).registers
    except cl.Error:
        return 0
    return kernel.get_work_group_info(cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE, device)[0]


def features_of_processor() -> frozenset[str]:
    """Return the processor's features, as the system reports them."""
    return frozenset(_processor_says("flags").split())


def processor_name() -> str:
    """Return the processor's name, with its family and model in case a virtual machine hides the name."""
    family, model = _processor_says("cpu family"), _processor_says("model")
    name = _processor_says("model name") or "unknown processor"
    return f"{name} (family {family}, model {model})" if family else name


def _processor_says(key: str) -> str:
    """Return one line of /proc/cpuinfo; empty if there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(rf"^{key}[ \t]*:(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _slot(record: int, name: str) -> int | None:
    """Return the address of the pointer to the processor's name, which follows that of the x86-64 target triple."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # a bad address is an error here, not a crash

        def read(address: int, length: int) -> bytes:
            try:
                memory.seek(address)
                return memory.read(length)
            except (OSError, OverflowError, ValueError):
                return b""

        wanted = name.encode() + b"\0"
        words = memoryview(read(record, RECORD_BYTES)).cast("Q")
        for i, (triple, present) in enumerate(itertools.pairwise(words)):
            if read(triple, 7) == b"x86_64-" and read(present, len(wanted)) == wanted:
                return record + 8 * (i + 1)
    return None
