"""Building kernels: macros, #line, the cache, and kernel objects that are fetched once."""

import hashlib
import os
import threading
import warnings
from importlib.resources import files
from typing import Any

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.compiled import compiler_of
from polyarr.backends.opencl.pocl import target_of
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, bfloat16, float16, float32, float64
from polyarr.core.spec import bool as bool_

KERNELS = files(__package__) / "kernels"
SHARED = ("prelude", "functions")  # kernel files that come before every other

# The C types of a dtype: T is how an element is stored, ACC what arithmetic on it is done in.
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
}


def types(dtype: np.dtype) -> dict[str, str]:
    """The macros T, ACC, LOAD and STORE for one dtype. LOAD(p, i) is an ACC; STORE(p, i, v) rounds v to T."""
    stored, acc = STORED[dtype]
    return {"T": stored, "ACC": acc, "LOAD": f"load_{dtype.name}", "STORE": f"store_{dtype.name}"}


class Kernel:
    """One kernel of a built program. Integers are passed as long, floats as float unless they are NumPy scalars."""

    def __init__(self, name: str, program: str, kernel: cl.Kernel, cache: "ProgramCache") -> None:
        self.name, self._program, self._kernel, self._cache = name, program, kernel, cache
        self._queue, self._typed = cache.queue, False

    def __call__(self, work: int | tuple[int, ...], group: int | tuple[int, ...] | None, *args: Any) -> None:
        """Enqueue: work is the global size, group the local size. Nothing is enqueued for an empty range."""
        work = work if type(work) is tuple else (work,)
        if 0 in work:
            return
        group = (group,) if type(group) is int else group
        with self._cache.lock:
            if not self._typed:
                self._cache.compiler.launched(self._program)
                self._kernel.set_scalar_arg_dtypes([_scalar_dtype(a) for a in args])
                self._typed = True
            try:
                self._kernel(self._queue, work, group, *args)
            except cl.Error as error:
                device = self._queue.device.name.strip()
                before = self._cache.last_kernel
                raise BackendError(
                    f"kernel {self.name}: could not enqueue {work} by {group} on {device!r}, after {before}: {error}"
                ) from error
            self._cache.last_kernel = self.name


def _scalar_dtype(arg: Any) -> Any:
    if isinstance(arg, np.generic):
        return arg.dtype
    return {int: np.int64, bool: np.int64, float: np.float32}.get(type(arg))


class Program:
    """A built program: its kernels are its attributes, each fetched once."""

    def __init__(self, name: str, program: cl.Program, cache: "ProgramCache") -> None:
        self._kernels = {k.function_name: Kernel(k.function_name, name, k, cache) for k in program.all_kernels()}

    def __getattr__(self, name: str) -> Kernel:
        try:
            return self._kernels[name]
        except KeyError:
            raise AttributeError(f"the program has no kernel {name!r}; it has {sorted(self._kernels)}") from None


class ProgramCache:
    """Programs by file and macros, for one device. What was compiled is kept on disk by the compiler."""

    def __init__(self, context: cl.Context, device: cl.Device, queue: cl.CommandQueue, lock: threading.RLock) -> None:
        self._device, self.queue, self.lock = device, queue, lock
        self.compiler = compiler_of(context, device)
        self._programs: dict[Any, Program] = {}
        self.last_kernel = "none"  # the name of the kernel that was enqueued last

    def get(self, stem: str, defines: dict[str, Any]) -> Program:
        """The program of kernels/<stem>.cl under these macros."""
        key = (stem, *defines.items())
        program = self._programs.get(key)
        if program is None:
            with self.lock:
                program = self._programs.get(key) or self._build(stem, defines)
                self._programs[key] = program
        return program

    def _build(self, stem: str, defines: dict[str, Any]) -> Program:
        macros = self._macros(defines)
        target = f"// {target_of(self._device)}\n"  # caches must not take one processor's binary for another's
        source = target + macros + "\n".join(f'#line 1 "{name}.cl"\n{_read(name)}' for name in (*SHARED, stem))
        debug = os.environ.get("POLYARR_DEBUG")
        # PoCL prints how many warnings there were, and PyOpenCL warns of any text; -w has both keep quiet.
        options = ["-cl-std=CL1.2"] if debug else ["-cl-std=CL1.2", "-w"]
        name = hashlib.sha256("\n".join([*options, source]).encode()).hexdigest()
        try:
            with warnings.catch_warnings():
                if not debug:
                    warnings.simplefilter("ignore", cl.CompilerWarning)
                return Program(name, self.compiler.build(name, source, options), self)
        except cl.Error as error:
            device, given = self._device.name.strip(), " ".join(f"{k}={v}" for k, v in defines.items())
            raise BackendError(
                f"{stem}.cl does not build on {device!r}\n{_compiler_log(str(error))}\nwith {given or 'no macros'}"
            ) from error

    def _macros(self, defines: dict[str, Any]) -> str:
        is_cpu = int(bool(self._device.type & cl.device_type.CPU))
        fp64 = int("cl_khr_fp64" in self._device.extensions.split())
        known = {"IS_CPU": is_cpu, "HAS_FP64": fp64, **defines}
        return "".join(f"#define {name} {value}\n" for name, value in known.items())


def _compiler_log(text: str) -> str:
    """The compiler's own lines in PyOpenCL's error, each once; all of it if there are none."""
    _, _, log = text.partition("\nBuild on ")
    log = log.partition("\n(options: ")[0].partition("\n")[2]
    lines = dict.fromkeys(line.rstrip() for line in log.splitlines() if line.strip() and " failed to build" not in line)
    return "\n".join(lines) or text


def _read(stem: str) -> str:
    return (KERNELS / f"{stem}.cl").read_text()


def spec_of(buf: Any) -> Spec:
    """The Spec of a buffer."""
    return Spec(buf.shape, buf.dtype)
