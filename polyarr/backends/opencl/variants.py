"""Variants of a kernel for some devices, which are tried before they are used; see docs/decisions/0016.

A variant that a device may be fit for is tried once on each driver, in a process of its own, because a kernel that
faults takes everything on a device with it. Each program of it is then checked once, with a small problem, between
canaries. What was found is remembered with the compiled kernels. What fails is set aside, and `polyarr doctor` says so.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from polyarr.backends.opencl.caches import store_of
from polyarr.backends.opencl.device import Device, Features
from polyarr.backends.opencl.source import source_of
from polyarr.core.errors import BackendError

TRIAL_SECONDS = 120
ENTRY = "variants"  # in the store of what is kept of a driver


class Variant(NamedTuple):
    """Kernels for some devices: for which, judging by what they say of themselves, and how they are tried.

    plan says how to launch, and is None for what they do not take. trial runs a few of them; it raises BackendError if
    a result is wrong.
    """

    name: str
    stem: str
    may_suit: Callable[[Features], bool]
    plan: Callable[..., Any]
    trial: Callable[[Device], None]
    tells_precision: bool = False  # whether products of float32 may be less precise than float32 arithmetic


class Verdicts:
    """What was found of a device's variants and their programs, by name: empty if sound, else what is wrong."""

    def __init__(self, device: Device) -> None:
        cl_device = device.cl_device
        platform = cl_device.platform
        told = (ENTRY, platform.name, platform.version, cl_device.name, cl_device.version, cl_device.driver_version)
        self._store = store_of("\n".join(told))
        self._found: dict[str, str] = {}

    def get(self, name: str, find: Callable[[], str]) -> str:
        """What is known of something, or is found now."""
        if name not in self._found:
            self._found = {**self._read(), **self._found}
        if name not in self._found:
            self._found[name] = find()
            self._store.save(ENTRY, json.dumps({**self._read(), **self._found}).encode())
        return self._found[name]

    def _read(self) -> dict[str, str]:
        """Of two processes that write at once one has to find out again."""
        try:
            return dict(json.loads(self._store.load(ENTRY) or b"{}"))
        except ValueError:
            return {}

    def set_aside(self) -> dict[str, str]:
        """What is known to be wrong."""
        return {name: reason for name, reason in {**self._read(), **self._found}.items() if reason}


def is_sound(device: Device, variant: Variant) -> bool:
    """True if a variant may be used on a device; the first time on a driver it is tried in a process of its own."""
    return device.plans[_is_sound](variant)


def _is_sound(device: Device, variant: Variant) -> bool:
    wanted = os.environ.get("POLYARR_VARIANTS")  # for tests and measurements
    if not variant.may_suit(device.features) or (wanted is not None and variant.name not in wanted.split(",")):
        return False
    return not verdict(device, variant)


def verdict(device: Device, variant: Variant) -> str:
    """What is wrong with a variant; empty if nothing is."""
    return device.plans[Verdicts]().get(
        _key(variant.name, source_of(variant.stem)), lambda: _tried_apart(device, variant)
    )


def is_sound_program(device: Device, variant: Variant, macros: dict[str, Any], check: Callable[[], None]) -> bool:
    """True if one program of a sound variant computes rightly; check raises BackendError if it does not."""

    def find() -> str:
        try:
            check()
        except BackendError as error:
            return f"{' '.join(f'{k}={v}' for k, v in macros.items())}: {error}"
        return ""

    text = device.programs.text(variant.stem, macros)
    return not device.plans[Verdicts]().get(_key(variant.name, text), find)


def _key(name: str, text: str) -> str:
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _tried_apart(device: Device, variant: Variant) -> str:
    """What is wrong with a variant, found out by another process."""
    command = [sys.executable, "-m", "polyarr.backends.opencl.trial", device.name, variant.name]
    home = str(Path(__file__).parents[3])  # from where this process has polyarr
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    try:
        child = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=TRIAL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {TRIAL_SECONDS} s"
    except OSError as error:
        return f"no process to try it in: {error}"
    if child.returncode == 0:
        return ""
    lines = child.stderr.strip().splitlines()
    return lines[-1] if lines else f"the process that tried it ended with {child.returncode}"


def diagnose(device: Device, variants: tuple[Variant, ...]) -> list[tuple[str, str]]:
    """Lines for `polyarr doctor`: the variants that a device may be fit for, and what was set aside."""
    fit = [v for v in variants if v.may_suit(device.features)]
    lines = []
    for variant in fit:
        wrong = verdict(device, variant)
        state = ("warning", f"is set aside: {wrong}") if wrong else ("ok", "was tried on this driver, and is used")
        lines.append((state[0], f"{device.name}: the variant {variant.name} {state[1]}"))
    for name, reason in device.plans[Verdicts]().set_aside().items():
        if reason and not any(name == _key(v.name, source_of(v.stem)) for v in fit):
            lines.append(("warning", f"{device.name}: a program of {name.split()[0]} is set aside: {reason}"))
    return lines
