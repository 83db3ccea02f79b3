"""Discovery and selection of OpenCL devices, and diagnosis of those that do not work."""

import ctypes
import os
import sys
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.elementwise import random
from polyarr.backends.opencl.gemm import matmul
from polyarr.backends.opencl.runtime import caches, probes, variants
from polyarr.backends.opencl.runtime.device import FORKED, Device, Refusal, features_of
from polyarr.backends.opencl.runtime.quirks import INTEL, NVIDIA, POCL, RUSTICL, Quirk, quirks_of
from polyarr.backends.opencl.tuning import speed, tuned
from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec, float32, uint32
from polyarr.files import read_regular
from polyarr.plugins import DeviceInfo

NO_PLATFORM = "no OpenCL platform found; install a driver, or PoCL with: pip install 'polyarr[opencl]'"
LIBRARIES = {NVIDIA: "libnvidia-opencl.so.1", INTEL: f"{sys.prefix}/lib/libintelocl.so"}  # Intel's comes from pip
PROBE = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)  # first words of Philox4x32-10, as published

_MAX_REGISTRATION = 2**16  # maximum size of an .icd file in bytes

_lock: Any = threading.RLock()
_devices: dict[int, Device] = {}
_problems: dict[int, str] = {}


class Found(NamedTuple):
    """A device that a driver lists, with its number in polyarr."""

    number: int
    cl_device: cl.Device
    name: str
    platform: str

    def __str__(self) -> str:
        return f"opencl:{self.number} {self.name} ({self.platform})"


def select(wanted: str | None = None) -> Device:
    """Return the device named by `wanted`, or else by POLYARR_DEVICE; without either, the best one that works.

    A name is a number as `polyarr devices` shows it, or a part of the name of a device or platform.

    Raises:
        BackendError: There is no such device, or it does not work.
    """
    wanted = wanted or os.environ.get("POLYARR_DEVICE")
    with _lock:
        candidates = _matching(wanted) if wanted else _found()
        for candidate in candidates:
            if not _problem(candidate):
                return _devices[candidate.number]
    if not candidates:
        raise BackendError(_nothing_found())
    reasons = "; ".join(f"{candidate}: {_problems[candidate.number]}" for candidate in candidates)
    raise BackendError(f"no OpenCL device {f'called {wanted!r} ' if wanted else ''}works: {reasons}")


def share(number: int) -> str:
    """Return the name of the device for process `number` of this host, assigned round robin.

    The candidates are the devices that POLYARR_DEVICE names, or else those of the best kind. No device is started.
    """
    with _lock:
        wanted = os.environ.get("POLYARR_DEVICE")
        there = _matching(wanted) if wanted else _of_the_best_kind()
    return str(there[number % len(there)].number) if there else ""


def probe(device: Device) -> None:
    """Build and run a small kernel whose result is known.

    Raises:
        BackendError: The kernel does not build or run, or its result is wrong.
    """
    try:
        result = device.download(random.random_bits(device, Spec((4,), uint32), 0, 0, None, shape=(4,)))
    except cl.Error as error:
        raise BackendError(f"a small kernel does not run: {error}") from error
    if tuple(result) != PROBE:
        raise BackendError(f"a small kernel computes {result.tolist()} instead of {list(PROBE)}")


def listing() -> list[DeviceInfo]:
    """Return every device, the best first, with its problem if it has one, for `polyarr devices`."""
    with _lock:
        found = _found()
        try:
            chosen = select() if found else None
        except BackendError:  # POLYARR_DEVICE names no working device: the list must still be shown
            chosen = None
        return [_info(candidate, chosen) for candidate in found]


def _info(candidate: Found, chosen: Device | None) -> DeviceInfo:
    number, device, name, platform = candidate
    problem = _problem(candidate)
    features: dict = {} if problem else features_of(device)._asdict()
    if not features.get("architecture"):  # only NVIDIA's driver reports it
        features.pop("architecture", None)
    return DeviceInfo(
        "opencl", number, name, platform, device.version.strip(), device.driver_version.strip(),
        features,
        chosen=chosen is not None and _devices.get(number) is chosen, problem=problem,
    )  # fmt: skip


def _of_the_best_kind() -> list[Found]:
    found = _found()
    return [f for f in found if _score(f.cl_device) == _score(found[0].cl_device)]


@lru_cache
def _found() -> tuple[Found, ...]:
    """Return all devices in a stable order: GPUs, accelerators, CPUs; of these, those of doubtful drivers last.

    Then by platform, name and position. A driver is doubtful if `polyarr doctor` warns of it.
    """
    with _lock, caches.environment(**caches.for_pocl()):  # this loads the drivers
        devices = [d for platform in _platforms() for d in _devices_of(platform)]
    devices.sort(key=lambda d: (-_score(d), _is_doubtful(d), d.platform.name, d.name))  # ties keep their position
    return tuple(Found(i, d, d.name.strip(), d.platform.name.strip()) for i, d in enumerate(devices))


def _nothing_found() -> str:
    """Explain why there is no device at all."""
    names = ", ".join(p.name for p in _platforms())
    if not names:
        return NO_PLATFORM
    hints, run = [], caches.run_folder()
    if POCL in names and "POCL_DEVICES" in os.environ:
        hints.append(f"POCL_DEVICES={os.environ['POCL_DEVICES']} leaves PoCL none: unset it")
    elif POCL in names and isinstance(run, str):
        hints.append(f"PoCL has no folder to compile in: {run}")
    if RUSTICL in names and "RUSTICL_ENABLE" not in os.environ:
        hints.append("Mesa's rusticl offers none unless RUSTICL_ENABLE names a driver: radeonsi, iris, llvmpipe")
    return f"no OpenCL device found; there are drivers, but without a device: {'; '.join([names, *hints])}"


def _platforms() -> list[cl.Platform]:
    try:
        return cl.get_platforms()
    except cl.Error:  # the OpenCL loader raises it if there is no platform
        return []


def _devices_of(platform: cl.Platform) -> list[cl.Device]:
    try:
        return platform.get_devices()
    except cl.Error:  # a driver without hardware
        return []


def _score(device: cl.Device) -> int:
    kinds = (cl.device_type.CPU, cl.device_type.ACCELERATOR, cl.device_type.GPU)
    return max((i for i, kind in enumerate(kinds, 1) if device.type & kind), default=0)


def _quirks(device: cl.Device, platform: str) -> list[Quirk]:
    return quirks_of(platform, f"{device.driver_version.strip()} {device.version.strip()}")


def _is_doubtful(device: cl.Device) -> bool:
    return any(quirk.level == "warning" for quirk in _quirks(device, device.platform.name.strip()))


def _matching(wanted: str) -> list[Found]:
    number, text = wanted.removeprefix("opencl:"), wanted.lower()
    if number.isdecimal():
        matching = [f for f in _found() if f.number == int(number)]
    else:
        matching = [f for f in _found() if text in f.name.lower() or text in f.platform.lower()]
    if not matching:
        there = ", ".join(map(str, _found()))
        raise BackendError(f"no OpenCL device called {wanted!r}; there are: {there}" if there else _nothing_found())
    return matching


def _problem(candidate: Found) -> str:
    """Start a device, once, and return its problem; empty if it works."""
    with _lock:
        number = candidate.number
        if number not in _devices and number not in _problems:
            try:
                device = Device(candidate.cl_device, f"opencl:{number}")
                probe(device)
                _devices[number] = device
            except Exception as error:  # whatever a driver raises, other devices must stay usable
                _problems[number] = str(error).strip() or type(error).__name__
        return _problems.get(number, "")


def _after_fork_in_child() -> None:
    """Block all driver calls in a forked child, where drivers that were loaded before do not work."""
    global _lock
    _lock = Refusal(FORKED) if _found.cache_info().currsize else threading.RLock()
    for device in _devices.values():
        device.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# ---- for polyarr doctor ----------------------------------------------------------------------------------------


def diagnose() -> list[tuple[str, str]]:
    """Return findings on drivers, devices and caches, with remedies, as (level, text) lines."""
    with _lock:
        found, platforms = _found(), ", ".join(p.name for p in _platforms())
        lines = [("ok", f"PyOpenCL {cl.VERSION_TEXT}; OpenCL platforms: {platforms or 'none'}")]
        if not found:
            lines.append(("error", _nothing_found()))
        lines += _unregistered() + _broken_drivers() + [line for f in found for line in _state(f)]
        return lines + tuned.diagnose_file() + _caches()


def _state(candidate: Found) -> list[tuple[str, str]]:
    """Return lines that say whether a device works, and the known flaws of its driver."""
    number, device, _, platform = candidate
    problem = _ended(number) or _problem(candidate)
    works = f"does not work and is skipped: {problem}" if problem else "computes"
    lines = [(q.level, f"opencl:{number}: the driver {q.flaw}; polyarr {q.answer}") for q in _quirks(device, platform)]
    return [("error" if problem else "ok", f"{candidate} {works}"), *lines, *_speed(candidate)]


@lru_cache
def _ended(number: int) -> str:
    """Try a device in a probe process; return how its driver ended that process, or "". Then it is not used here."""
    with suppress(probes.NotTriedError):
        if ended := probes.ProbeProcess(f"opencl:{number}").wrong(examine):
            _problems[number] = ended
    return _problems.get(number, "")


def examine(device: Device) -> None:
    """Exercise a device for `polyarr doctor`, in a probe process that its driver may crash; exceptions are ignored."""
    with suppress(Exception):
        x = device.upload(np.ones((8, 8), np.float32))
        device.download(matmul.matmul(device, Spec((8, 8), float32), x, x))
        speed.diagnose(device)


def _speed(candidate: Found) -> list[tuple[str, str]]:
    """Return lines on the GEMM throughput of a working device, and on the kernel variants that it can run."""
    if _problem(candidate):
        return []
    device = _devices[candidate.number]
    checked = *device.vendor.gemv, *device.vendor.gemm, *device.vendor.attention
    found = device.vendor.diagnose(device) + speed.diagnose(device) + tuned.diagnose(device)
    return found + variants.diagnose(device, checked)


def _unregistered() -> list[tuple[str, str]]:
    """Return lines on drivers that are installed, but that the OpenCL loader does not find."""
    folder = os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors"
    registered = {p.name for p in _platforms()}
    return [
        (
            "error",
            f"{name}: the driver is installed, but the OpenCL loader that comes with PyOpenCL does not see it; write "
            f"the line {library} to a file in {folder} whose name ends in .icd, and set OCL_ICD_VENDORS={folder}",
        )
        for name, library in LIBRARIES.items()
        if name not in registered and not _load_problem(library)
    ]


def _broken_drivers() -> list[tuple[str, str]]:
    """Return lines on registered drivers whose library does not load."""
    vendors = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    if "OCL_ICD_VENDORS" in os.environ and not vendors.exists():
        return [("error", f"OCL_ICD_VENDORS={vendors}: no such folder, so no driver is found; unset or mend it")]
    files = [vendors] if vendors.is_file() else sorted(vendors.glob("*.icd"))
    return [
        ("warning", f"{file} registers an OpenCL driver that does not load: {problem}; mend or delete it")
        for file in files
        if (problem := _registration_problem(file))
    ]


def _registration_problem(file: Path) -> str:
    """Return why the driver that an .icd file names does not load; empty if it does."""
    try:
        library = read_regular(file, _MAX_REGISTRATION).decode().strip()
    except (OSError, ValueError) as error:
        return f"the file cannot be read ({error})"
    return _load_problem(library) if library else "the file is empty"


def _load_problem(library: str) -> str:
    """Return why a shared library does not load; empty if it does."""
    try:
        ctypes.CDLL(library)
    except (OSError, ValueError) as error:  # ValueError: not a valid file name
        return str(error)
    return ""


def _caches() -> list[tuple[str, str]]:
    if reason := caches.trouble():
        lines = [("warning", f"compiled kernels are not kept, so every process compiles them anew: {reason}")]
    else:
        where = f"{caches.root()} ({caches.size() / 1e6:.1f} MB)"
        lines = [("ok", f"compiled kernels are kept in {where}, which may be deleted while nobody computes")]
    folder = caches.nvidia_folder()
    if NVIDIA in (p.name for p in _platforms()) and not (caches.is_off() or caches.is_writable(folder)):
        lines.append(("warning", f"NVIDIA's driver cannot keep compiled kernels in {folder}"))
    return lines
