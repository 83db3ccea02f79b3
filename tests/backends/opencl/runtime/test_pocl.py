"""PoCL compiles for the host's processor: its name, registers filled by vectors, and the declarations that it reads."""

import os
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from tests.helpers.opencl_modules import opencl_modules

cl = pytest.importorskip("pyopencl")
pocl, devices, source, compiled = opencl_modules("pocl", "devices", "source", "compiled")
on_opencl = pytest.mark.polyarr_backend("opencl")

SSE = frozenset({"sse2", "sse4_1"})
AVX = SSE | {"avx"}
AVX2 = AVX | {"avx2", "fma"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}


@pytest.mark.parametrize(
    ("processor", "name", "floats", "features", "better"),
    [
        ("Zen 2", "znver2", 8, AVX2, None),
        ("Zen 3", "znver3", 8, AVX2, None),
        ("Zen 4, taken for Zen 3", "znver3", 8, AVX512, "skylake-avx512"),
        ("Zen 5", "generic", 0, AVX512, "skylake-avx512"),
        ("Zen 5, by a PoCL that builds for any x86-64", "generic", 4, AVX512, "skylake-avx512"),
        ("Zen 4, known by name", "znver4", 16, AVX512, None),
        ("Haswell", "haswell", 8, AVX2, None),
        ("Sandy Bridge", "sandybridge", 8, AVX, None),
        ("Skylake-AVX512", "skylake-avx512", 16, AVX512, None),
        ("Skylake-AVX512 in a machine without AVX-512", "skylake-avx512", 16, AVX2, "haswell"),
        ("Knights Landing, whose library is that of AVX2", "knl", 16, AVX2 | {"avx512f", "avx512cd"}, "haswell"),
        ("Sapphire Rapids", "sapphirerapids", 16, AVX512, None),
        ("newer than LLVM, without AVX-512", "generic", 0, AVX2, "haswell"),
        ("an emulator", "generic", 0, SSE, "penryn"),
        ("an emulator of the least", "generic", 0, frozenset({"sse2"}), "x86-64"),
        ("unheard of", "novel", 16, AVX512, None),
        ("unheard of and taken for less", "novel", 8, AVX512, "skylake-avx512"),
        ("a compiler that does not say", "znver3", pocl.UNKNOWN, AVX512, None),
        ("a system that does not say", "generic", 0, frozenset(), None),
        ("a name that was given already", "haswell", 4, AVX2, None),
    ],
)
def test_the_name_fits_the_library(processor, name, floats, features, better):
    assert pocl.better_name(name, floats, features) == better


@on_opencl
def test_nothing_is_left_to_mend(backend):
    """On any processor, compiler and library agree once the device has started."""
    device = devices.select().cl_device
    target = pocl.target_of(device)
    if not target:
        pytest.skip("no PoCL")
    assert pocl.better_name(target, pocl.compiled_floats(device), pocl.features_of_processor()) is None


# A processor whose LLVM name implies narrower registers than the built-in library uses.
MISNAMED = """
import ctypes
import numpy as np, pyopencl as cl
from polyarr.backends.opencl.runtime import pocl
from polyarr.backends.opencl.runtime.device import Device

platforms = [p for p in cl.get_platforms() if p.name == pocl.POCL]  # of several, one may keep the name elsewhere
device = next(d for p in platforms for d in p.get_devices() if pocl._slot(d.int_ptr, pocl.target_of(d)))
pocl.name_the_processor(device)
slot = pocl._slot(device.int_ptr, pocl.target_of(device))
ctypes.c_void_p.from_address(slot).value = ctypes.addressof(pocl._names["penryn"])
pocl._given[device.int_ptr] = "penryn"
assert pocl.compiled_floats(device) == 4
started = Device(device, "opencl:0")
x = np.linspace(0, 3, 8)
source = '''#pragma OPENCL EXTENSION cl_khr_fp64 : enable
__kernel void sines(__global const double8 *x, __global double8 *y) { y[0] = sin(x[0]); }'''
program = cl.Program(started.context, source).build(["-w"])
flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
before, after = (cl.Buffer(started.context, flags, hostbuf=host) for host in (x, np.zeros(8)))
program.sines(started.queue, (1,), (1,), before, after)
found = np.zeros(8)
cl.enqueue_copy(started.queue, found, after)
np.testing.assert_allclose(found, np.sin(x), rtol=1e-14)
print(pocl.target_of(device), pocl.compiled_floats(device))
"""


@on_opencl
def test_vectors_reach_the_built_in_functions(backend):
    """The library expects vectors in these registers: without the fix, sin(double8) is nan here."""
    device = devices.select().cl_device
    if not pocl.target_of(device) or not device.driver_version.startswith("3.0"):
        pytest.skip("no PoCL 3.0, which is the one that takes a processor for another")
    if not pocl.features_of_processor() >= AVX:
        pytest.skip("no registers wider than the narrowest")
    env = {**os.environ, "POLYARR_NO_CACHE": "1", "PYOPENCL_NO_CACHE": "1", "POCL_KERNEL_CACHE": "0"}
    done = subprocess.run([sys.executable, "-c", MISNAMED], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fitting = next(p for p in pocl.PROCESSORS if p.features <= pocl.features_of_processor())
    assert done.stdout.split() == [fitting.name, str(fitting.floats)]


@on_opencl
@pytest.mark.parametrize("kept", [None, b"", b"3", b"16\n", b"nonsense"])
def test_the_compiler_is_asked_once_for_a_target(backend, monkeypatch, kept):
    """A valid answer of an earlier process is reused; a failed compilation is repeated."""
    entries, asked, device = {}, [], devices.select().cl_device
    store = SimpleNamespace(load=entries.get, save=entries.__setitem__)
    monkeypatch.setattr(pocl, "store_of", lambda identity: store)
    answers = {"znver3": 8, "skylake-avx512": 16, "generic": 0}
    monkeypatch.setattr(pocl, "_ask", lambda device, target: asked.append(target) or answers[target])
    for _ in range(2):
        for target, floats in answers.items():
            pocl._answer.cache_clear()  # as in the next process
            assert pocl._answer(device, target) == floats
    assert asked == ["znver3", "skylake-avx512", "generic", "generic"]
    if kept is not None:
        entries.update(dict.fromkeys(entries, kept))
        pocl._answer.cache_clear()
        assert pocl._answer(device, "znver3") == 8
    pocl._answer.cache_clear()


@on_opencl
def test_caches_tell_targets_apart(backend, monkeypatch):
    """The source names the target, which the keys of PoCL's and PyOpenCL's caches lack."""
    program, programs, sources = import_module("polyarr.backends.opencl.runtime.program"), devices.select().programs, []
    monkeypatch.setattr(type(programs.compiler), "build", lambda self, name, source, _: sources.append(source) or 1 / 0)
    for target in ("znver3", "skylake-avx512"):
        monkeypatch.setattr(program, "target_of", lambda device, target=target: target)
        with pytest.raises(ZeroDivisionError):
            programs._build("random", {"STATE_ON_DEVICE": 0})
    assert sources[0] != sources[1]


# ---- declarations ----------------------------------------------------------------------------------------------


def started_on_pocl_3():
    device = devices.select()
    if not device.cl_device.driver_version.startswith("3.0") or not pocl.target_of(device.cl_device):
        pytest.skip("no PoCL 3.0")
    return device


@on_opencl
def test_programs_do_not_read_all_declarations(backend):
    """Functions that no kernel uses are declared only in clang's header, which has 18,500 lines."""
    device, foreign = started_on_pocl_3(), "__kernel void halve(__global float *x) { *x = degrees(*x); }"
    cl.Program(device.context, foreign).build(["-w"])
    with pytest.raises(cl.Error, match="implicit declaration"):
        compiler = device.programs.compiler
        compiler.build("halve", *compiler.completed(foreign, ["-w"]))


@on_opencl
def test_an_entry_is_of_the_declarations_too(backend, monkeypatch):
    """Otherwise entries compiled with other declarations would be found, be useless, and be replaced each time."""
    compiler, names = started_on_pocl_3().programs.compiler, []
    monkeypatch.setattr(type(compiler), "build", lambda self, name, *_: names.append(name) or 1 / 0)
    for text in (source.declarations(), "// others\n"):
        monkeypatch.setattr("polyarr.backends.opencl.runtime.compiled.declarations", lambda text=text: text)
        with pytest.raises(ZeroDivisionError):
            devices.select().programs._build("random", {"STATE_ON_DEVICE": 0})
    assert names[0] != names[1]


@on_opencl
@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ("TYPE VALUE NAME(TYPE x)", "float VALUE NAME(TYPE x)"),
        ("int VALUE NAME(TYPE x)", "long VALUE NAME(TYPE x)"),
        ("size_t VALUE get", "int VALUE get"),
        ("TYPE OVERLOADED atomic", "long OVERLOADED atomic"),
        ("float LOADED vload_half", "double LOADED vload_half"),
    ],
)
def test_what_is_declared_agrees_with_the_header(backend, ours, other):
    """After all of PoCL's declarations, ours are repetitions; an error in one is a conflict."""
    text, kernel = source.declarations(), "\n__kernel void none(void) {}"
    platforms = [platform for platform in cl.get_platforms() if pocl.POCL in platform.name]
    found = [device for platform in platforms for device in platform.get_devices()]
    reading = [device for device in found if device.driver_version.startswith(compiled.READING_DECLARATIONS)]
    if not reading:
        pytest.skip("no PoCL 3.0 or 3.1")
    assert ours in text
    for context in (cl.Context([device]) for device in reading):
        cl.Program(context, text + kernel).build(["-cl-std=CL1.2", "-w"])
        with pytest.raises(cl.Error, match="conflicting types"):
            cl.Program(context, text.replace(ours, other) + kernel).build(["-cl-std=CL1.2", "-w"])
