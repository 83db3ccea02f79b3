"""Builds programs, and reuses compiled ones: the driver's own cache, saved binaries, or PoCL's files.

A program's name is the checksum of everything that it is compiled from. What is saved under the name goes through
`caches.Store`, so that a driver gets it complete or not at all.
"""

import io
import os
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pyopencl as cl
from pyopencl import _cl

from polyarr.backends.opencl.runtime.caches import Store, lacks, run_folder, store_of
from polyarr.backends.opencl.runtime.pocl import questions
from polyarr.backends.opencl.runtime.quirks import NVIDIA, POCL
from polyarr.backends.opencl.runtime.source import declarations
from polyarr.core.errors import BackendError

SILENT = "-w"  # the option without which a build warns, so that it is to be built anew
LIFTED = "//@ "  # hides a line of PTX in a comment until the PTX is assembled again
# Belongs to a kernel's head; stands in its body behind another mark.
HEADED = re.compile(r"(\.reqntid[^\n]*\n)((?:(?!\.entry).)*?)//\^ ([^\n]*)\n", re.DOTALL)
TARGET = re.compile(r"(\.target\s+sm_\d+)\b")  # with an "a" behind it, allows instructions of that architecture only
READING_DECLARATIONS = "3.0", "3.1"  # versions of PoCL that were found to parse all declarations for each program
STAMP = "last_accessed"  # PoCL writes it into the folder of a program that it builds


class Compiler:
    """Compiler for drivers that cache what they compile, and check it.

    Attributes:
        unsaved: Names of the programs that have run since the queue was last empty, and that `keep` is to save.
    """

    def __init__(self, context: cl.Context) -> None:
        self._context, self.unsaved = context, set[str]()

    def completed(self, source: str, options: list[str]) -> tuple[str, list[str]]:
        """Return source and options as the driver gets them; the program's name is their checksum."""
        return source, options

    def build(self, name: str, source: str, options: list[str]) -> Any:
        """Return the built program."""
        return self.built(source, options)

    def built(self, source: str, options: list[str]) -> cl.Program:
        """Return the program built from source."""
        # PyOpenCL's own Program adds its include folder to the options, so drivers would miss their cache wherever
        # PyOpenCL is installed anew.
        program = _cl._Program(self._context, source)
        program.build(" ".join(options).encode())
        return cl.Program(program)

    def is_slow(self, name: str) -> bool:
        """Return whether it pays to have a program built by another process meanwhile."""
        return False

    def launched(self, name: str) -> None:
        """Note that a kernel of a program is about to run for the first time."""

    def keep(self) -> None:
        """Save what has run since the last call. The queue is empty."""

    def keep_all(self) -> None:
        """Save everything at the end of the process."""


class NvidiaCompiler(Compiler):
    """Compiler for NVIDIA's driver, which produces PTX that is assembled in a second step.

    Instructions of one architecture stand behind LIFTED in inline PTX.
    """

    def build(self, name: str, source: str, options: list[str]) -> Any:
        """Return the built program, with the PTX behind LIFTED if there is any."""
        program = self.built(source, options)
        if LIFTED not in source:
            return program
        text = self.lifted(self.ptx(program), source)
        return cl.Program(self._context, self._context.devices, [text.encode()]).build()

    @staticmethod
    def ptx(program: cl.Program) -> str:
        """Return a program's PTX."""
        return str(program.binaries[0].decode().rstrip("\0"))

    @staticmethod
    def lifted(text: str, source: str) -> str:
        """Return PTX with the instructions of one architecture that its source hides."""
        if LIFTED not in source:
            return text
        text = HEADED.sub(r"\1\3\n\2", text.replace(LIFTED, ""))
        return TARGET.sub(r"\1a", text, count=1)


class BinaryCompiler(Compiler):
    """Compiler for drivers without a cache: their binaries are saved."""

    def __init__(self, context: cl.Context, store: Store) -> None:
        super().__init__(context)
        self._store, self._built = store, dict[str, cl.Program]()

    def build(self, name: str, source: str, options: list[str]) -> cl.Program:
        """Return the program built from its saved binary, if the driver accepts it, or else from source."""
        binary = self._store.load(name)
        if binary is not None:
            with suppress(cl.Error):
                return cl.Program(self._context, self._context.devices, [binary]).build(options)
        self._built[name] = program = super().build(name, source, options)
        return program

    def launched(self, name: str) -> None:
        """Note a launch, if the program was built from source and is to be saved."""
        if name in self._built:
            self.unsaved.add(name)

    def keep(self) -> None:
        """Save the binaries of programs that have run."""
        while self.unsaved:
            name = self.unsaved.pop()
            self._store.save(name, self._built.pop(name).binaries[0])


class PoclCompiler(Compiler):
    """Compiler for PoCL, which keeps files in a folder per program, adds to them when kernels run, and trusts them.

    Attributes:
        reads_declarations: Whether PoCL parses declarations of all OpenCL functions for each program, unless prevented.
    """

    _known: ClassVar[set[str]] = set()  # the folders in the run folder that were seen
    _questions: ClassVar[int] = 0  # the questions whose folders are among them

    def __init__(self, context: cl.Context, store: Store, reads_declarations: bool) -> None:
        super().__init__(context)
        self._store, self._reads_declarations = store, reads_declarations
        found = run_folder()
        self._run: Path | None = None if isinstance(found, str) else found.path
        self._trouble = found if isinstance(found, str) else ""
        self._made: dict[str, Path] = {}  # PoCL's folder of a program
        self._kept: dict[str, set[str]] = {}  # the files in a program's entry

    def completed(self, source: str, options: list[str]) -> tuple[str, list[str]]:
        """Return source and options, with only the declarations that kernels need if PoCL would parse all."""
        return (declarations() + source, [*options, "-D_OPENCL_H_"]) if self._reads_declarations else (source, options)

    def build(self, name: str, source: str, options: list[str]) -> cl.Program:
        """Return the built program; its entry is unpacked before.

        Raises:
            BackendError: There is no space to compile.
        """
        self._make_room()
        self._unpack(name)
        self._skip_questions()
        program = super().build(name, source, options)
        self._find(name)
        return program

    def launched(self, name: str) -> None:
        """Note a launch: PoCL compiles a kernel when it first runs.

        Raises:
            BackendError: There is no space to compile.
        """
        self._make_room()
        self.unsaved.add(name)

    def keep(self) -> None:
        """Save the programs of which a kernel has run."""
        if self.unsaved:
            names, self.unsaved = self.unsaved, set()
            self._keep(names)

    def keep_all(self) -> None:
        """Save all programs, whose kernels may have been compiled for further work-group sizes."""
        self._keep(set(self._made))

    def _make_room(self) -> None:
        lacking = lacks(self._run) if self._run else ""
        if trouble := f"{self._run}: {lacking}" if lacking else self._trouble:  # PoCL would end the process
            raise BackendError(f"opencl: no kernel can be compiled, for want of a folder to do it in: {trouble}")

    def _unpack(self, name: str) -> None:
        folder = self._run
        content = self._store.load(name) if folder else None
        if folder is None or content is None:
            return
        try:
            entry = zipfile.ZipFile(io.BytesIO(content))
        except zipfile.BadZipFile:  # a valid checksum of invalid content
            entry = None
        if entry is None or not (files := entry.namelist()):
            self._store.forget(name)
            return
        # Files that exist may have been loaded: a library in use must not change.
        missing = [file for file in files if not (folder / file).exists()]
        try:
            entry.extractall(folder, missing)
        except OSError:  # no space: PoCL must not find a part of a file
            for file in missing:
                (folder / file).unlink(missing_ok=True)
            return
        self._made[name], self._kept[name] = folder.joinpath(*Path(files[0]).parts[:2]), set(files)
        self._known.add(str(self._made[name]))

    def _skip_questions(self) -> None:
        """Take no program with which PoCL was asked about its compiler for one that is built next."""
        if self._run and questions() != PoclCompiler._questions:
            PoclCompiler._questions = questions()
            self._known.update(map(str, self._unknown()))

    def _find(self, name: str) -> None:
        """Find the folder of a program that was just built."""
        if self._run is None or (name in self._made and (self._made[name] / STAMP).exists()):
            return
        new = {folder for folder in self._unknown() if (folder / STAMP).exists()}
        self._known.update(map(str, new))
        self._made.pop(name, None)
        self._kept.pop(name, None)
        if len(new) == 1:  # otherwise other threads build programs, too
            self._made[name] = new.pop()

    def _unknown(self) -> list[Path]:
        """Return the folders of programs that were not seen; there may be thousands of folders in all."""
        found = []
        for first in filter(os.DirEntry.is_dir, os.scandir(self._run)):
            found += [Path(folder.path) for folder in os.scandir(first) if folder.path not in self._known]
        return found

    def _keep(self, names: set[str]) -> None:
        if (run := self._run) is None:
            return
        for name in names & self._made.keys():
            paths = [p for p in self._made[name].rglob("*") if p.is_file() and p.name != STAMP]
            files = {str(p.relative_to(run)): p for p in paths}
            if files and files.keys() != self._kept.get(name):  # no files: the folder was removed
                self._save(name, files)

    def _save(self, name: str, files: dict[str, Path]) -> None:
        content = io.BytesIO()
        with suppress(OSError), zipfile.ZipFile(content, "w") as entry:
            for file, path in sorted(files.items()):
                entry.write(path, file)
            entry.close()
            self._store.save(name, content.getvalue())
            self._kept[name] = set(files)


def compiler_of(context: cl.Context, device: cl.Device) -> Compiler:
    """Return the compiler for a device."""
    platform = device.platform
    if NVIDIA in platform.name:
        return NvidiaCompiler(context)
    if POCL not in platform.name:
        return BinaryCompiler(context, programs_of(device))
    reads_declarations = device.driver_version.startswith(READING_DECLARATIONS)
    return PoclCompiler(context, programs_of(device), reads_declarations)


def programs_of(device: cl.Device) -> Store:
    """Return the store of a device's compiled programs."""
    platform = device.platform
    identity = (platform.name, platform.version, device.name, device.version, device.driver_version, _processor(device))
    return store_of("\n".join(identity))


def _processor(device: cl.Device) -> str:
    """Return the processor's features: processors of one name may differ, and binaries depend on them."""
    if not device.type & cl.device_type.CPU or not Path("/proc/cpuinfo").exists():
        return ""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line for line in file if line.startswith(("flags", "Features"))), "")
