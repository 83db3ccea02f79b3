"""Builds programs: macros, #line directives, the cache, and kernel objects that are fetched once."""

import hashlib
import re
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.runtime.commands import Commands, Kernel
from polyarr.backends.opencl.runtime.compiled import SILENT
from polyarr.backends.opencl.runtime.driver import ERRORS
from polyarr.backends.opencl.runtime.pocl import target_of
from polyarr.backends.opencl.runtime.source import Arguments, arguments_in, arguments_of, needed, source_of
from polyarr.core.errors import BackendError
from polyarr.core.spec import bfloat16, complex64, complex128, float16, float32, float64
from polyarr.core.spec import bool as bool_
from polyarr.settings import is_on

EXACT_DIVISION = "-cl-fp32-correctly-rounded-divide-sqrt"  # otherwise NVIDIA's are off by up to 1.9 ulp
_UNDECLARED = re.compile(r"implicit declaration of function '(?:_cl_)?(\w+)'")

# The C types of a dtype: T, in which elements are stored, and ACC, in which arithmetic is done.
STORED = {
    bool_: ("uchar", "int"),
    np.dtype("int8"): ("char", "int"),
    np.dtype("int16"): ("short", "int"),
    np.dtype("int32"): ("int", "int"),
    np.dtype("int64"): ("long", "long"),
    np.dtype("uint8"): ("uchar", "uint"),
    np.dtype("uint16"): ("ushort", "uint"),
    np.dtype("uint32"): ("uint", "uint"),
    np.dtype("uint64"): ("ulong", "ulong"),
    float16: ("half", "float"),
    bfloat16: ("ushort", "float"),
    float32: ("float", "float"),
    float64: ("double", "double"),
    complex64: ("float2", "float2"),
    complex128: ("double2", "double2"),
}


_TYPES = {  # made once: NumPy takes microseconds for the name of a dtype
    dtype: {"T": stored, "ACC": acc, "LOAD": f"load_{dtype.name}", "STORE": f"store_{dtype.name}"}
    for dtype, (stored, acc) in STORED.items()
}


def types(dtype: np.dtype) -> dict[str, str]:
    """Return the macros T, ACC, LOAD and STORE for a dtype. LOAD(p, i) is an ACC; STORE(p, i, v) rounds v to T."""
    return _TYPES[dtype].copy()


WORDS = {1: "uchar", 2: "ushort", 4: "uint", 8: "uint2", 16: "uint4"}


def vector_types(dtype: np.dtype, count: int, prefix: str = "") -> dict[str, str]:
    """Return the macros that DEFINE_VECTOR needs besides T and ACC, for vectors of count elements."""
    raw = "ushort" if dtype == float16 else STORED[dtype][0]
    names = {"DTYPE": dtype.name, "RAW": raw, "WORD": WORDS.get(count * dtype.itemsize, "none")}
    return {prefix + name: value for name, value in names.items()}


class Program:
    """A built program; its kernels are its attributes, each fetched once."""

    def __init__(
        self, program: Any, commands: Commands, launched: Callable[[], None], arguments: Mapping[str, Arguments | None]
    ) -> None:
        kernels = commands.driver.kernels(program)
        self.kernels = {
            name: Kernel(program, name, k, commands, launched, arguments[name]) for name, k in kernels.items()
        }
        vars(self).update(self.kernels)

    def __getattr__(self, name: str) -> Kernel:
        raise AttributeError(f"the program has no kernel {name!r}; it has {sorted(self.kernels)}")


class ProgramCache:
    """Programs of one device by file and macros, or by source and macros. Compilers cache on disk.

    Attributes:
        known: Macros about the device.
        options: Further build options of all programs.
        jobs: What other processes do about programs that are needed next, by their text: see replay/ahead.py.
        ahead: Submits such jobs; None where nobody knows what is needed next.
    """

    def __init__(self, device: cl.Device, commands: Commands, known: dict[str, Any]) -> None:
        self._device, self._commands, self.known = device, commands, known
        self.compiler = commands.driver.compiler()
        exact = device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        self.options = [EXACT_DIVISION] if exact else []
        self.jobs: dict[str, Future[str]] = {}
        self.ahead: Callable[[], None] | None = None
        self._programs: dict[Any, Program] = {}

    def look_ahead(self) -> None:
        """Submit jobs about the programs that are needed next, before waiting for one."""
        with self._commands.lock:  # the thread in whose first run they are needed
            ahead, self.ahead = self.ahead, None
            if ahead is not None:
                ahead()

    def has(self, stem: str, defines: dict[str, Any]) -> bool:
        """Return whether this process has built a program."""
        return (stem, *defines.items()) in self._programs

    def get(self, stem: str, defines: dict[str, Any]) -> Program:
        """Return the program of <stem>.cl with these macros."""
        return self._kept((stem, *defines.items()), lambda: self._build(stem, defines))

    def of_source(self, source: str, defines: dict[str, Any]) -> Program:
        """Return the program of another package's source with these macros.

        Raises:
            BackendError: It does not compile, has no kernel, or a kernel has parameters that cannot be passed.
        """
        return self._kept((source, *defines.items()), lambda: self._build_source(source, defines))

    def _kept(self, key: Any, make: Callable[[], Program]) -> Program:
        program = self._programs.get(key)
        if program is None:
            with self._commands.lock:
                program = self._programs.get(key) or make()
                self._programs[key] = program
        return program

    def _build(self, stem: str, defines: dict[str, Any]) -> Program:
        return self._compile(f"{stem}.cl", self.text(stem, defines), arguments_of(stem, defines), defines)

    def _build_source(self, source: str, defines: dict[str, Any]) -> Program:
        arguments = arguments_in(source, defines)
        if not arguments:
            raise BackendError("the source has no kernel; one begins with `kernel void` and its name")
        text = self._with_macros(defines, f'#line 1 "source"\n{source}')
        return self._compile(f"the source of {', '.join(arguments)}", text, arguments, defines, is_ours=False)

    def _compile(
        self, label: str, text: str, arguments: Mapping[str, Arguments | None], defines: dict[str, Any],
        is_ours: bool = True,
    ) -> Program:  # fmt: skip
        self._commands.announce(f"the build of {label}")
        name, source, options = self._completed(text, is_ours)
        if text not in self.jobs and self.compiler.is_slow(name):
            self.look_ahead()
        if (job := self.jobs.pop(text, None)) and not job.cancel():
            wait((job,))  # then the driver has the program in its cache
        debug = is_on("POLYARR_DEBUG")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)  # it only says that there is a log
                program = self.compiler.build(name, source, options)
            log = program.get_build_info(self._device, cl.program_build_info.LOG) if debug else ""
            if log.strip():
                warnings.warn(f"{label}: {log.strip()}", cl.CompilerWarning, stacklevel=2)
            launched = partial(self.compiler.launched, name)
            return Program(program, self._commands, launched, arguments)
        except ERRORS as error:
            device, given = self._device.name.strip(), " ".join(f"{k}={v}" for k, v in defines.items())
            raise BackendError(
                f"{label} does not build on {device!r}\n{_compiler_log(str(error))}\nwith {given or 'no macros'}"
            ) from error

    def is_slow(self, text: str) -> bool:
        """Return whether it pays to have the program of a text built by another process meanwhile."""
        return self.compiler.is_slow(self._completed(text)[0])

    def _completed(self, text: str, is_ours: bool = True) -> tuple[str, str, list[str]]:
        """Return the name of a program, its source as the driver gets it, and its options.

        Other packages' sources may call any function of OpenCL C, ours only those of builtins.cl.
        """
        # PoCL prints how many warnings there were, and PyOpenCL warns of any log; this silences both.
        silent = [] if is_on("POLYARR_DEBUG") else [SILENT]
        source, options = text, ["-cl-std=CL1.2", *silent, *self.options]
        if is_ours:
            source, options = self.compiler.completed(source, options)
        return hashlib.sha256("\n".join([*options, source]).encode()).hexdigest(), source, options

    def text(self, stem: str, defines: dict[str, Any]) -> str:
        """Return the source for the compiler: macros about the device, the other macros, the files.

        Raises:
            BackendError: A macro is missing that the header of <stem>.cl lists.
        """
        macros = {**self.known, **defines}
        if missing := needed(stem) - {name.partition("(")[0] for name in macros}:
            raise BackendError(f"{stem}.cl needs {', '.join(sorted(missing))}; given are {', '.join(macros)}")
        return self._with_macros(defines, source_of(stem))

    def _with_macros(self, defines: dict[str, Any], source: str) -> str:
        target = f"// {target_of(self._device)}\n"  # so that caches keep the binaries of processors apart
        macros = {**self.known, **defines}
        return target + "".join(f"#define {name} {value}\n" for name, value in macros.items()) + source


def _compiler_log(text: str) -> str:
    """Return the compiler's own lines in PyOpenCL's error, each once; the whole error if there are none.

    For PoCL kernels/builtins.cl replaces the compiler's declarations, so a line says so of a function it may lack.
    """
    _, _, log = text.partition("\nBuild on ")
    log = log.partition("\n(options: ")[0].partition("\n")[2]
    lines = dict.fromkeys(line.rstrip() for line in log.splitlines() if line.strip() and " failed to build" not in line)
    for name in dict.fromkeys(_UNDECLARED.findall("\n".join(lines))):
        lines[f"if {name} is a function of OpenCL C, declare it in kernels/builtins.cl"] = None
    return "\n".join(lines) or text
