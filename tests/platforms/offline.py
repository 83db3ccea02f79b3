"""Kernels compiled without their device: the programs that a device would build, through clang for other systems."""

import math
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml

import polyarr
from polyarr.backends.opencl import devices
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.geometry import geometry_of
from polyarr.backends.opencl.runtime.source import arguments_of
from polyarr.core.current import use_backend
from tests.sanitize.cases import cases
from tests.sanitize.device import backend_of

CLANG = ("-c", "-x", "cl", "-cl-std=CL1.2", "-Wno-everything")
METADATA = re.compile(r"\.amdgpu_metadata\n(.*?)\t\.end_amdgpu_metadata", re.S)

DOUBLE = re.compile(r"float64|double|complex128")


class Limits(NamedTuple):
    """Properties of a device by which kernels are chosen.

    Attributes:
        local_memory: Bytes.
    """

    is_cpu: bool
    fp64: bool
    max_work_group: int
    local_memory: int


CPU = Limits(is_cpu=True, fp64=True, max_work_group=4096, local_memory=2**20)
AMD = Limits(is_cpu=False, fp64=True, max_work_group=256, local_memory=2**16)  # as AMD's drivers report
SMALL = Limits(is_cpu=False, fp64=False, max_work_group=256, local_memory=2**15)  # as GPUs of telephones


# ---- programs --------------------------------------------------------------------------------------------------------


class NoKernel:
    """A kernel that computes nothing."""

    is_kernel = has_run = True
    arguments, in_place = None, ()

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most

    def twin(self, in_place: Any) -> "NoKernel":
        """Return the kernel."""
        return self

    def __call__(self, work: Any, group: Any, *args: object) -> None:
        """Check the size of the work-group.

        Raises:
            ValueError: The device allows no such work-group.
        """
        items = math.prod(group or ())
        if items > self.most:
            raise ValueError(f"{self.name} is launched with {items} work-items per group; at most {self.most}")


class Recorder(Device):
    """The default OpenCL device with the limits of another, which keeps sources instead of compiling them."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(devices.select().cl_device, "recorder")
        self.features = self.features._replace(**limits._asdict())
        self.geometry, self.sources = geometry_of(self.features), dict[tuple[str, str], None]()
        self.geometry.sort_tile, self.geometry.sort_long, self.geometry.sort_merges = 64, 1000, 0.5

    def build(self, stem: str, **defines: Any) -> SimpleNamespace:
        """Return kernels by name that compute nothing; keep the source."""
        macros = {"IS_CPU": int(self.features.is_cpu), "HAS_FP64": int(self.features.fp64), **defines}
        if self.features.fp64 or not DOUBLE.search(" ".join(map(str, defines.values()))):
            self.sources[stem, self.programs.text(stem, macros)] = None
        kernels = {name: NoKernel(name, self.features.max_work_group) for name in arguments_of(stem, {})}
        return SimpleNamespace(kernels=kernels, **kernels)

    def empty(self, out: Any) -> Any:
        """Return memory, of float64 too: the cases are made of arrays of all dtypes."""
        features, self.features = self.features, self.features._replace(fp64=True)
        try:
            return super().empty(out)
        finally:
            self.features = features

    def _allocate(self, nbytes: int) -> object:
        memory = super()._allocate(nbytes)
        self.commands.fill((-(-nbytes // 4) * 4,), None, memory)  # a value read back may be a length
        return memory


def programs(limits: Limits) -> Iterable[tuple[str, str]]:
    """Return (file name, source) of the programs that the sanitizer's cases need on a device with these limits."""
    device = Recorder(limits)
    with use_backend(backend_of(device, Counter())):
        for case in cases():
            # Raised by cases that inspect results or real kernels, or that need float64.
            with suppress(AssertionError, AttributeError, polyarr.DtypeError):
                if case.backward:
                    value, pull = polyarr.vjp(case.fn, *case.arrays)
                    pull(polyarr.ones_like(value))
                else:
                    case.fn(*case.arrays)
    return device.sources


# ---- compilers -------------------------------------------------------------------------------------------------------


@cache
def tool(name: str) -> str:
    """Return an LLVM program, with or without a version in its name.

    Raises:
        FileNotFoundError: There is none.
    """
    names = [name, *(f"{name}-{version}" for version in range(30, 10, -1))]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise FileNotFoundError(f"no {name}; install clang and llvm-spirv")
    return found


def spirv_problem(text: str, target: str) -> str:
    """Return the errors of compiling a source to SPIR-V as Mesa does; "" if there are none.

    A struct that ends with padding, which Mesa's compiler does not count, is an error.
    """
    bitcode, problem = _compiled(text, "-O0", "-target", target, "-Wpadded", "-emit-llvm")
    return problem or _run([tool("llvm-spirv"), "-", "-o", "/dev/null"], bitcode)[1]


def amd_problem(text: str, processor: str, limits: Limits) -> str:
    """Return the errors of compiling a source for an AMD GPU, or the limits that its kernels exceed; "" if none."""
    options = ("-O1", "-target", "amdgcn-amd-amdhsa", f"-mcpu={processor}", "-nogpulib")
    code, problem = _compiled(text, *options, "-S")
    return problem or _excess(code.decode(), limits)


def cpu_problem(text: str, target: str) -> str:
    """Return the errors of compiling a source for a CPU; "" if there are none."""
    return _compiled(text, "-O1", "-target", target, "-Xclang", "-cl-ext=+cl_khr_fp64", "-emit-llvm")[1]


def _compiled(text: str, *options: str) -> tuple[bytes, str]:
    return _run([tool("clang"), *CLANG, *options, "-o", "-", "-"], text.encode())


def _run(command: list[str], given: bytes) -> tuple[bytes, str]:
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    return done.stdout, done.stderr.decode() or f"{command[0]} failed" * (done.returncode != 0)


def _excess(code: str, limits: Limits) -> str:
    """Return the limits that kernels exceed, by what the compiler writes about each of them as YAML."""
    found = []
    for kernel in yaml.safe_load(METADATA.search(code)[1])["amdhsa.kernels"]:
        name, local = kernel[".name"], kernel[".group_segment_fixed_size"]
        items = math.prod(kernel.get(".reqd_workgroup_size", ()))
        if local > limits.local_memory:
            found.append(f"{name} has {local} bytes of local memory; the device has {limits.local_memory}")
        if items > limits.max_work_group:
            found.append(f"{name} has {items} work-items per group; the device allows {limits.max_work_group}")
    return "; ".join(found)
