"""CUDA's driver as the driver of a device, with a fake CUDA."""

import ctypes
import struct
import zlib
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyarr as pa
from polyarr.core.errors import BackendError
from polyarr.testing.compare import bits

pytest.importorskip("pyopencl")
cuda, driver = (import_module(f"polyarr.backends.opencl.nvidia.{name}") for name in ("cuda", "driver"))


def test_ops_and_gradients_are_those_of_opencl(fake: Any) -> None:
    rng = np.random.default_rng(0)
    host = [rng.standard_normal((7, 7)).astype(np.float32) for _ in range(2)]

    def loss(x: pa.Array, w: pa.Array) -> pa.Array:
        y = pa.layer_norm(pa.softmax(x @ w) + x.T)
        rows = pa.take(y, pa.argmin(x, axis=0), axis=0)
        return pa.sum(pa.sort(y, axis=0)[::2] * pa.cumulative_sum(w, axis=1)[::2]) + pa.max(rows)

    def run(device: Any) -> list[bytes]:
        value, grads = pa.value_and_grad(loss, argnums=(0, 1))(*[pa.asarray(x, device=device) for x in host])
        return [bits(value), *map(bits, grads)]

    with pa.use_backend("opencl"):
        due = run("opencl")
    assert run(fake.backend) == due


def test_errors_of_kernels_arrive(fake: Any) -> None:
    with pytest.raises(IndexError, match="index 3 is out of range"):
        pa.take(pa.ones(3), pa.asarray([3])).numpy()


def test_commands_have_times_in_a_profile(fake: Any) -> None:
    x = pa.ones((5, 5))
    (x @ x + 1).numpy()
    with pa.profile() as profile:
        (x @ x + 1).numpy()
    (row,) = [row for row in profile.ops() if row.name.startswith("matmul")]
    assert row.launches == 1 and row.seconds > 0


PTX = ".version 8.0\n.target sm_90\n.entry doubled(\n"


def test_the_ptx_of_a_program_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A damaged entry, and a build that is to warn, are compiled again."""
    compiled, built = driver.CudaCompiler.__new__(driver.CudaCompiler), list[str]()
    store = import_module("polyarr.backends.opencl.runtime.caches").Store(tmp_path)
    vars(compiled).update(_device=None, _cuda=None, _store=store)

    def build(_: Any, source: str, options: list[str]) -> Any:
        built.append(source)
        return SimpleNamespace(binaries=[f"{PTX}\0".encode()], get_build_info=lambda *_: "a log")

    monkeypatch.setattr(driver.CudaCompiler, "built", build)
    monkeypatch.setattr(driver, "Module", lambda _, text, log: (text, log))
    assert compiled.is_slow("a")
    assert compiled.build("a", "first", ["-w"]) == (PTX, "a log")
    assert not compiled.is_slow("a")
    assert compiled.build("a", "first", ["-w"]) == (PTX, "")
    assert compiled.build("a", "first //@ with instructions of Hopper", ["-w"])[0] == PTX.replace("sm_90", "sm_90a")
    assert built == ["first"]
    for _ in range(2):
        assert compiled.build("b", "second", []) == (PTX, "a log")
    assert built == ["first", "second", "second"] and compiled.is_slow("b")
    for content in (b"no compressed text", zlib.compress(b"\xff")):
        store.save("a", content)
        assert compiled.build("a", "third", ["-w"]) == (PTX, "a log")
    assert built[3:] == ["third", "third"]


@pytest.fixture
def kernel(fake: Any) -> Any:
    """A kernel with a struct, a float, and an integer of 64 bits."""
    return fake.device.build("graphs").graph_check.cl_kernel


def values(kernel: Any) -> list[bytes]:
    return [ctypes.string_at(at, size) for at, (_, size) in zip(kernel.arguments, kernel._layout, strict=True)]


def test_arguments_take_their_places(fake: Any, kernel: Any) -> None:
    types = (None, np.dtype("V"), np.dtype("float32"), np.dtype("int64"))
    memory, given = fake.device.driver.allocate(64), struct.pack("3i", 1, 2, 3)
    for is_typed in (False, True):
        kernel.set_scalar_arg_dtypes(types if is_typed else None)
        kernel(fake.device.queue, (4,), (4,), memory, given, np.float32(0.5), np.int64(-7))
        due = [struct.pack("<Q", memory.int_ptr), given, struct.pack("<f", 0.5), struct.pack("<q", -7)]
        assert values(kernel) == due
    kernel.version = 0
    kernel.set_number(2, 1e300, types[2])
    kernel.set_number(3, 2.0, types[3])
    kernel.set_arg(0, None)
    assert values(kernel) == [bytes(8), given, struct.pack("<f", np.inf), struct.pack("<q", 2)]
    assert kernel.version == 3
    with pytest.raises(cuda.CudaError, match="argument 3 has 4 bytes; the kernel takes 8"):
        kernel.set_arg(3, np.int32(1))


def test_what_does_not_pack_is_converted(fake: Any, kernel: Any) -> None:
    kernel.set_scalar_arg_dtypes((None, np.dtype("V"), np.dtype("float32"), np.dtype("uint64")))
    memory = fake.device.driver.allocate(64)
    kernel(fake.device.queue, (4,), (4,), memory, np.arange(3, dtype=np.int32), 1e300, -1)
    assert values(kernel)[1:] == [struct.pack("3i", 0, 1, 2), struct.pack("<f", np.inf), b"\xff" * 8]


def test_a_group_that_is_left_free_divides_the_work() -> None:
    assert driver._sizes((96, 2), None) == (3, 2, 1, 32, 1, 1)
    assert driver._sizes((7,), None) == (7, 1, 1, 1, 1, 1)
    with pytest.raises(cuda.CudaError, match="must be a multiple of a group"):
        driver._sizes((7,), (2,))


def test_large_launches_come_in_slices(fake: Any, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second and third axis of a launch are limited; each slice is told where it begins."""
    monkeypatch.setattr(driver, "MAX_GROUPS", 3)
    places, launches = [], []
    monkeypatch.setattr(fake, "cuMemcpyHtoDAsync_v2", lambda at, place, *rest: places.append([*place]))
    monkeypatch.setattr(fake, "cuLaunchKernel", lambda function, *rest: launches.append(rest[:6]))
    monkeypatch.setattr(kernel, "_launch", lambda function, *rest: 1)
    kernel.launch(fake.device.queue, (4, 10, 4), (2, 2, 1))
    assert places == [[0, y, z, 0, 2 * y, z, 2, 5, 4] for z in (0, 3) for y in (0, 3)]
    assert launches == [(2, y, z, 2, 2, 1) for z in (3, 1) for y in (3, 2)]
    places.clear()
    assert not fake.device.driver.again(kernel, (4, 10, 4), (2, 2, 1))()
    assert len(places) == 4


def test_the_ptx_reads_what_cuda_sets() -> None:
    text = ".address_size 64\nmov.b32 %r1, %envreg3;\nmov.b32 \t%r2, %envreg7;\nmov.u32 %r3, %tid.x;"
    assert driver.ptx_for_cuda(text).splitlines()[1:] == [
        "mov.b32 %r1, 0;", "mov.b32 \t%r2, %nctaid.y;", "mov.u32 %r3, %tid.x;",
    ]  # fmt: skip
    assert driver.ptx_in_slices(text).splitlines() == [
        ".address_size 64", ".visible .global .align 4 .u32 slice_of_launch[9];",
        "ld.global.u32 %r1, [slice_of_launch+12];", "ld.global.u32 %r2, [slice_of_launch+28];", "mov.u32 %r3, %tid.x;",
    ]  # fmt: skip
    with pytest.raises(cuda.CudaError, match="the PTX reads %envreg10"):
        driver.ptx_for_cuda("mov.u32 %r1, %envreg10;")


KERNELS = """.version 8.7
.target sm_{}
.visible .entry first(.param .u64 x)
.reqntid 32, 1, 1
{{
ld.param.u64 %rd1, [x];
}}
.visible .entry second(.param .u64 x) {{
prefetch.global.L2 [%rd1];
griddepcontrol.wait;
}}"""


def test_kernels_wait_first_where_they_may_begin_early() -> None:
    found = driver.ptx_that_waits(KERNELS.format("90a"))
    assert found.splitlines()[4:8] == ["{", driver.AWAIT_BEFORE, driver.ALLOW_NEXT, "ld.param.u64 %rd1, [x];"]
    assert found.count(driver.AWAIT_BEFORE) == 2, "the other one has its own, behind what it does early"
    assert driver.is_for_hopper(found)
    older = KERNELS.format("86")
    assert driver.ptx_that_waits(older) == older and not driver.is_for_hopper(older)


def test_a_launch_that_fails_names_the_kernel(fake: Any) -> None:
    x = pa.ones(3)
    fake.refuses = "cuLaunchKernel"
    with pytest.raises(BackendError, match=r"kernel elementwise: could not enqueue .* CUDA: cuLaunchKernel: error 999"):
        x + 1
    fake.refuses = ""


def test_memory_of_another_device_is_refused(fake: Any) -> None:
    with pa.use_backend("opencl"):
        other = pa.ones(3).buf.memory
    assert fake.device.driver.is_foreign(other) and not fake.device.driver.is_foreign(pa.ones(3).buf.memory)


def test_the_handle_says_how_to_use_kernels_of_opencl(fake: Any) -> None:
    with pytest.raises(BackendError, match=r"handle.queue: opencl:9 runs on CUDA's driver, .* POLYARR_DRIVER=opencl"):
        fake.backend.handle.queue  # noqa: B018


@pytest.mark.parametrize(
    ("wanted", "platform", "found"),
    [("", "NVIDIA CUDA", True), ("cuda", "NVIDIA CUDA", True), ("opencl", "NVIDIA CUDA", False), ("", "PoCL", False)],
)
def test_the_driver_is_chosen(monkeypatch: pytest.MonkeyPatch, wanted: str, platform: str, found: bool) -> None:
    device = SimpleNamespace(platform=SimpleNamespace(name=platform))
    monkeypatch.setenv("POLYARR_DRIVER", wanted)
    monkeypatch.setattr(driver, "Cuda", lambda device: "cuda")
    monkeypatch.setattr(driver, "CudaDriver", lambda *given: given)
    assert driver.driver_of("context", device) == (("context", device, "cuda") if found else None)


def test_without_cuda_opencl_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(device: Any) -> None:
        raise cuda.CudaError("CUDA's driver does not load: no such file")

    device = SimpleNamespace(platform=SimpleNamespace(name="NVIDIA CUDA"))
    monkeypatch.setattr(driver, "Cuda", missing)
    monkeypatch.delenv("POLYARR_DRIVER", raising=False)
    assert driver.driver_of("context", device) is None
    monkeypatch.setenv("POLYARR_DRIVER", "cuda")
    with pytest.raises(BackendError, match=r"^POLYARR_DRIVER is 'cuda': CUDA's driver does not load: no such file$"):
        driver.driver_of("context", device)
    monkeypatch.setenv("POLYARR_DRIVER", "vulkan")
    with pytest.raises(BackendError, match=r"^POLYARR_DRIVER is 'vulkan'; it must be cuda or opencl$"):
        driver.driver_of("context", device)


def test_a_context_of_another_library_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Library:
        def __getattr__(self, name: str) -> Any:
            def call(*args: Any) -> int:
                calls.append(name)
                return 201 if calls.count(name) == 1 and name == "cuMemsetD8Async" else 0

            return call

    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda name: Library())
    place = {"pci_domain_id_nv": 0, "pci_bus_id_nv": 5, "pci_slot_id_nv": 0}
    cuda.Cuda(SimpleNamespace(**place))("cuMemsetD8Async", 7)
    assert calls[-3:] == ["cuMemsetD8Async", "cuCtxSetCurrent", "cuMemsetD8Async"]


def test_the_doctor_says_which_driver_it_is(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def device(found: Any, nvidia: bool = True) -> Any:
        return SimpleNamespace(name="opencl:0", driver=found, features=SimpleNamespace(nvidia=nvidia), cl_device=None)

    def missing(cl_device: Any) -> None:
        raise cuda.CudaError("CUDA's driver does not load: no such file")

    assert driver.diagnose(device(None, nvidia=False)) == []
    assert driver.diagnose(device(fake.device.driver)) == [
        ("ok", "opencl:0: CUDA's driver owns the memory and launches kernels")
    ]
    monkeypatch.setattr(driver, "Cuda", lambda cl_device: None)
    (found,) = driver.diagnose(device(None))
    assert found == ("ok", "opencl:0: OpenCL's driver launches kernels, as POLYARR_DRIVER says")
    monkeypatch.setattr(driver, "Cuda", missing)
    assert driver.diagnose(device(None))[0][0] == "warning"
