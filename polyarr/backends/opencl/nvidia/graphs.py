"""Replays as CUDA graphs, whose launch costs the driver as much as that of one kernel.

Buffers shared with CUDA (see runtime/cuda.py) let the CUDA driver launch the PTX that the OpenCL compiler produced. A
replay becomes a CUDA graph if it follows a replay of the same launches, with only host reads and writes in between, as
when tokens are generated. Everything else is launched by OpenCL, since the device takes 150 us or more to switch
between the drivers.
"""

import ctypes
import re
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from functools import lru_cache
from types import NoneType
from typing import Any

import numpy as np
import pyopencl as cl

from polyarr.backends.opencl.nvidia.cuda import Cuda, CudaError, SharedPool
from polyarr.backends.opencl.runtime.commands import BoundCommand, Commands, Kernel
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, verdict
from polyarr.core.errors import BackendError

MIN_LAUNCHES = 16  # launches that are worth a graph
# Registers that only OpenCL sets: offsets of groups and work-items (0 here), and the number of groups.
COUNTS = {f"%envreg{6 + i}": f"%nctaid.{axis}" for i, axis in enumerate("xyz")}
REGISTERS = {f"%envreg{i}": "0" for i in range(6)} | COUNTS
REGISTER = re.compile(r"%envreg\d+")


class _Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS of cuda.h, in its first version."""

    _fields_ = (
        ("function", c_void_p), ("groups", c_uint * 3), ("items", c_uint * 3), ("room", c_uint),
        ("arguments", c_void_p), ("more", c_void_p),
    )  # fmt: skip


class Arguments:
    """A kernel's persistent arguments, for OpenCL and, as bytes, for a node of a CUDA graph.

    Attributes:
        has_changed: Whether they changed since the graph was updated.
        unknown: Indices of arguments whose memory is unknown to CUDA.
        graph: The graph of the node.
    """

    def __init__(self, own: Any, kernel: Kernel, work: tuple[int, ...], group: tuple[int, ...] | None) -> None:
        self.own, self.kernel = own, kernel
        self.has_changed, self.unknown, self.graph = True, set[int](), None
        self._kept: list[Any] = [None] * kernel.cl_kernel.num_args
        self._places = (c_void_p * len(self._kept))()
        self.node = _Node(arguments=ctypes.addressof(self._places))
        self.node.items[:] = (*(group or work), 1, 1)[:3]
        self.node.groups[:] = (*(n // each for n, each in zip(work, group or work, strict=True)), 1, 1)[:3]
        self.is_cut = group is not None

    def set_arg(self, i: int, value: Any) -> None:
        """Set an argument, as PyOpenCL's kernels do."""
        self.own.set_arg(i, value)
        if value is None or hasattr(value, "int_ptr"):
            held, cell = getattr(value, "cuda", None), self._kept[i]
            (self.unknown.discard if held or value is None else self.unknown.add)(i)
            if type(cell) is not c_uint64:
                self._keep(i, cell := c_uint64())
            cell.value, self.has_changed = held.piece.address if held else 0, True
        else:
            self._put(i, np.asarray(value).tobytes())

    def _set_arg_buf(self, i: int, value: bytes) -> None:
        self.own._set_arg_buf(i, value)
        self._put(i, bytes(value))

    def _set_arg_buf_pack_multi(self, packed: tuple[int, bytes, Any]) -> None:
        self.own._set_arg_buf_pack_multi(packed)
        i, code, value = packed
        self._put(i, struct.pack(code.decode(), value))

    def _put(self, i: int, value: bytes) -> None:
        kept = self._kept[i]
        if type(kept) in (NoneType, c_uint64) or len(kept) != len(value):
            self._keep(i, kept := ctypes.create_string_buffer(len(value)))
        kept.raw, self.has_changed = value, True

    def _keep(self, i: int, cell: Any) -> None:
        self._kept[i], self._places[i] = cell, ctypes.addressof(cell)

    @property
    def is_known(self) -> bool:
        """Return whether CUDA can take all arguments."""
        return self.is_cut and not self.unknown and None not in self._kept


class Graph:
    """Recorded launches as one CUDA graph, each of which waits for the one before it."""

    def __init__(self, cuda: Cuda, commands: Sequence[BoundCommand], function_of: Callable[[Kernel], int]) -> None:
        self.commands, self.is_current = commands, True
        self._cuda, self._nodes = cuda, list[tuple[Arguments, c_void_p]]()
        graph, self._made, before = c_void_p(), c_void_p(), None
        cuda("cuGraphCreate", byref(graph), 0)
        weakref.finalize(self, _destroyed, cuda, "cuGraphDestroy", graph).atexit = False  # it owns the nodes until then
        for each in commands:
            arguments, node = each.arguments, c_void_p()
            arguments.node.function = function_of(arguments.kernel)
            waits = (c_void_p * 1)(before) if before else None
            cuda("cuGraphAddKernelNode", byref(node), graph, waits, c_size_t(bool(before)), byref(arguments.node))
            self._nodes.append((arguments, node))
            before = node.value
        cuda("cuGraphInstantiateWithFlags", byref(self._made), graph, c_uint64(0))
        weakref.finalize(self, _destroyed, cuda, "cuGraphExecDestroy", self._made).atexit = False
        for arguments, _ in self._nodes:
            if arguments.graph is not None:
                arguments.graph.is_current = False
            arguments.graph, arguments.has_changed = self, False

    def launch(self, stream: c_void_p) -> None:
        """Update the changed arguments and launch the graph."""
        for arguments, node in self._nodes:
            if arguments.has_changed:
                self._cuda("cuGraphExecKernelNodeSetParams", self._made, node, byref(arguments.node))
                arguments.has_changed = False
        self._cuda("cuGraphLaunch", self._made, stream)


def _destroyed(cuda: Cuda, name: str, handle: c_void_p) -> None:
    with cuda.current():
        cuda(name, handle)


class Graphs:
    """Runs a device's recorded launches as CUDA graphs; `is_sound` says whether these passed their check."""

    arguments = Arguments

    def __init__(self, commands: Commands, cuda: Cuda, is_sound: Callable[[], bool]) -> None:
        self._commands, self._queue, self._cuda, self._is_sound = commands, commands.queue, cuda, is_sound
        self._stream: c_void_p | None = None
        self._modules = dict[int, tuple[c_void_p, Any]]()
        self.last: Sequence[BoundCommand] | None = None  # the launches that ran last, if nothing was enqueued since
        self._refused: Sequence[BoundCommand] | None = None

    def run(self, commands: Sequence[BoundCommand]) -> bool:
        """Run recorded launches as a graph; return False if OpenCL must launch them.

        Raises:
            CudaError: The driver refuses a graph that it accepted before.
        """
        is_next = self._commands.awaited in (self.forget, self.wait) and self.last is commands
        if not is_next or self._refused is commands:
            return False
        graph = commands[0].arguments.graph if type(commands[0].arguments) is Arguments else None
        if graph is None or graph.commands is not commands or not graph.is_current:
            graph = self._made(commands)
        if graph is None:
            self._refused = commands
            return False
        if self._commands.awaited == self.forget:
            self._commands.finish()
        with self._cuda.current():
            graph.launch(self._stream)
        self.last, self._commands.awaited = commands, self.wait
        return True

    def expect(self, commands: Sequence[BoundCommand]) -> None:
        """Note that OpenCL enqueued these launches, which may be repeated next."""
        if len(commands) >= MIN_LAUNCHES:
            self.last, self._commands.awaited = commands, self.forget

    def move(self, target: Any, source: Any) -> bool:
        """Copy between host and device behind a graph, through CUDA; return False if OpenCL must do it."""
        if self._commands.awaited != self.wait:
            return False
        from_host = isinstance(source, np.ndarray)
        held, host = getattr(target if from_host else source, "cuda", None), source if from_host else target
        if held is None:
            return False
        self._cuda.move(held.piece.address, host.ctypes.data, host.nbytes, self._stream.value, from_host)
        return True

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Context in which OpenCL commands do not change which launches count as the last."""
        is_so = self._commands.awaited == self.forget and self._commands.queue is self._queue
        last = self.last if is_so else None
        yield
        if last is not None:
            self.expect(last)

    def forget(self) -> None:
        """Forget the last launches, because something else is about to be enqueued."""
        self.last = None

    def wait(self) -> None:
        """Wait for the graph, and forget it."""
        self.last = None
        self._cuda.wait_for(self._stream.value)

    def _made(self, commands: Sequence[BoundCommand]) -> Graph | None:
        """Return a graph of the launches; None if there can be none."""
        if not all(type(each.arguments) is Arguments and each.arguments.is_known for each in commands):
            return None
        try:
            if not self._is_sound():
                return None
            with self._cuda.current():
                self._stream = self._stream or c_void_p(self._cuda.stream())
                return Graph(self._cuda, commands, self._function)
        except CudaError:
            return None

    def _function(self, kernel: Kernel) -> int:
        module = self._modules.get(id(kernel.program))
        if module is None:
            module = c_void_p(), kernel.program
            self._cuda("cuModuleLoadData", byref(module[0]), ptx_for_cuda(ptx_of(kernel.program)).encode())
            self._modules[id(kernel.program)] = module
        function = c_void_p()
        self._cuda("cuModuleGetFunction", byref(function), module[0], kernel.name.encode())
        return function.value or 0


def ptx_of(program: cl.Program) -> str:
    """Return the PTX that the OpenCL compiler produced."""
    return program.binaries[0].decode().rstrip("\0")


def ptx_for_cuda(text: str) -> str:
    """Return the PTX with OpenCL's registers replaced by those that CUDA sets.

    Raises:
        CudaError: It reads registers that have no counterpart.
    """
    unknown = {*REGISTER.findall(text)} - REGISTERS.keys()
    if unknown:
        raise CudaError(f"CUDA: the PTX reads {', '.join(sorted(unknown))}")
    return REGISTER.sub(lambda found: REGISTERS[found[0]], text)


# ---- whether it works --------------------------------------------------------------------------------------------


def graphs_of(device: Device) -> Graphs | None:
    """Return the graphs of a device; None if its memory is not shared with CUDA."""
    if type(device.pool) is not SharedPool:
        return None
    sound = lru_cache(maxsize=1)(lambda: is_sound(device, VARIANT) and not verdict(device, VARIANT))
    return Graphs(device.commands, device.pool.cuda, sound)


def check(device: Device) -> None:
    """Run kernels that record the position of each work-item, by OpenCL and as graphs, and compare.

    Raises:
        BackendError: The results differ, or no graph could be made.
    """
    if type(device.pool) is not SharedPool:
        raise BackendError("the device shares no memory with CUDA")
    commands = device.commands
    commands.graphs = graphs = Graphs(commands, device.pool.cuda, lambda: True)
    found, kernel, (memory, listed) = [], *chain(device)
    for in_a_row in (False, True, True):  # the third run also reads and writes through CUDA in between
        device.write_words(memory, np.zeros(ITEMS, np.int32))
        for turn in range(3):
            if not in_a_row:
                commands.settle()
            for n, each in enumerate(listed):
                kernel.set_number(each.arguments, 3, turn + n)
            commands.repeat(listed)
            were_graphs = commands.awaited == graphs.wait
        found.append(device.read_words(memory, ITEMS))
    if not were_graphs:
        raise BackendError("no graph could be made")
    if not (np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])):
        raise BackendError("a graph gave other results than OpenCL")


def chain(device: Device) -> tuple[Kernel, tuple[Any, list[BoundCommand]]]:
    """Return a kernel, the memory that it changes, and some launches of it."""
    kernel, memory = device.build("graphs").graph_check, device.empty_words(ITEMS)
    listed = []
    for work, group in (((12, 6, 4), (4, 2, 1)), ((ITEMS,), (32,))) * (MIN_LAUNCHES // 2):
        args = memory, struct.pack("3i", 5, 6, 7), 0.5, 0
        kernel(work, group, *args)
        enqueue, arguments = kernel.repeated(work, group, args)
        listed.append(BoundCommand(enqueue, arguments, work, group, kernel, lambda error: None))
    return kernel, (memory, listed)


ITEMS = 288  # of each launch
VARIANT = Variant(
    "graphs", "replays as CUDA graphs, on NVIDIA GPUs whose memory CUDA shares", lambda *_: None,
    may_suit=lambda features: features.nvidia, stem="graphs", trial=check,
)  # fmt: skip
