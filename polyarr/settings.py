"""The environment variables that polyarr reads; docs/debugging.md shows this table."""

import os
import warnings

# name, followed by =value if only one value turns it on -> meaning
VARIABLES = {
    "POLYARR_BACKEND": "the backend to begin with; the library's default is numpy, the command's is opencl",
    "POLYARR_DEVICE": "the OpenCL device: its number, or a part of its name or of its platform's",
    "POLYARR_API_KEY": "a key that `polyarr serve` requires of its clients",
    "POLYARR_PLUGINS": "load only the plugins with these entry points, separated by commas; empty for none",
    "POLYARR_STRICT_PLUGINS=1": "raise the errors of plugins instead of recording them",
    "POLYARR_TRACE=1": "print each call of an op to stderr: its inputs, its result, and what computes it; "
    "when a function is captured, why again, and when its program runs; on OpenCL also which variant of its kernels "
    "was chosen, and why",
    "POLYARR_TRACE=2": "also each launch on the device, its work-groups, its bytes, and how long it took; waits for "
    "the device each time",
    "POLYARR_DEBUG=1": "wait for the device after each kernel, so that an error is raised where its cause is, and show "
    "the compiler's warnings",
    "POLYARR_CHECK_LAUNCHES=1": "compare every buffer that an OpenCL kernel gets with what the op requires, and refuse "
    "another shape, dtype, size or device: slower, for tests of kernels. Read when a device is started",
    "POLYARR_NO_CACHE=1": "neither read nor write compiled kernels (otherwise in `polyarr/kernels` in the user's cache "
    "folder, `~/.cache`)",
    "POLYARR_DRIVER": "cuda or opencl: the driver of NVIDIA's devices, read when a device is started; by default "
    "CUDA's, where it is installed. The compiler is OpenCL's in both cases",
    "POLYARR_COMPILE=0": "functions compiled from then on call the plain function, for debugging",
    "POLYARR_VARIANTS": "use only these variants of kernels for NVIDIA's GPUs, such as wgmma,mma; empty for none",
    "POLYARR_KERNELS": "cpu or gpu: run the kernels for such devices, whatever the OpenCL device is; for tests",
    "POLYARR_DETERMINISTIC=0": "let a GPU add at equal indices with atomics: not the same to the last bit from run to "
    "run. Read when a device is started",
}
SECRETS = ("POLYARR_API_KEY",)  # variables whose values are never shown
NAMES = tuple(dict.fromkeys(name.partition("=")[0] for name in VARIABLES))


def is_on(name: str) -> bool:
    """Return whether a variable is set to something other than "0"."""
    return os.environ.get(name, "") not in ("", "0")


def level(name: str) -> int:
    """Return the number that a variable is set to, else 0; warn about an unknown value and take it for 0."""
    value = os.environ.get(name, "") or "0"
    known = ["0", *(v.partition("=")[2] for v in VARIABLES if v.startswith(f"{name}="))]
    if value not in known:
        warnings.warn(f"{name} is {value!r}; it must be one of {', '.join(known)}", RuntimeWarning, stacklevel=2)
        return 0
    return int(value)


def unknown() -> list[str]:
    """Return the environment variables that begin with POLYARR_ but that nothing reads."""
    return sorted(name for name in os.environ if name.startswith("POLYARR_") and name not in NAMES)
