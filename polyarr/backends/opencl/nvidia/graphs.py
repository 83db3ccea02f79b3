"""Replays as CUDA graphs, whose launch costs the host as much as that of one kernel."""

import struct
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_size_t, c_ubyte, c_uint64, c_void_p
from functools import lru_cache
from itertools import compress, count, groupby, pairwise
from operator import attrgetter, ne
from typing import Any

import numpy as np

from polyarr.backends.opencl.nvidia.cuda import Cuda, CudaError
from polyarr.backends.opencl.nvidia.driver import CudaDriver, Kernel, Stream
from polyarr.backends.opencl.runtime.commands import BoundCommand, CommandList
from polyarr.backends.opencl.runtime.device import Device
from polyarr.backends.opencl.runtime.variants import Variant, is_sound, verdict
from polyarr.core.errors import BackendError

MIN_LAUNCHES = 8  # launches in a row that are worth a graph
# CUgraphEdgeData of cuda.h, from port, to port and type: a node begins when the one before it has ended, or
# programmatically, when all work-groups of that have begun and allow it.
AT_END, AT_BEGIN = (c_ubyte * 8)(), (c_ubyte * 8)(1, 0, 1)
VERSION = attrgetter("version")  # of a kernel's arguments


class Graph:
    """Launches in a row as one CUDA graph. Each waits for the one before it, before it begins or in its own code."""

    def __init__(self, cuda: Cuda, launches: Sequence[BoundCommand]) -> None:
        self._cuda, self._nodes = cuda, list[tuple[Kernel, Any, c_void_p]]()
        graph, self._made = c_void_p(), c_void_p()
        cuda("cuGraphCreate", byref(graph), 0)
        weakref.finalize(self, _destroyed, cuda, "cuGraphDestroy", graph).atexit = False  # it owns the nodes until then
        for each in launches:
            kernel, node = each.arguments, c_void_p()
            params = kernel.node(each.work, each.group)
            cuda("cuGraphAddKernelNode", byref(node), graph, None, c_size_t(0), byref(params))
            self._nodes.append((kernel, params, node))
        for (before, then), ((*_, first), (*_, second)) in zip(pairwise(launches), pairwise(self._nodes), strict=True):
            edge = AT_BEGIN if may_begin_early(before, then) else AT_END
            cuda("cuGraphAddDependencies_v2", graph, byref(first), byref(second), edge, c_size_t(1))
        cuda("cuGraphInstantiateWithFlags", byref(self._made), graph, c_uint64(0))
        weakref.finalize(self, _destroyed, cuda, "cuGraphExecDestroy", self._made).atexit = False
        self._kernels = [kernel for kernel, _, _ in self._nodes]
        self._versions = [*map(VERSION, self._kernels)]

    def launch(self, stream: Stream) -> None:
        """Update the changed arguments and launch the graph."""
        versions = [*map(VERSION, self._kernels)]
        with self._cuda.current():
            for i in [*compress(count(), map(ne, versions, self._versions))]:
                _, params, node = self._nodes[i]
                self._cuda("cuGraphExecKernelNodeSetParams", self._made, node, byref(params))
                self._versions[i] = versions[i]
            self._cuda("cuGraphLaunch", self._made, stream.handle)


def may_begin_early(before: BoundCommand, then: BoundCommand) -> bool:
    """Return whether a kernel may begin while the one before it runs: it waits, and uses nothing of it before.

    What it uses before it waits lies in memory that the other one does not get. Later runs bind other memory, but not
    that of a result to anything else.
    """
    early = then.arguments.addresses(then.command.uses_early)
    return then.arguments.may_begin_early and early.isdisjoint(before.arguments.addresses())


def _destroyed(cuda: Cuda, name: str, handle: c_void_p) -> None:
    with cuda.current():
        cuda(name, handle)


class Graphs:
    """Runs a device's recorded commands as CUDA graphs; `is_sound` says whether these passed their check."""

    def __init__(self, driver: CudaDriver, is_sound: Callable[[], bool]) -> None:
        self._cuda, self._stream, self._is_sound = driver.cuda, driver.queue, is_sound

    def run(self, commands: CommandList) -> bool:
        """Run recorded commands that ran before; return False if they are to be enqueued one by one.

        Raises:
            CudaError: The driver refuses a graph that it accepted before.
        """
        if commands.plan is None:
            commands.plan = ()  # the first time: they may not be repeated
            return False
        if commands.plan == ():
            commands.plan = self._planned(commands)
        for part in commands.plan:
            if type(part) is Graph:
                part.launch(self._stream)
            elif part.enqueue():
                part.submit_to(self._stream)
        return bool(commands.plan)

    def _planned(self, commands: CommandList) -> list[Graph | BoundCommand]:
        """Return graphs of the launches in a row, and the other commands between them; empty if no graph can be made.
        """
        found: list[Graph | BoundCommand] = []
        try:
            for is_kernel, group in groupby(commands, lambda each: type(each.arguments) is Kernel):
                part = list(group)
                with self._cuda.current():
                    found += [Graph(self._cuda, part)] if is_kernel and len(part) >= MIN_LAUNCHES else part
            has_graph = any(type(part) is Graph for part in found)
            return found if has_graph and self._is_sound() else []
        except CudaError:
            return []


def graphs_of(device: Device) -> Graphs | None:
    """Return the graphs of a device; None if CUDA's driver is not the one that it uses."""
    if type(device.driver) is not CudaDriver:
        return None
    sound = lru_cache(maxsize=1)(lambda: is_sound(device, VARIANT) and not verdict(device, VARIANT))
    return Graphs(device.driver, sound)


def check(device: Device) -> None:
    """Run kernels that record the position of each work-item, one by one and as graphs, and compare.

    Raises:
        BackendError: The results differ, or no graph could be made.
    """
    if type(device.driver) is not CudaDriver:
        raise BackendError("the device does not use CUDA's driver")
    commands = device.commands
    found, kernel, (memory, listed) = [], *chain(device)
    for graphs in (None, Graphs(device.driver, lambda: True)):
        commands.graphs = graphs
        device.write_words(memory, np.zeros(ITEMS, np.int32))
        for turn in range(3):
            for n, each in enumerate(listed):
                kernel.setter(each.arguments, 3)(turn + n)
            commands.repeat(listed)
        found.append(device.read_words(memory, ITEMS))
    if not listed.plan:
        raise BackendError("no graph could be made")
    if not np.array_equal(found[0], found[1]):
        raise BackendError("a graph gave other results than launches one by one")


def chain(device: Device) -> tuple[Any, tuple[Any, CommandList]]:
    """Return a kernel, the memory that it changes, and some launches of it."""
    kernel, memory = device.build("graphs").graph_check, device.empty_words(ITEMS)
    listed = CommandList()
    for work, group in (((12, 6, 4), (4, 2, 1)), ((ITEMS,), (32,))) * (MIN_LAUNCHES // 2):
        args = memory, struct.pack("3i", 5, 6, 7), 0.5, 0
        kernel(work, group, *args)
        enqueue, arguments = kernel.repeated(work, group, args)
        listed.append(BoundCommand(enqueue, arguments, work, group, kernel, lambda error: None))
    return kernel, (memory, listed)


ITEMS = 288  # of each launch
VARIANT = Variant(
    "graphs", "replays as CUDA graphs, on NVIDIA GPUs", lambda *_: None,
    may_suit=lambda features: features.nvidia, stem="graphs", trial=check,
)  # fmt: skip
