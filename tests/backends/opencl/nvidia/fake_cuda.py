"""A fake CUDA driver: memory of the host, and kernels that an OpenCL device of the host runs on it."""

import ctypes
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

SIZES = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4, "long": 8, "ulong": 8}
OUT_OF_MEMORY = 2


class FakeCuda:
    """A replacement of cuda.Cuda.

    Attributes:
        log: Some of the calls.
        refuses: A function that fails.
        room: Bytes that can be allocated.
        graphs: The launches of each graph.
        edges: The data of the edges between them.
        launched: The number of graphs that were launched.
        is_sound: Whether graphs pass their check.
    """

    number, place, is_sound = 0, "0000:00:00.0", True

    def __init__(self, context: Any) -> None:
        self._cl = import_module("pyopencl")
        self._context, self._queue = context, self._cl.CommandQueue(context)
        self.log, self.refuses, self.room, self.launched = list[str](), "", 1 << 40, 0
        self.memory = dict[int, Any]()  # OpenCL's buffers of memory of the host, by address
        self.programs, self.kernels = list[Any](), list[tuple[Any, list[int]]]()
        self.graphs, self.edges, self._place = list[list[Any]](), list[bytes](), 0
        self.driver = SimpleNamespace(cuLaunchKernel=self.cuLaunchKernel)

    def __call__(self, name: str, *args: Any) -> None:
        if status := (999 if name == self.refuses else getattr(self, name)(*args)):
            raise import_module("polyarr.backends.opencl.nvidia.cuda").CudaError(f"CUDA: {name}: error {status}")

    def current(self) -> Any:
        return nullcontext()

    # ---- memory, streams and events --------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        if nbytes + sum(buffer.size for buffer in self.memory.values()) > self.room:
            raise import_module("polyarr.backends.opencl.nvidia.cuda").CudaError("CUDA: cuMemAlloc_v2: out of memory")
        host = np.full(nbytes + 4096, 0xAB, np.uint8)
        start, flags = -host.ctypes.data % 4096, self._cl.mem_flags
        own = host[start : start + nbytes]
        self.memory[own.ctypes.data] = self._cl.Buffer(
            self._context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=own
        )
        return own.ctypes.data

    def free(self, address: int) -> None:
        del self.memory[address]

    def stream(self) -> int:
        return 7

    def wait(self) -> None:
        self.log.append("wait")

    def wait_for(self, stream: int) -> None:
        self.log.append(f"wait for {stream}")

    def cuMemcpyHtoDAsync_v2(self, target: Any, source: Any, nbytes: Any, stream: Any) -> None:  # noqa: N802
        ctypes.memmove(target.value, source.value, nbytes.value)

    def cuMemcpyDtoHAsync_v2(self, target: Any, source: Any, nbytes: Any, stream: Any) -> None:  # noqa: N802
        ctypes.memmove(target.value, source.value, nbytes.value)

    cuMemcpyDtoDAsync_v2 = cuMemcpyDtoHAsync_v2  # noqa: N815

    def cuMemsetD8Async(self, target: Any, value: Any, nbytes: Any, stream: Any) -> None:  # noqa: N802
        ctypes.memset(target.value, value.value, nbytes.value)

    def cuEventCreate(self, made: Any, flags: int) -> None:  # noqa: N802
        made._obj.value = len(self.log) + 1

    def cuEventRecord(self, event: Any, stream: Any) -> None:  # noqa: N802
        self.log.append("event")

    def cuEventSynchronize(self, event: Any) -> None:  # noqa: N802
        pass

    cuEventDestroy_v2 = cuStreamDestroy_v2 = cuEventSynchronize  # noqa: N815

    def cuEventElapsedTime(self, found: Any, base: Any, event: Any) -> None:  # noqa: N802
        found._obj.value = (event.value - base.value) * 1e-3

    # ---- kernels ---------------------------------------------------------------------------------------------

    def module(self, text: str) -> Any:
        """Return the number of the program that was built last."""
        return ctypes.c_void_p(len(self.programs))

    def address(self, module: Any, name: str) -> int:
        """Return where a launch in slices finds its place."""
        if not self._place:
            self._place = self.allocate(36)
        return self._place

    def function(self, module: Any, name: str) -> Any:
        kernel = self._cl.Kernel(self.programs[module.value - 1], name)
        self.kernels.append((kernel, [size for _, size in self._parameters(kernel)]))
        return ctypes.c_void_p(len(self.kernels))

    def parameters(self, function: Any) -> list[tuple[int, int]]:
        return self._parameters(self.kernels[function.value - 1][0])

    def _parameters(self, kernel: Any) -> list[tuple[int, int]]:
        found, end = [], 0
        for i in range(kernel.num_args):
            name = kernel.get_arg_info(i, self._cl.kernel_arg_info.TYPE_NAME)
            size = 8 if name.endswith("*") else SIZES.get(name) or self._size_of_struct(kernel.program.source, name)
            start = -(-end // min(size & -size, 8)) * min(size & -size, 8)
            found.append((start, size))
            end = start + size
        return found

    @cache  # noqa: B019  as long as the test
    def _size_of_struct(self, source: str, name: str) -> int:
        """Ask the compiler for the size of a struct."""
        text = source + f"\n__kernel void size(__global int *found) {{ *found = sizeof({name}); }}"
        found, memory = np.zeros(1, np.int32), self._cl.Buffer(self._context, self._cl.mem_flags.WRITE_ONLY, 4)
        self._cl.Program(self._context, text).build(["-cl-std=CL1.2", "-w"]).size(self._queue, (1,), None, memory)
        self._cl.enqueue_copy(self._queue, found, memory)
        return int(found[0])

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:  # noqa: N802
        if self.refuses == "cuLaunchKernel":
            return 999
        *sizes, _, _, arguments, _ = rest
        _, widths = self.kernels[function.value - 1]
        self._run(function.value, sizes, [ctypes.string_at(a, n) for a, n in zip(arguments, widths, strict=True)])
        return 0

    def _run(self, function: int, sizes: Any, values: list[bytes]) -> None:
        kernel, _ = self.kernels[function - 1]
        names = [kernel.get_arg_info(i, self._cl.kernel_arg_info.TYPE_NAME) for i in range(len(values))]
        held = [self._memory(v) if name.endswith("*") else v for name, v in zip(names, values, strict=True)]
        for i, value in enumerate(held):
            kernel.set_arg(i, value)
        work = tuple(n * each for n, each in zip(sizes[:3], sizes[3:], strict=True))
        self._cl.enqueue_nd_range_kernel(self._queue, kernel, work, tuple(sizes[3:]))
        self._queue.finish()

    def _memory(self, value: bytes) -> Any:
        """Return an OpenCL buffer from an address on."""
        address = int.from_bytes(value, "little")
        if not address:
            return None
        for first, buffer in self.memory.items():
            if 0 <= address - first < buffer.size:
                return buffer.get_sub_region(address - first, buffer.size - (address - first))
        raise AssertionError(f"no memory at {address}")

    # ---- graphs ----------------------------------------------------------------------------------------------

    def cuGraphCreate(self, graph: Any, flags: int) -> None:  # noqa: N802
        self.graphs.append([])
        graph._obj.value = len(self.graphs)

    def cuGraphAddKernelNode(self, node: Any, graph: Any, waits: Any, count: Any, params: Any) -> None:  # noqa: N802
        assert waits is None and count.value == 0
        self.graphs[graph.value - 1].append(self._copied(params._obj))
        node._obj.value = len(self.graphs[graph.value - 1])

    def cuGraphAddDependencies_v2(self, graph: Any, before: Any, node: Any, edge: Any, count: Any) -> None:  # noqa: N802
        assert count.value == 1 and node._obj.value == before._obj.value + 1, "each waits for the last"
        self.edges.append(bytes(edge))

    def cuGraphInstantiateWithFlags(self, made: Any, graph: Any, flags: Any) -> None:  # noqa: N802
        made._obj.value = graph.value

    def cuGraphDestroy(self, graph: Any) -> None:  # noqa: N802
        pass

    cuGraphExecDestroy = cuGraphDestroy  # noqa: N815

    def cuGraphExecKernelNodeSetParams(self, made: Any, node: Any, params: Any) -> None:  # noqa: N802
        self.graphs[made.value - 1][node.value - 1] = self._copied(params._obj)

    def cuGraphLaunch(self, made: Any, stream: Any) -> None:  # noqa: N802
        self.launched += 1
        for launch in self.graphs[made.value - 1]:
            self._run(*launch)

    def _copied(self, node: Any) -> Any:
        """Return function, sizes and arguments of a node, as CUDA copies them."""
        _, widths = self.kernels[node.function - 1]
        places = (ctypes.c_void_p * len(widths)).from_address(node.arguments)
        values = [ctypes.string_at(place, width) for place, width in zip(places, widths, strict=True)]
        return node.function, [*node.groups, *node.items], values


def fake_driver(context: Any, device: Any) -> Any:
    """Return CUDA's driver on a fake CUDA, with OpenCL's compiler for the host."""
    driver = import_module("polyarr.backends.opencl.nvidia.driver")
    compiled = import_module("polyarr.backends.opencl.runtime.compiled")
    cuda, own = FakeCuda(context), compiled.compiler_of(context, device)

    class Compiler(compiled.Compiler):
        def completed(self, source: str, options: list[str]) -> tuple[str, list[str]]:
            return own.completed(source, options)

        def build(self, name: str, source: str, options: list[str]) -> Any:
            cuda("built")
            # Optimizing takes most of the time, and what is tested is how kernels are launched.
            program = self.built(source, [*options, "-cl-kernel-arg-info", "-cl-opt-disable"])
            cuda.programs.append(program)
            names = [kernel.function_name for kernel in program.all_kernels()]
            return driver.Module(cuda, "".join(f".entry {name}\n" for name in names))

    cuda.built = lambda: None  # type: ignore[attr-defined]
    found = driver.CudaDriver(context, device, cuda)
    found.compiler = lambda: Compiler(context)
    return found


def fake_backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a backend on a device that is driven by a fake CUDA; skip the calling test if there is no CPU device."""
    backend, devices = (import_module(f"polyarr.backends.opencl{name}") for name in ("", ".devices"))
    graphs = import_module("polyarr.backends.opencl.nvidia.graphs")
    device = import_module("polyarr.backends.opencl.runtime.device")
    chosen = devices.select().cl_device
    if not chosen.type & import_module("pyopencl").device_type.CPU:
        pytest.skip("CUDA is played on a processor")
    vendor = type(import_module("polyarr.backends.opencl.runtime.vendor").vendor())
    monkeypatch.setattr(vendor, "driver", lambda self, context, cl_device: fake_driver(context, cl_device))
    made = device.Device(chosen, "opencl:9")
    found = backend.backend_of(made)
    made.commands.graphs = graphs.Graphs(made.driver, lambda: made.driver.cuda.is_sound)
    return found
