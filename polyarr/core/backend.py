"""Backend: a name, a table of kernels, functions that move data, and optional capabilities.

The kernel contract
-------------------
The kernel of a primitive, or of an op that states its VJP, is a function:

    kernel(out, *buffers, **params) -> buffer

- `out` is the Spec (shape and dtype) of the result. With several results, `out` is a tuple of Specs and the kernel
  returns a tuple of buffers.
- Each array input arrives as a buffer of the backend, a Python number as a Python number, an absent optional input as
  None, and a list of arrays as a tuple of buffers.
- `params` holds all keyword parameters of the op, validated and in canonical form: axes are tuples of non-negative
  ints.
- Inputs that the op promotes have one dtype. Indices are int32 or int64. Inputs are not broadcast to a common shape.
- A kernel never writes to an input. It may return a view of one.
- An error that occurs after the kernel has returned is raised by the next download of the result or of a value computed
  from it, and by `synchronize` if no download came first.

The kernel of any other op, whose gradient is its decomposition's, is a Fused: a fused kernel with its VJP. A plain
kernel of such an op is used where no gradient is wanted, and may return NotImplemented as `forward` below does.

    forward(out, *buffers, **params)                        -> buffer, saved
    backward(g, saved, *buffers, wanted=(...), **params)    -> one gradient buffer, or None, per input

- `saved` is a tree of tuples whose leaves are buffers or plain values. It is everything that the kernel keeps until the
  gradient is computed, besides the inputs.
- `g` is the buffer of the cotangent, with the shape of the result. With several results, `g` is a tuple of buffers;
  the cotangent of a result that was not used is zeros.
- `wanted` has one bool per input: whether its gradient is requested. For an input that is a list, the entry of `wanted`
  and the gradient are tuples.
- Each gradient has the shape and dtype of its input. Return None for an input whose gradient is not wanted. If the
  gradient of a wanted input is None, the op's decomposition is differentiated instead.
- `forward` returns NotImplemented for a call that the kernel does not support, such as a row too long for the device.
  The op's decomposition then runs on the same backend.

By default all inputs are kept until the gradient is computed. Fused(forward, backward, needs) names, for the gradient
of each input, the inputs that `backward` reads:

    Fused(forward, backward, {"x": ("weight",), "weight": ("x",), "bias": ()})

If no higher derivative can be requested, the other inputs are freed early, and `backward` receives their Specs instead
of their buffers. Such a `backward` must return every gradient that is wanted.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from polyarr.core.program import Fusion, Program, Run
from polyarr.core.spec import COMPLEX, DTYPES
from polyarr.core.tuning import Tuning


class Fused(NamedTuple):
    """Fused kernel of a composed op with its VJP; a backend provides both functions or neither.

    Attributes:
        forward: (out, *buffers, **params) -> (buffer, saved), or NotImplemented for a call that it does not support.
        backward: (g, saved, *buffers, wanted, **params) -> one gradient buffer or None per input.
        needs: Input name -> names of the inputs that `backward` reads for its gradient. An input that is not a key
            needs all inputs.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    needs: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class Launch(NamedTuple):
    """Work submitted to a device, as reported to a launch callback.

    Attributes:
        name: Name of the kernel or of the memory operation.
        work: Global size of a kernel, or (number of bytes,) of a copy; empty if unknown.
        group: Local size (work-group or thread block) of a kernel; None if the work is not a kernel.
        times: () -> (start, end) of the work on the device, in seconds of time.perf_counter. Waits for the work to
            finish.
        step: The program and the step of a captured function that the work belongs to; None for a call outside of one.
    """

    name: str
    work: tuple[int, ...]
    group: tuple[int, ...] | None
    times: Callable[[], tuple[float, float]]
    step: Any = None


def _nothing() -> None:
    """Return at once: the default `synchronize`, of a backend whose kernels have finished when they return."""


def family_of(name: str) -> str:
    """Return the registered name of a backend, without its device: "opencl" for "opencl:1"."""
    return name.partition(":")[0]


class DLPack(NamedTuple):
    """Zero-copy exchange of buffers through DLPack.

    Attributes:
        export: buffer -> an object with `__dlpack__` and `__dlpack_device__`. Raises BufferError if the buffer cannot
            be shared.
        adopt: An object with those methods -> buffer, which may share its memory and then keeps it alive. Raises
            BufferError for a device, dtype or strides that the backend does not support.
    """

    export: Callable[[Any], Any]
    adopt: Callable[[Any], Any]


# (buffers of one dtype, dtype on the wire, "sum" or "mean") -> the reduced buffers
Reduce = Callable[[Sequence[Any], np.dtype, str], list[Any]]


class Rendezvous(NamedTuple):
    """A device-to-device collectives library (such as NCCL) and how to create a communicator with it.

    Attributes:
        place: Identifier of the device within its machine. Two ranks on one device cannot form a communicator.
        library: Name and version of the library; must be equal on all ranks.
        dtypes: dtypes that the library reduces.
        unique_id: () -> unique id of a new communicator. Rank 0 creates it and sends it to the other ranks.
        join: (unique id, rank, size) -> Reduce: the all-reduce of the communicator. Returns when all ranks have joined.
    """

    place: str
    library: str
    dtypes: frozenset[np.dtype]
    unique_id: Callable[[], bytes]
    join: Callable[[bytes, int, int], Reduce]


class Collectives(NamedTuple):
    """All-reduce of buffers across processes.

    Attributes:
        rendezvous: () -> Rendezvous. Raises BackendError with the reason if the library is not available. None: not
            supported.
        shared_memory: (memory of each rank as bytes, own rank, barrier) -> Reduce: the all-reduce of floating-point
            buffers through host memory that all ranks of a host map. None: not supported.
        settle: Completes deferred all-reduces, so that no rank waits for this one. An all-reduce may be deferred until
            more work is enqueued.
    """

    rendezvous: Callable[[], Rendezvous] | None = None
    shared_memory: Callable[[Sequence[np.ndarray], int, Callable[[], Any]], Reduce] | None = None
    settle: Callable[[], None] = lambda: None


class Backend(NamedTuple):
    """A backend as a value: what runs the ops on one device.

    The first four fields are required; every other field is an optional capability. The module's docstring describes
    the contract of `kernels`.

    Attributes:
        name: Name that users write: the registered name and, with several devices, a colon and the device ("numpy",
            "opencl:1").
        kernels: Op -> kernel or Fused. Read-only once the backend has started.
        upload: numpy.ndarray -> buffer that owns its memory.
        download: buffer -> C-contiguous numpy.ndarray owned by the caller. Waits for the buffer's value.
        synchronize: () -> None. Waits for all enqueued work. Raises the error of a kernel that no download has raised.
        dtypes: dtypes of the arrays that the backend can hold; by default all but the complex ones. bool, int32, int64,
            uint32 and float32 are required.
        hardware: One line that describes the hardware. (`Array.device` is `name`.)
        memory: () -> bytes by name: "in use", "peak", "held", "limit". Empty if unknown.
        unordered: Ops that are not deterministic: the last bits of their results may differ between calls.
        guarded: () -> context manager that detects out-of-bounds writes. Memory allocated within it is filled with 0xff
            bytes and lies between canaries; the exit raises BackendError if a canary was overwritten. None: not
            supported.
        flushes: dtypes whose subnormal numbers kernels may flush to zero. The conformance kit then accepts zeros.
        observing: (callback) -> context manager within which callback(Launch) is called for all work submitted to the
            device. Entering it returns the ids of the kernels, and of the functions of Fused kernels, whose launches
            are reported. None: the profiler times the calls of kernels instead.
        peaks: () -> measured peak rates of the device: "GB/s", "GFLOP/s" for float32 arithmetic, and the keys of
            `precision.products_in` for matrix products. Empty if unknown.
        tuning: What `polyarr tune` can measure. None: nothing.
        reads: Op -> names of scalar inputs that its kernel also accepts as 0-d arrays and reads on the device. All
            other scalar inputs arrive as Python numbers.
        precisions: Op -> float32 matmul precisions that its kernel distinguishes besides "highest". Only these kernels
            receive the parameter `precision`: "highest" or one of them.
        handle: Backend-specific object for kernels from plugins (build, empty, ...); documented by the backend. None:
            plugins can use the buffers only.
        home: Identifier of the memory. Arrays of backends with equal homes can be inputs of one op, and move between
            these backends without a copy. None: the home is `name`.
        transfer: (buffer, target backend) -> buffer of the target, or NotImplemented: a copy that avoids the host.
            None: not supported.
        dlpack: Zero-copy exchange with other libraries. None: not supported.
        replay: (Program, default run) -> run: a faster way to run a captured program; see core/program.py. None:
            kernels are called one by one.
        fusion: Steps of a captured program that the backend fuses; see core/program.py. None: no fusion.
        collectives: All-reduce with backends of other processes. None: through host memory.
        download_later: buffer -> function that returns what `download` would return now, without a wait for work that
            is enqueued after this call. None: `download` is called at once.
        rows_at_once: Number of rows that a linear layer computes in about the time of one, as on GPUs, whose memory
            limits it. Prompts of several texts are then computed together, filled up to as many tokens.
        abstract: Kernel, or function of a Fused kernel -> the same without computing: it gives buffers of the same
            Specs, saves and leaves out the same, and declines the same calls. If all kernels are in it, captures
            compute nothing.

    Examples:
        >>> import numpy as np, polyarr as pa
        >>> from polyarr.backends.kernels import make_kernels
        >>> download = lambda buffer: np.array(buffer, order="C")
        >>> backend = pa.Backend("mine", make_kernels(np), upload=np.array, download=download)
        >>> pa.asarray([1.0, 2.0], device=backend) + 1
        Array([2., 3.], float32, 'mine')
    """

    name: str
    kernels: Mapping[Any, Any]
    upload: Callable[[np.ndarray], Any]
    download: Callable[[Any], np.ndarray]
    synchronize: Callable[[], None] = _nothing
    dtypes: frozenset[np.dtype] = frozenset(DTYPES) - {*COMPLEX}
    hardware: str = "cpu"
    memory: Callable[[], dict[str, int]] = dict
    unordered: frozenset[Any] = frozenset()
    guarded: Callable[[], AbstractContextManager] | None = None
    flushes: frozenset[np.dtype] = frozenset()
    observing: Callable[[Callable[[Launch], None]], AbstractContextManager[Any]] | None = None
    peaks: Callable[[], Mapping[str, float]] = dict
    tuning: Tuning | None = None
    reads: Mapping[Any, tuple[str, ...]] = MappingProxyType({})
    precisions: Mapping[Any, tuple[str, ...]] = MappingProxyType({})
    handle: Any = None
    home: Any = None
    transfer: Callable[[Any, "Backend"], Any] | None = None
    dlpack: DLPack | None = None
    replay: Callable[[Program, Run], Run] | None = None
    fusion: Fusion | None = None
    collectives: Collectives | None = None
    download_later: Callable[[Any], Callable[[], np.ndarray]] | None = None
    rows_at_once: int = 1
    abstract: Mapping[Callable[..., Any], Callable[..., Any]] = MappingProxyType({})

    def meets(self, other: "Backend") -> bool:
        """Return whether arrays of the two backends may be inputs of one op."""
        return self is other or self._home == other._home

    @property
    def _home(self) -> Any:
        return self.name if self.home is None else self.home

    @property
    def family(self) -> str:
        """Registered name, without the device."""
        return family_of(self.name)

    def __repr__(self) -> str:
        return f"<backend {self.name} on {self.hardware}>"

    def without_fused(self) -> "Backend":
        """Return the backend without its Fused kernels; their ops then run their decompositions."""
        return self._replace(kernels={op: k for op, k in self.kernels.items() if not isinstance(k, Fused)})


class Transfers(NamedTuple):
    """Number and size of the copies between host and backends.

    Attributes:
        uploads: Number of copies from the host.
        downloads: Number of copies to the host.
        upload_bytes: Bytes copied from the host.
        download_bytes: Bytes copied to the host.
    """

    uploads: int = 0
    downloads: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0


_transfers = Transfers()


def transfers() -> Transfers:
    """Return the copies between host and backends since the process started.

    Subtract two readings to count those of a region.

    Returns:
        Transfers with the number and the bytes of copies in both directions.

    Examples:
        >>> import polyarr as pa
        >>> before = pa.transfers()
        >>> x = pa.asarray([1.0, 2.0])
        >>> pa.transfers().upload_bytes - before.upload_bytes
        8
    """
    return _transfers


def count_upload(nbytes: int) -> None:
    """Count one copy of nbytes from the host."""
    global _transfers
    _transfers = _transfers._replace(uploads=_transfers.uploads + 1, upload_bytes=_transfers.upload_bytes + nbytes)


def count_download(nbytes: int) -> None:
    """Count one copy of nbytes to the host."""
    global _transfers
    _transfers = _transfers._replace(
        downloads=_transfers.downloads + 1, download_bytes=_transfers.download_bytes + nbytes
    )
