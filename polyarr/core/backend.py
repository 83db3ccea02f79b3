"""What a backend is: a name, a table of kernels, and three ways to move data.

The kernel contract
-------------------
A kernel for a primitive, or for an op that states its VJP:

    kernel(out, *buffers, **params) -> buffer

`out` is the result's Spec. Each array input arrives as the buffer that the backend made; a Python number
arrives as a Python number, an absent optional input as None, a list of arrays as a tuple of buffers. `params`
are all of the op's keyword parameters, checked and in canonical form (axes are non-negative tuples). Inputs of
one op share one dtype wherever the op promotes; indices are int32 or int64. Shapes are not broadcast beforehand. A
kernel never writes to an input, and may return a view of one.

A kernel for any other op, whose gradient is that of its body, is a Fused pair:

    forward(out, *buffers, **params)                        -> buffer, saved
    backward(g, saved, *buffers, wanted=(...), **params)    -> one buffer, or None, per input

`g` is the buffer of the cotangent, with the shape of the result. `wanted` says of every input whether its gradient is
asked for; None will do for one that is not. A gradient has its input's shape and dtype; None for one that is wanted has
the body differentiated instead. `saved` is a tree of tuples, with buffers and plain values as leaves: all that the pair
keeps, besides its inputs, until the gradient is pulled. Where a pair cannot do what is asked, a row that is too long
for the device, say, forward returns NotImplemented, and the op's body runs instead, on the same backend.

A pair may say which inputs its backward needs for the gradient of which one, as Fused(forward, backward, needs). The
others are given up early where nobody can ask for a higher derivative, and backward gets their Specs in their place:

    Fused(forward, backward, {"x": ("weight",), "weight": ("x",), "bias": ()})

Such a backward gives every gradient that is wanted.

Where an op has several results, `out` is a tuple of Specs, a kernel returns a tuple of buffers, and `g` is one; what of
it nobody used is zeros. For an input that is a list, the gradient and `wanted` are tuples.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from polyarr.core.program import Fusion, Program, Run
from polyarr.core.spec import DTYPES
from polyarr.core.tuning import Tuning


class Fused(NamedTuple):
    """A backend's own way to compute a composed op and its gradient. There is no half a pair."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    needs: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # a gradient that is not among them needs all inputs


class Launch(NamedTuple):
    """Something that a device was given to do, as told to whoever watches.

    name   of the kernel, or of what moves bytes
    work   a kernel's global size, or how many bytes are moved; empty where that is not known
    group  a kernel's local size; None for what is no kernel
    times  () -> when it began and ended on the device, in seconds of time.perf_counter; waits for it
    """

    name: str
    work: tuple[int, ...]
    group: tuple[int, ...] | None
    times: Callable[[], tuple[float, float]]


def _nothing() -> None:
    """For a backend whose kernels have finished when they return."""


def _no_memory_report() -> dict[str, int]:
    return {}


def _no_peaks() -> Mapping[str, float]:
    return {}


def family_of(name: str) -> str:
    """The name of a backend without its device, the one that it is registered by: "opencl" of "opencl:1"."""
    return name.partition(":")[0]


class DLPack(NamedTuple):
    """How a backend shares buffers without a copy.

    export  buffer -> an object with __dlpack__ and __dlpack_device__; BufferError if it shares no such buffer
    adopt   such an object -> a buffer, which may share its memory and then keeps it; BufferError for a device, a dtype
            or strides that it lacks
    """

    export: Callable[[Any], Any]
    adopt: Callable[[Any], Any]


Reduce = Callable[[Sequence[Any], np.dtype, str], list[Any]]


class Meeting(NamedTuple):
    """What a process has at hand to reduce buffers together with others, from device to device.

    place    the device's own in its machine: two processes on one cannot meet
    library  with its version: all must have the same
    dtypes   what it reduces
    ticket   () -> what one process draws for all
    join     (ticket, rank, size) -> a function; returns when all have joined. That takes buffers of one dtype, the
             dtype that travels, and "sum" or "mean", and gives the buffers of what all have together
    """

    place: str
    library: str
    dtypes: frozenset[np.dtype]
    ticket: Callable[[], bytes]
    join: Callable[[bytes, int, int], Reduce]


class Together(NamedTuple):
    """How processes reduce what their backends hold.

    meeting  () -> what is at hand to do so without the host; BackendError says why not. None: there is no such way
    windows  how it is done through memory that all processes of a host see: from the ranks' pieces of it, as bytes, the
             own rank, and what waits until all ranks have called it -> a function as Meeting.join gives one, for any
             floats. None: there is no such way
    settle   has what was to be reduced reduced by now, as far as that takes the others: it may be put off until
             something else is enqueued
    """

    meeting: Callable[[], Meeting] | None = None
    windows: Callable[[Sequence[np.ndarray], int, Callable[[], Any]], Reduce] | None = None
    settle: Callable[[], None] = lambda: None


class Backend(NamedTuple):
    """A backend, as a value.

    name         what the user writes: the name that it is registered by, then, if it has several devices, a colon and
                 the device: "numpy", "opencl:1"
    kernels      Op -> kernel or Fused pair; nobody can change the table of a backend that runs
    upload       numpy.ndarray -> buffer; the buffer owns its memory
    download     buffer -> numpy.ndarray, C-contiguous, owned by the caller; waits
    synchronize  waits for everything that was enqueued
    dtypes       the dtypes that the backend can hold
    hardware     one line that says what the backend computes on; x.device is the backend's name
    memory       bytes, by name: "in use", "peak", "held", "limit"; empty where unknown
    unordered    the ops whose last bits may differ from call to call, as sums in no fixed order do
    guarded      () -> a context: what is allocated within it starts out as 0xff bytes between canaries; at its end it
                 raises BackendError if something outside was written to. None: the backend cannot tell
    flushes      the dtypes in which a number below the smallest normal one may be taken as 0, and given as 0: compilers
                 and GPUs do so for speed. The conformance kit then asks for no more
    home         what memory it computes in: arrays meet where their backends' homes are equal, whichever kernels
                 those have. None: a home of its name
    transfer     (buffer, target backend) -> a buffer of the target, or NotImplemented: a way that spares the host
    dlpack       how buffers are shared with others through DLPack. None: not at all
    noting       (note) -> a context within which note(launch) is called for all that the device is given to do; it
                 gives the ids of the kernels, and halves of pairs, of which that is true. None: a kernel takes as long
                 as its call
    peaks        what the device can do at most, measured when it is looked up: "GFLOP/s" in float32, "GB/s", and what
                 precision.products_in calls the rate of products; empty where unknown
    tuning       what `polyarr tune` can measure. None: nothing
    reads        op -> the inputs, among those that are numbers, that its kernel also takes as arrays without axes, and
                 reads from memory; any other number comes as Python's
    precisions   op -> the precisions, of those that core.precision has, that its kernel tells apart besides "highest":
                 only such a kernel is given `precision`, "highest" or one of them; it speaks of float32 alone
    handle       what kernels that a plugin puts into the table may build on; the backend says what it is, and keeps to
                 it. None: nothing but the buffers
    replay       (Program, what runs it anyhow) -> what runs it better: see core/program.py. None: the kernels are
                 called one after the other
    fusion       which steps of programs are made one, and how: see core/program.py. None: none are
    together     how it reduces buffers together with backends of other processes. None: not at all
    """

    name: str
    kernels: Mapping[Any, Any]
    upload: Callable[[np.ndarray], Any]
    download: Callable[[Any], np.ndarray]
    synchronize: Callable[[], None] = _nothing
    dtypes: frozenset[np.dtype] = frozenset(DTYPES)
    hardware: str = "cpu"
    memory: Callable[[], dict[str, int]] = _no_memory_report
    unordered: frozenset[Any] = frozenset()
    guarded: Callable[[], AbstractContextManager] | None = None
    flushes: frozenset[np.dtype] = frozenset()
    noting: Callable[[Callable[[Launch], None]], AbstractContextManager] | None = None
    peaks: Callable[[], Mapping[str, float]] = _no_peaks
    tuning: Tuning | None = None
    reads: Mapping[Any, tuple[str, ...]] = MappingProxyType({})
    precisions: Mapping[Any, tuple[str, ...]] = MappingProxyType({})
    handle: Any = None
    home: Any = None
    transfer: Callable[[Any, "Backend"], Any] | None = None
    dlpack: DLPack | None = None
    replay: Callable[[Program, Run], Run] | None = None
    fusion: Fusion | None = None
    together: Together | None = None

    def meets(self, other: "Backend") -> bool:
        """True if an array of one and an array of the other may be inputs of one op."""
        return self is other or self._home == other._home

    @property
    def _home(self) -> Any:
        return self.name if self.home is None else self.home

    @property
    def family(self) -> str:
        """The name without the device: what an override looks at."""
        return family_of(self.name)

    def __repr__(self) -> str:
        return f"<backend {self.name} on {self.hardware}>"

    def without_fused(self) -> "Backend":
        """The same backend without its pairs: their ops are left to their bodies."""
        return self._replace(kernels={op: k for op, k in self.kernels.items() if not isinstance(k, Fused)})


class Transfers(NamedTuple):
    """How many copies between host and device there were, and their bytes."""

    uploads: int = 0
    downloads: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0


_transfers = Transfers()


def transfers() -> Transfers:
    """Every copy between host and backend since the process began; subtract two readings to count a region."""
    return _transfers


def count_upload(nbytes: int) -> None:
    """Record one copy from the host."""
    global _transfers
    _transfers = _transfers._replace(uploads=_transfers.uploads + 1, upload_bytes=_transfers.upload_bytes + nbytes)


def count_download(nbytes: int) -> None:
    """Record one copy to the host."""
    global _transfers
    _transfers = _transfers._replace(
        downloads=_transfers.downloads + 1, download_bytes=_transfers.download_bytes + nbytes
    )
