"""Kernel sources are portable: compiler-specific builtins are guarded, and every source compiles to SPIR-V."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polyarr.core.errors import BackendError
from tests.helpers.opencl_modules import opencl_modules

source, program = opencl_modules("source", "program")
from tests.platforms import offline  # noqa: E402

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
OTHER_ENTRY = re.compile(r" {2,}optional|those of |see \w+\.cl")  # of a list of macros
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


def compilers() -> None:
    """Skip the test where clang or llvm-spirv is not installed."""
    try:
        offline.tool("clang"), offline.tool("llvm-spirv")
    except FileNotFoundError as error:
        pytest.skip(f"kernels were not compiled to SPIR-V: {error}")


def test_all_kernels_compile_to_spirv(backend):
    """Also, no struct ends with padding, which Mesa's compiler does not count."""
    compilers()
    found = {stem: text for device in (offline.CPU, offline.AMD) for stem, text in offline.programs(device)}
    stated = {name for name, text in FILES.items() if "__kernel" in text and not NVIDIAS.search(text)} - {"prelude.cl"}
    assert {f"{stem}.cl" for stem in found} == stated
    with ThreadPoolExecutor(2) as threads:
        problems = threads.map(lambda text: offline.spirv_problem(text, "spir64"), found.values())
        assert {name: problem for name, problem in zip(found, problems, strict=True) if problem} == {}


@pytest.mark.parametrize(
    ("planted", "complaint"),
    [
        ("kernel void k(global float *p) { __builtin_prefetch(p); }", "prefetch"),
        ("typedef struct { long n; int i; } S; kernel void k(const S s) {}", "padding"),
    ],
)
def test_the_check_sees(planted, complaint):
    compilers()
    assert complaint in offline.spirv_problem(planted, "spir64")


@pytest.mark.parametrize(
    ("planted", "complaint"),
    [
        ("kernel void k(global float *p) { p[0] = sub_group_reduce_add(p[1]); }", "sub_group_reduce_add"),
        ("__attribute__((reqd_work_group_size(512, 1, 1))) kernel void k(global float *p) { p[0] = 1; }", "512"),
        ("kernel void k(global float *p) { volatile local float s[9999]; s[9] = p[0]; p[1] = s[9]; }", "local"),
    ],
)
def test_the_check_for_amd_sees(planted, complaint):
    compilers()
    device = offline.AMD._replace(local_memory=2**15)
    assert complaint in offline.amd_problem(planted, "gfx1030", device)


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
        ("depthwise", {"WIDE", "T"}),  # those of an included file
        ("elementwise", {"LOADS", "NDIM"}),  # a macro with a parameter
        ("reduce", {"JOIN"}),  # an included file defines it if it is missing
    ],
)
def test_a_program_needs_the_macros_of_its_header(stem, macros):
    programs = offline.Recorder(offline.CPU).programs
    defines = dict.fromkeys(source.needed(stem) - macros, 1)
    with pytest.raises(BackendError, match=rf"{stem}.cl needs {', '.join(sorted(macros))}; given are "):
        programs.text(stem, defines)
    assert programs.text(stem, {f"{name}(j)": 1 for name in source.needed(stem)})


def test_the_error_for_a_function_that_builtins_lacks_says_where_to_declare_it():
    said = "clBuildProgram failed\n\nBuild on <device>:\n\n" + 2 * (
        "error: a.cl:3:5 <Spelling=_builtin_renames.h:9:24>: implicit declaration of function '_cl_isnan' is invalid\n"
    )
    log = program._compiler_log(said)
    assert log.splitlines()[1:] == ["if isnan is a function of OpenCL C, declare it in kernels/builtins.cl"]
    assert "builtins" not in program._compiler_log("x\n\nBuild on <device>:\n\na.cl:3:5: error: expected ';'\n")
