"""Variants: the ways to compute the problems of a family of ops, in the order in which they are asked.

Some are for the devices of one vendor and are checked before they are used; see docs/decisions/0016. Each of their
programs is checked once per driver with a small problem, between canaries, in a probe process, because
a kernel that faults disables the device for its process. The verdict is stored with the compiled kernels. A program
that fails is not used, and `polyarr doctor` reports it.
"""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from polyarr.backends.opencl.runtime.caches import Store, store_of
from polyarr.backends.opencl.runtime.device import Device, Features
from polyarr.backends.opencl.runtime.probes import NotTriedError, ProbeProcesses
from polyarr.backends.opencl.runtime.source import source_of
from polyarr.settings import level

TRACED = level("POLYARR_TRACE") > 0
ENTRY = "variants"  # name of the entry in the driver's store


class Variant(NamedTuple):
    """One way to compute the problems of a family.

    Attributes:
        serves: The problems and devices that it is for, as docs/kernels.md says it.
        plan: Called with a device and a problem; returns how to launch, or a result, and None if it is not for them.
        kind: The kind of device that it is for, "cpu" or "gpu"; "" for both.
        may_suit: Whether it may work, judging by a device's features.
        stem: The kernel file of a variant that is checked before it is used.
        trial: Checks a few programs, for `polyarr doctor`; raises BackendError if a result is wrong.
        tells_precision: Whether products of float32 may be less precise than float32 arithmetic.
    """

    name: str
    serves: str
    plan: Callable[..., Any]
    kind: str = ""
    may_suit: Callable[[Features], bool] = lambda features: True
    stem: str = ""
    trial: Callable[[Device], None] | None = None
    tells_precision: bool = False


def choose(device: Device, family: str, variants: Iterable[Variant], *problem: Any) -> Any:
    """Return what the first variant that accepts a problem makes of it; None if none does.

    POLYARR_TRACE prints the choice, once per problem where plans are cached.
    """
    for variant in variants:
        if variant.kind in ("", device.geometry.kind):
            found = variant.plan(device, *problem)
            if found is not None:
                note_choice(device, family, variant)
                return found
    return None


def note_choice(device: Device, family: str, variant: Any) -> None:
    """Print which variant computes a problem, and why."""
    if TRACED and device.computes:
        with suppress(OSError, ValueError, AttributeError):  # stderr is closed or missing
            sys.stderr.write(f"  {device.name}: {family}: {variant.name} ({variant.serves})\n")


def kept_on(device: Device, entry: str) -> Store:
    """Return the store of results about a device and its driver."""
    cl_device = device.cl_device
    platform = cl_device.platform
    identity = (entry, platform.name, platform.version, cl_device.name, cl_device.version, cl_device.driver_version)
    return store_of("\n".join(identity))


class Verdicts:
    """The verdicts about a device's variants and their programs, by name: empty if sound, else what is wrong."""

    def __init__(self, device: Device) -> None:
        self._store, self._programs = kept_on(device, ENTRY), device.programs
        self._found: dict[str, str] = {}
        self._device, self._has_warned = device.name, False
        self.probes = ProbeProcesses(device.name)

    def get(self, name: str, find: Callable[[], str]) -> str:
        """Return a known verdict, or find and store it."""
        if name not in self._found:
            self._found = {**self._read(), **self._found}
        if name not in self._found:
            try:
                self._found[name] = find()
            except NotTriedError as error:
                self._found[name] = str(error)
                self._warn(
                    f"kernels of the variant {name.partition(' ')[0]} could not be tried in a process of their own, so "
                    f"slower ones are used until this process ends: {error}"
                )
                return self._found[name]
            self._store.save(ENTRY, json.dumps({**self._read(), name: self._found[name]}).encode())
        return self._found[name]

    def _warn(self, message: str) -> None:
        """Warn, once, that faster kernels are not used."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{self._device}: {message}", RuntimeWarning, stacklevel=2)

    def of_program(self, name: str, macros: dict[str, Any], text: str, check: partial) -> str:
        """Return what is wrong with a program of a variant: see is_sound_program."""

        def find() -> str:
            if text not in self._programs.jobs:
                self._programs.look_ahead()
            job = self._programs.jobs.pop(text, None)
            wrong = job.result() if job else self.probes.wrong(check.func, *check.args[1:])
            return wrong and f"{' '.join(f'{k}={v}' for k, v in macros.items())}: {wrong}"

        wrong = self.get(_key(name, text), find)
        if wrong:
            self._warn(
                f"a kernel of the variant {name} is set aside, so a slower one is used; `polyarr doctor` lists all of "
                f"them: {wrong}"
            )
        return wrong

    def is_found(self, name: str, text: str) -> bool:
        """Return whether the verdict about a program of a variant is known."""
        key = _key(name, text)
        return key in self._found or key in self._read()

    def _read(self) -> dict[str, str]:
        """Return the stored verdicts. If two processes write at once, one verdict is found again later."""
        try:
            return dict(json.loads(self._store.load(ENTRY) or b"{}"))
        except ValueError:
            return {}

    def known(self, name: str) -> str:
        """Return what is known to be wrong; empty if nothing is, or if it was never checked."""
        return self._found.get(name) or self._read().get(name, "")

    def set_aside(self) -> dict[str, str]:
        """Return everything that is known to be wrong."""
        return {name: reason for name, reason in {**self._read(), **self._found}.items() if reason}


def is_sound(device: Device, variant: Variant) -> bool:
    """Return whether programs of a variant may be checked and used on a device."""
    return device.plans[_is_sound](variant)


def _is_sound(device: Device, variant: Variant) -> bool:
    wanted = os.environ.get("POLYARR_VARIANTS")  # for tests and measurements
    if not variant.may_suit(device.features) or (wanted is not None and variant.name not in wanted.split(",")):
        return False
    return not device.plans[Verdicts]().known(_key(variant.name, source_of(variant.stem)))


def verdict(device: Device, variant: Variant) -> str:
    """Return what is wrong with a variant's own trial; empty if nothing is."""
    verdicts = device.plans[Verdicts]()
    return verdicts.get(_key(variant.name, source_of(variant.stem)), lambda: verdicts.probes.wrong(variant.trial))


def is_sound_program(device: Device, variant: Variant, macros: dict[str, Any], check: partial) -> bool:
    """Return whether one program of a variant computes correctly, which is checked once.

    check is a partial of a module's function with the device as its first argument; it raises BackendError if a result
    is wrong. This process takes the compiled program from the driver's cache, if there is one.
    """
    text = device.programs.text(variant.stem, macros)
    return not device.plans[Verdicts]().of_program(variant.name, macros, text, check)


def _key(name: str, text: str) -> str:
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def diagnose(device: Device, variants: tuple[Variant, ...]) -> list[tuple[str, str]]:
    """Return lines for `polyarr doctor`: the variants that may suit a device, and programs that are not used."""
    fit = [v for v in variants if v.may_suit(device.features)]
    lines = []
    for variant in fit:
        wrong = verdict(device, variant)
        state = ("warning", f"is set aside: {wrong}") if wrong else ("ok", "was tried on this driver, and is used")
        lines.append((state[0], f"{device.name}: the variant {variant.name} {state[1]}"))
    whole, names = {_key(v.name, source_of(v.stem)) for v in fit}, {v.name for v in variants}
    for name, reason in device.plans[Verdicts]().set_aside().items():
        if name.split()[0] in names and name not in whole:
            lines.append(("warning", f"{device.name}: a program of {name.split()[0]} is set aside: {reason}"))
    return lines
