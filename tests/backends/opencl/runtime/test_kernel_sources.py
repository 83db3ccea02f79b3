"""Kernel sources are portable: compiler-specific builtins are guarded, and every source compiles to SPIR-V."""

import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import polyarr
from polyarr.core.current import use_backend
from polyarr.core.errors import BackendError
from tests.helpers.opencl_modules import opencl_modules
from tests.sanitize.cases import cases
from tests.sanitize.device import backend_of

device_module, devices, geometry, source = opencl_modules("device", "devices", "geometry", "source")
pytestmark = pytest.mark.polyarr_backend("opencl")
FILES = {path.name: path.read_text() for path in source.FILES.values()}
BACKEND = Path(source.__file__).parents[1]
DIRECTIVE = re.compile(r"\s*#\s*(if|elif|else|endif)\w*\b(.*)")
# Builtins of some compilers, and the macro that an #if around them must test.
GUARDED = {
    r"__builtin_\w+": r"^HAS_BUILTINS",
    r"\basm\b|__asm": r"ATOMICS == 2",
    r"min_vector_width|clang loop vectorize_width": r"__AVX512F__|HAS_BUILTINS",
}
NVIDIAS = re.compile(r'#include "(ptx|wgmma)\.cl"')  # in files that only variants load
NVIDIAS_OWN = ("ptx.cl", "wgmma.cl", "images.cl")
NVIDIAS_FILES = {path.name for path in (BACKEND / "nvidia").glob("*.cl")}
OTHER_ENTRY = re.compile(r" {2,}optional|those of |see stages.cl")  # of a list of macros
STRUCT = re.compile(r"typedef struct \{([^}]*)\} \w+;")


def unguarded(text: str, pattern: str, guard: str) -> list[str]:
    """Return the lines in which a pattern occurs outside every #if that tests the guard."""
    conditions: list[str] = []
    found = []
    for line in text.splitlines():
        if directive := DIRECTIVE.match(line):
            kind, condition = directive.groups()
            if kind != "if":
                conditions.pop()
            if kind != "endif":
                conditions.append(condition.strip())
        elif re.search(pattern, line.partition("//")[0]) and not any(re.search(guard, c) for c in conditions):
            found.append(line.strip())
    return found


@pytest.mark.parametrize(("pattern", "guard"), GUARDED.items(), ids=["builtins", "assembly", "vectors"])
def test_what_one_compiler_knows_stands_behind_a_guard(pattern, guard):
    portable = {name: text for name, text in FILES.items() if not NVIDIAS.search(text) and name not in NVIDIAS_OWN}
    assert {name: lines for name, text in portable.items() if (lines := unguarded(text, pattern, guard))} == {}
    planted = "#if ATOMICS == 1 && __AVX2__\nasm(); __builtin_prefetch(p); min_vector_width\n#endif\n"
    assert unguarded(planted, pattern, guard)


def test_generated_statements_use_no_builtins():
    """Python generates parts of the sources of elementwise kernels and fused groups."""
    texts = {path.name: path.read_text() for path in BACKEND.rglob("*.py")}
    assert not [name for name, text in texts.items() if "__builtin_" in text]


def test_structs_have_no_arrays_of_arrays():
    """Mesa's compiler treats them as one-dimensional, so clSetKernelArg refuses the struct's real size."""
    found = {name: STRUCT.findall(text) for name, text in FILES.items()}
    assert [name for name, structs in found.items() if any("][" in members for members in structs)] == []
    assert STRUCT.findall("typedef struct {\n    long n[2][NDIM];\n} Layout;") == ["\n    long n[2][NDIM];\n"]


# ---- SPIR-V ------------------------------------------------------------------------------------------------------


class NoKernel:
    """A kernel that computes nothing."""

    is_kernel = has_run = True
    arguments, in_place = None, ()

    def __init__(self, name: str) -> None:
        self.name, self.twin = name, self

    def __call__(self, *args: object) -> None:
        """Enqueue nothing."""


class Recorder(device_module.Device):
    """A device that keeps the source of each program instead of compiling it."""

    def __init__(self, is_cpu: bool) -> None:
        super().__init__(devices.select().cl_device, "recorder")
        self.features = self.features._replace(is_cpu=is_cpu)
        self.geometry, self.sources = geometry.geometry_of(self.features), dict[str, str]()
        self.geometry.sort_tile, self.geometry.sort_long, self.geometry.sort_merges = 64, 1000, 0.5

    def build(self, stem: str, **defines: object) -> SimpleNamespace:
        """Return fake kernels by name; keep the first source of each file."""
        self.sources.setdefault(stem, self.programs.text(stem, {"IS_CPU": int(self.features.is_cpu), **defines}))
        kernels = {name: NoKernel(name) for name in source.arguments_of(stem, {})}
        return SimpleNamespace(kernels=kernels, **kernels)

    def _allocate(self, nbytes: int) -> object:
        memory = super()._allocate(nbytes)
        self.commands.fill((-(-nbytes // 4) * 4,), None, memory)  # a value read back may be a length
        return memory


def sources(is_cpu: bool) -> dict[str, str]:
    """A source of each file that the sanitizer's cases need, by file name."""
    device = Recorder(is_cpu)
    with use_backend(backend_of(device, Counter())):
        for case in cases():
            with suppress(AssertionError, AttributeError):  # raised by cases that inspect results or real kernels
                if case.backward:
                    value, pull = polyarr.vjp(case.fn, *case.arrays)
                    pull(polyarr.ones_like(value))
                else:
                    case.fn(*case.arrays)
    return device.sources


def tool(name: str) -> str:
    """Return an LLVM program, with or without a version in its name; skip the test if there is none."""
    names = [name, *(f"{name}-{version}" for version in range(30, 10, -1))]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"kernels were not compiled to SPIR-V: no {name}; install clang and llvm-spirv")
    return found


def spirv_problem(text: str, folder: Path, name: str) -> str:
    """Return the errors of compiling a source to SPIR-V as Mesa does; "" if there are none."""
    bitcode, log = folder / f"{name}.bc", {"text": True, "capture_output": True, "check": False}
    options = ["-O0", "-x", "cl", "-cl-std=CL1.2", "-target", "spir64", "-Wno-everything", "-Wpadded", "-emit-llvm"]
    compiled = subprocess.run([tool("clang"), "-c", *options, "-o", bitcode, "-"], input=text, **log)
    if compiled.stderr:
        return compiled.stderr
    translated = subprocess.run([tool("llvm-spirv"), bitcode, "-o", folder / f"{name}.spv"], **log)
    return translated.stderr or "llvm-spirv failed" * (translated.returncode != 0)


def test_all_kernels_compile_to_spirv(backend, tmp_path):
    """Also, no struct ends with padding, which Mesa's compiler does not count."""
    tool("clang"), tool("llvm-spirv")
    found = {**sources(is_cpu=False), **sources(is_cpu=True)}
    stated = {name for name, text in FILES.items() if "__kernel" in text and not NVIDIAS.search(text)} - {"prelude.cl"}
    assert {f"{stem}.cl" for stem in found} == stated
    with ThreadPoolExecutor(2) as threads:
        problems = threads.map(lambda name: spirv_problem(found[name], tmp_path, name), found)
        assert {name: problem for name, problem in zip(found, problems, strict=True) if problem} == {}


@pytest.mark.parametrize(
    ("planted", "complaint"),
    [
        ("kernel void k(global float *p) { __builtin_prefetch(p); }", "prefetch"),
        ("typedef struct { long n; int i; } S; kernel void k(const S s) {}", "padding"),
    ],
)
def test_the_check_sees(planted, complaint, tmp_path):
    assert complaint in spirv_problem(planted, tmp_path, "planted")


# ---- macros ------------------------------------------------------------------------------------------------------


def test_headers_list_macros_in_a_form_that_is_checked():
    listed = {name: source.PARAMS.search(text) for name, text in FILES.items() if name not in NVIDIAS_FILES}
    entries = [line for header in listed.values() if header for line in header[0].splitlines() if line[12:13].strip()]
    unknown = [line for line in entries if not (source.ENTRY.match(line) or OTHER_ENTRY.search(line))]
    assert unknown == []
    assert not source.ENTRY.match("//          PAIR type of a complex number")


@pytest.mark.parametrize(
    ("stem", "macros"),
    [
        ("gelu", {"ACTIVATION", "VECTOR"}),
        ("spread", {"WIDE", "T"}),  # those of an included file
        ("elementwise", {"LOADS", "NDIM"}),  # a macro with a parameter
        ("reduce", {"JOIN"}),  # an included file defines it if it is missing
    ],
)
def test_a_program_needs_the_macros_of_its_header(stem, macros):
    programs = Recorder(is_cpu=True).programs
    defines = dict.fromkeys(source.needed(stem) - macros, 1)
    with pytest.raises(BackendError, match=rf"{stem}.cl needs {', '.join(sorted(macros))}; given are "):
        programs.text(stem, defines)
    assert programs.text(stem, {f"{name}(j)": 1 for name in source.needed(stem)})
