"""Quirks of OpenCL drivers: the table, its page, doctor's lines; and devices with little local memory."""

from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from polyarr.backends.opencl.runtime import quirks
from polyarr.backends.opencl.runtime.quirks import INTEL, NVIDIA, POCL, QUIRKS, RUSTICL, Quirk, quirks_of
from polyarr.cli.doctor import COLOURS
from polyarr.core.backend import Backend
from polyarr.core.errors import BackendError
from polyarr.core.spec import bfloat16, complex64, complex128, float32, float64
from polyarr.testing import contract
from tests.helpers.root import ROOT

PAGE = ROOT / "docs" / "opencl-drivers.md"
LITTLE = 32 * 1024  # the minimum of local memory in OpenCL, in bytes
DEVICE = "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-"
on_opencl = pytest.mark.polyarr_backend("opencl")

# ---- the table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "version", "word", "is_known"),
    [
        (POCL, f"3.0-rc2 {DEVICE}generic", "'generic'", True),
        (POCL, f"3.0-rc2 {DEVICE}haswell", "'generic'", False),
        (POCL, f"5.0 {DEVICE}generic", "'generic'", True),
        (POCL, f"3.0-rc2 {DEVICE}haswell", "allocates", True),
        (POCL, f"5.0 {DEVICE}haswell", "allocates", True),
        (POCL, f"5.0 {DEVICE}haswell", "vload8", False),  # its device is OpenCL 3.0 nevertheless
        (POCL, f"7.1 {DEVICE}haswell", "wrongly", True),
        (NVIDIA, "580.95.05 OpenCL 3.0 CUDA", "cl_khr_fp16", True),
        (NVIDIA, "999.1 OpenCL 3.0 CUDA", "cl_khr_fp16", False),
        (NVIDIA, "999.1 OpenCL 3.0 CUDA", "installed", True),  # all versions
        (INTEL, "2026.22.10.0.01_160000 OpenCL 3.1 (Build 0)", "log", True),
        (RUSTICL, "22.3.6 OpenCL 3.0", "padding", True),
        (RUSTICL, "25.1.0 OpenCL 3.0", "padding", False),
        (RUSTICL, "25.1.0 OpenCL 3.0", "65,535", True),
        (f"{INTEL} Graphics", "2026.22.10.0.01_160000 OpenCL 3.0", "log", False),  # another driver of the same vendor
    ],
)
def test_a_row_applies_to_its_platform_and_versions(platform, version, word, is_known):
    assert any(word in quirk.flaw for quirk in quirks_of(platform, version)) == is_known


def test_an_unknown_driver_has_no_quirks():
    assert quirks_of("Some Other Platform", "1.0 OpenCL 1.2") == []


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.flaw)
def test_a_row_reads_well(quirk):
    """Both texts fit into a sentence, and doctor knows the level."""
    assert quirk.level in COLOURS
    for text in (quirk.flaw, quirk.answer):
        assert text == text.strip() and text[0].islower() and text[-1] not in ".;|" and "\n" not in text


def test_the_page_shows_the_table():
    """All rows, in the same order."""
    rows = [line for line in PAGE.read_text().partition("\n| platform |")[2].splitlines() if line.startswith("| ")]
    versions = [f"`{quirk.versions}`" if quirk.versions else "all" for quirk in QUIRKS]
    assert rows == [f"| {q.platform} | {v} | {q.flaw} | {q.answer} |" for q, v in zip(QUIRKS, versions, strict=True)]


@on_opencl
def test_doctor_prints_the_rows_that_apply(backend, monkeypatch):
    """One line per device and row, with the row's level."""
    rows = (Quirk("*", "*OpenCL*", "hums", "listens", "warning"), Quirk("No Such Platform", "", "barks", "runs"))
    monkeypatch.setattr(quirks, "QUIRKS", rows)
    devices = import_module("polyarr.backends.opencl.devices")
    lines = devices.diagnose()
    for found in devices.listing():
        assert ("warning", f"opencl:{found.index}: the driver hums; polyarr listens") in lines
    assert not any("barks" in text for _, text in lines)


@on_opencl
def test_doctor_finds_a_driver_that_is_not_registered(backend, monkeypatch, tmp_path):
    """A library that loads, of a platform that is not listed; a missing one is not reported."""
    devices = import_module("polyarr.backends.opencl.devices")
    loads = import_module("_ctypes").__file__
    monkeypatch.setattr(devices, "LIBRARIES", {"Unseen": loads, "Missing": str(tmp_path / "libmissing.so")})
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    errors = [text for level, text in devices.diagnose() if level == "error"]
    assert any(t.startswith("Unseen: ") and loads in t and f"OCL_ICD_VENDORS={tmp_path}" in t for t in errors)
    assert not any(text.startswith("Missing: ") for text in errors)


@on_opencl
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe\x80", "the file cannot be read"),
        (b"lib\0x.so", "null"),
        (b"libnosuchdriver.so", "libnosuchdriver.so"),
    ],
)
def test_doctor_goes_on_after_a_broken_registration(backend, monkeypatch, tmp_path, content, problem):
    """The line names the file, and all other lines are there."""
    devices = import_module("polyarr.backends.opencl.devices")
    (tmp_path / "broken.icd").write_bytes(content)
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    lines = devices.diagnose()
    assert [level for level, text in lines if "broken.icd registers" in text and problem in text] == ["warning"]
    assert any(text.endswith(" computes") for _, text in lines)


@on_opencl
def test_no_device_is_put_down_to_what_hides_it(backend, monkeypatch):
    """POCL_DEVICES=none is no fault of the cache."""
    devices = import_module("polyarr.backends.opencl.devices")
    if POCL not in {p.name for p in devices._platforms()}:
        pytest.skip("PoCL is not here")
    monkeypatch.setenv("POCL_DEVICES", "none")
    assert "; POCL_DEVICES=none leaves PoCL none: unset it" in devices._nothing_found()
    monkeypatch.delenv("POCL_DEVICES")
    monkeypatch.setattr(devices.caches, "run_folder", lambda: "/here: no space left")
    assert "; PoCL has no folder to compile in: /here: no space left" in devices._nothing_found()


@on_opencl
def test_mesa_without_a_device_names_the_setting(backend, monkeypatch):
    devices = import_module("polyarr.backends.opencl.devices")
    monkeypatch.setattr(devices, "_platforms", lambda: [SimpleNamespace(name=RUSTICL)])
    monkeypatch.delenv("RUSTICL_ENABLE", raising=False)
    assert devices._nothing_found().endswith("unless RUSTICL_ENABLE names a driver: radeonsi, iris, llvmpipe")
    monkeypatch.setenv("RUSTICL_ENABLE", "iris")
    assert devices._nothing_found().endswith("without a device: rusticl")


@on_opencl
def test_a_driver_that_doctor_warns_of_comes_after_others_of_its_kind(backend, monkeypatch):
    """Debian's PoCL 7.1 has the name of the tested one, and may be found before it."""
    devices = import_module("polyarr.backends.opencl.devices")
    kinds = devices.cl.device_type

    def device(platform, version, kind):
        return SimpleNamespace(type=kind, name=version, driver_version=version, version="OpenCL 3.0",
                               platform=SimpleNamespace(name=platform))  # fmt: skip

    there = [device(POCL, "7.1", kinds.CPU), device(POCL, "3.0", kinds.CPU), device(RUSTICL, "25.0", kinds.GPU)]
    monkeypatch.setattr(devices, "_platforms", lambda: [None])
    monkeypatch.setattr(devices, "_devices_of", lambda _: there)
    assert [found.name for found in devices._found.__wrapped__()] == ["25.0", "3.0", "7.1"]


# ---- kernels for another kind of device --------------------------------------------------------------------------


@on_opencl
@pytest.mark.parametrize(
    ("kind", "platform", "wanted", "expected"),
    [
        ("CPU", POCL, "", "cpu"), ("CPU", RUSTICL, "", "gpu"), ("GPU", RUSTICL, "", "gpu"), ("GPU", NVIDIA, "", "gpu"),
        ("CPU", RUSTICL, "cpu", "cpu"), ("CPU", POCL, "gpu", "gpu"),
    ],
)  # fmt: skip
def test_which_kernels_a_device_gets(backend, monkeypatch, kind, platform, wanted, expected):
    device_module, cl = import_module("polyarr.backends.opencl.runtime.device"), import_module("pyopencl")
    device = SimpleNamespace(type=getattr(cl.device_type, kind), platform=SimpleNamespace(name=platform))
    monkeypatch.setenv("POLYARR_KERNELS", wanted)
    assert device_module._kernels_for(device) == expected


@on_opencl
def test_kernels_for_nothing_else(backend, monkeypatch):
    devices = import_module("polyarr.backends.opencl.devices")
    monkeypatch.setenv("POLYARR_KERNELS", "npu")
    with pytest.raises(BackendError, match="POLYARR_KERNELS is 'npu'; it must be cpu or gpu"):
        devices.features_of(devices.select().cl_device)


@on_opencl
def test_a_device_without_subnormals_says_so_to_the_kit(backend):
    """In float32, complex64, and bfloat16, which has the same exponents."""
    module, features = import_module("polyarr.backends.opencl"), backend.home.features
    assert module._dtypes(features._replace(subnormals=True))[1] == set()
    dtypes, flushes = module._dtypes(features._replace(subnormals=False, fp64=False))
    assert flushes == {float32, complex64, bfloat16}
    assert dtypes.isdisjoint({float64, complex128})
    contract.check_fields(backend._replace(flushes=flushes), 1)


# ---- little local memory -----------------------------------------------------------------------------------------


@pytest.fixture
def shrunk(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """Return the backend with a small local memory; afterwards no kernel may have requested more."""
    plans = import_module("polyarr.backends.opencl.runtime.plans")
    device, programs = import_module("polyarr.backends.opencl.devices").select(), {}
    if hasattr(device.driver, "cuda"):
        pytest.skip("CUDA's kernels do not tell their local memory")
    monkeypatch.setattr(device, "features", device.features._replace(local_memory=LITTLE))
    monkeypatch.setattr(device.programs, "_programs", programs)
    monkeypatch.setattr(device, "plans", plans.Plans(device))
    yield backend
    asked = import_module("pyopencl").kernel_work_group_info.LOCAL_MEM_SIZE
    kernels = [kernel for program in programs.values() for kernel in program.kernels.values()]
    assert {k.name for k in kernels if k.cl_kernel.get_work_group_info(asked, device.cl_device) > LITTLE} == set()


@on_opencl
@pytest.mark.parametrize("length", [1, 40, 150])
@pytest.mark.parametrize("width", [24, 64])
def test_attention_fits_in_little_local_memory(shrunk, length, width):
    """Smaller tiles are used: PoCL would crash with the usual ones."""
    arrays = list(np.random.default_rng(length).standard_normal((3, 2, length, width), np.float32))
    found, expected = (gradients(arrays, name) for name in (shrunk, "numpy"))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def gradients(arrays, backend):
    """Return attention's result and its gradients."""
    with pa.use_backend(backend):
        q, k, v = (pa.asarray(x) for x in arrays)
        out, pull = pa.vjp(lambda *inputs: ops.attention(*inputs, causal=True), q, k, v)
        return [out.numpy(), *(g.numpy() for g in pull(v))]


@on_opencl
def test_attention_with_rows_that_fit_nowhere_runs_as_other_ops(shrunk):
    arrays = list(np.random.default_rng(0).standard_normal((3, 2, 5, 1024), np.float32))
    found, expected = (gradients(arrays, name) for name in (shrunk, "numpy"))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


@on_opencl
def test_tiles_fit_or_there_is_none(shrunk):
    """Also on GPUs: no tile is better than one that the driver cannot build."""
    attention = import_module("polyarr.backends.opencl.attention.attention_tiled")
    device = import_module("polyarr.backends.opencl.devices").select()
    for backward in (False, True):
        for width in (16, 64, 200, 1024):
            gpu = attention._gpu_tile(device, 4, 64, (width, width), backward)
            cpu = attention._cpu_tile(device, 4, 64, (width, width), backward)
            assert gpu is None or attention.gpu_bytes(gpu, 4, (width, width), backward) <= LITTLE
            assert cpu is None or attention.cpu_bytes(cpu, 4, (width, width), backward) <= LITTLE
            assert (gpu is None) == (cpu is None) or 64 < width < 1024


@on_opencl
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matmul_fits_in_little_local_memory(shrunk, dtype):
    x, y = (np.arange(70 * 300).reshape(shape).astype(dtype) % 7 for shape in ((70, 300), (300, 70)))
    np.testing.assert_array_equal((pa.asarray(x) @ pa.asarray(y)).numpy(), x @ y)
