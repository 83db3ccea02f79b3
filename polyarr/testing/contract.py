"""Checks of the optional fields of Backend: each field's promise in polyarr/core/backend.py, tested from outside.

Every function takes a backend and the number of examples to try, like those of backend_checks.py. It raises
CheckFailure, or Lacking if the backend leaves the field out.
"""

import contextlib
import functools
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import polyarr
from polyarr import ops
from polyarr.core.array import Array, read_later
from polyarr.core.backend import Backend, Fused, Launch
from polyarr.core.current import use_backend
from polyarr.core.dlpack import CPU, Seen, Shared, address_of, memory_of
from polyarr.core.groups import lacking
from polyarr.core.op import OPS, Op
from polyarr.core.precision import PRECISIONS
from polyarr.core.spec import COMPLEX, DTYPES, FLOATS, Spec, bfloat16, float32, int64
from polyarr.core.spec import bool as bool_
from polyarr.testing.checks import reference
from polyarr.testing.compare import CheckFailure, Lacking
from polyarr.testing.strategies import Data

MIB = 2**20
ROUNDED = 4  # allowed rounding up by an allocator: a pool of powers of two takes up to twice the size requested
CHURN = 40  # arrays of one size created after another one is freed, so that its memory is reused
WORK = 0.05  # seconds of work that synchronize has to wait for
LARGEST = 4096  # rows of the largest product that is enqueued
VIEWED = (bool_, int64, float32, bfloat16)  # the dtypes in which all views are shared
UNKNOWN = (8, 0)  # DLPack device type and id of Metal, which no backend under test has

# Arrays as programs share them: views of a matrix of 6 by 9 elements, on the host and on a backend.
SHARED: dict[str, Callable[[Any], Any]] = {
    "a whole array": lambda a: a,
    "a transposed array": lambda a: a.T,
    "an array that begins later": lambda a: a[2:, 3:],
    "a row": lambda a: a[3],
    "an array of every second column": lambda a: a[:, 1::2],
    "a reversed array": lambda a: a[::-1, ::-1],
    "a reversed part": lambda a: a[4:0:-2, 2:],
    "an array without axes": lambda a: a[4, 5, ...],
    "an empty array": lambda a: a[:0],
}


# ---- what the fields say -----------------------------------------------------------------------------------------


def check_fields(backend: Backend, examples: int) -> None:
    """Check that the fields agree with each other and with the table of kernels."""
    for complaint in _complaints(backend):
        raise CheckFailure(f"{backend.name}: {complaint}")


def _complaints(backend: Backend) -> Iterator[str]:
    known = {op for op in OPS if op in backend.kernels}
    if unknown := [str(d) for d in backend.dtypes - {*DTYPES}]:
        yield f"dtypes names {', '.join(unknown)}; polyarr has {', '.join(d.name for d in DTYPES)}"
    if lost := [str(d) for d in backend.flushes - (backend.dtypes & {*FLOATS, *COMPLEX})]:
        yield f"flushes names {', '.join(lost)}; it must name floating-point and complex dtypes among dtypes"
    if lost := [getattr(op, "name", str(op)) for op in backend.unordered if op not in known]:
        yield f"unordered names {', '.join(lost)}, for which there is no kernel"
    if (held := [d.name for d in COMPLEX if d in backend.dtypes]) and (missing := lacking(backend, "complex")):
        yield f"dtypes names {', '.join(held)}; there must be kernels for {', '.join(op.name for op in missing)}"
    if len(backend.hardware.splitlines()) != 1:
        yield f"hardware is {backend.hardware!r}; it must be one line"
    if type(backend.rows_at_once) is not int or backend.rows_at_once < 1:
        yield f"rows_at_once is {backend.rows_at_once!r}; it must be an int, at least 1"
    if not backend.meets(backend):
        yield "its arrays do not meet each other: home must equal itself"
    yield from _numbers_and_precisions(backend)
    for op in known:
        yield from _of_kernel(op, backend.kernels[op])


def _numbers_and_precisions(backend: Backend) -> Iterator[str]:
    for op, names in backend.reads.items():
        numbers = {op.inputs[i] for i in op.numbers}
        if op not in backend.kernels or not {*names} <= numbers:
            known = ", ".join(sorted(numbers)) or "none"
            yield f"reads names {', '.join(names)} of {op.name}; inputs of it that are numbers: {known}"
    for op, words in backend.precisions.items():
        if op not in backend.kernels or not op.has_precision or not {*words} <= {*PRECISIONS[1:]}:
            yield f"precisions names {', '.join(words)} of {op.name}; ops of products know {', '.join(PRECISIONS[1:])}"


def _of_kernel(op: Op, kernel: Any) -> Iterator[str]:
    parts = kernel[:2] if isinstance(kernel, Fused) else (kernel,)
    if not all(map(callable, parts)):
        yield f"the kernel of {op.name} is {kernel!r}; it must be a function, or Fused(forward, backward)"
    if isinstance(kernel, Fused):
        named = {*kernel.needs, *(need for needs in kernel.needs.values() for need in needs)}
        if lost := sorted(named - {*op.inputs}):
            said = f"the fused kernel of {op.name} says that it needs {', '.join(lost)}"
            yield f"{said}; its inputs are {', '.join(op.inputs)}"


# ---- memory ------------------------------------------------------------------------------------------------------


def check_memory_report(backend: Backend, examples: int) -> None:
    """Check that memory in use rises with an upload and an op, falls when it is freed, and that the peak stays."""
    if not backend.memory():
        raise Lacking(f"{backend.name} does not report its memory")
    if "in use" not in _report(backend):
        raise CheckFailure(f"{backend.name}: memory() has no 'in use'; it must, or be empty")
    for nbytes in (MIB, 3 * MIB):
        host = np.ones(nbytes // 4, np.float32)
        takes = {
            "an upload": lambda host=host: polyarr.asarray(host, device=backend),
            "an op with its input": lambda host=host: ops.add(polyarr.asarray(host, device=backend), 1.0),
        }
        for what, make in takes.items():
            make()  # programs and tables cached by the first call may stay
            _rises_and_falls(backend, f"{what} of {nbytes} bytes", make, nbytes)


def _rises_and_falls(backend: Backend, what: str, make: Callable[[], Array], nbytes: int) -> None:
    before = _report(backend)
    made = make()
    during = _report(backend)
    rise = during["in use"] - before["in use"]
    if not nbytes <= rise <= ROUNDED * nbytes + MIB:
        raise CheckFailure(f"{backend.name}: {what} raises memory in use by {rise} bytes")
    del made
    after = _report(backend)
    if after["in use"] > before["in use"]:
        left = after["in use"] - before["in use"]
        raise CheckFailure(f"{backend.name}: {left} bytes are in use after {what}, and nobody holds them")
    if after.get("peak", during["in use"]) < during["in use"]:
        peak = f"the peak is {after['peak']} bytes"
        raise CheckFailure(f"{backend.name}: {peak} after {what}, when {during['in use']} were in use")


def _report(backend: Backend) -> dict[str, int]:
    """Return memory() with nothing left to free, after checking it: whole numbers of bytes, none above the limit."""
    gc.collect()
    backend.synchronize()
    found = backend.memory()
    for name, value in found.items():
        if type(name) is not str or not isinstance(value, (int, np.integer)) or value < 0:
            raise CheckFailure(f"{backend.name}: memory() says {name!r}: {value!r}; it must say bytes by name")
    used = found.get("in use", 0)
    for name in ("peak", "held", "limit"):
        if found.get(name, used) < used:
            raise CheckFailure(f"{backend.name}: memory() says {used} bytes in use, and {name} {found[name]}")
    return found


# ---- DLPack ------------------------------------------------------------------------------------------------------


def check_sharing(backend: Backend, examples: int) -> None:
    """Check memory exported and adopted through DLPack: its values, its strides, and its lifetime."""
    if backend.dlpack is None:
        raise Lacking(f"{backend.name} shares no memory through DLPack")
    _whole_arrays_are_shared(backend)
    for what, view, host in _views(backend):
        _check_export(backend, what, view, host)
        _check_adopt(backend, what, view, host)
    repeated = np.broadcast_to(Data((9,)).numpy(), (6, 9))
    _check_export(backend, "a repeated row", lambda a: ops.broadcast_to(a, shape=(6, 9)), repeated[0], repeated)
    _check_adopt(backend, "a repeated row", lambda a: np.broadcast_to(a, (6, 9)), repeated[0])
    _other_devices_are_refused(backend)


def _views(backend: Backend) -> Iterator[tuple[str, Callable, np.ndarray]]:
    """Yield a description, a function that views a matrix, and the matrix; all views in VIEWED, one in other dtypes."""
    for dtype in (d for d in DTYPES if d in backend.dtypes):
        host = Data((6, 9), dtype.name, "special").numpy()
        for what, view in SHARED.items() if dtype in VIEWED else [*SHARED.items()][:1]:
            yield f"{what} of {dtype.name}", view, host


def _whole_arrays_are_shared(backend: Backend) -> None:
    """Check that exporting a whole array shares its memory each time."""
    x = polyarr.asarray(Data((6, 9)).numpy(), device=backend)
    try:
        first, second = (backend.dlpack.export(x.buf) for _ in range(2))  # type: ignore[union-attr]
        seen = [Seen(shared) for shared in (first, second)]
        held = [memory_of(s) for s in seen]  # hold both: a second copy could reuse the memory of the first
        copied = Seen(first, copy=True)
    except BufferError as error:
        raise CheckFailure(f"{backend.name}: dlpack exports no whole array of float32: {error}") from error
    if len({s.address for s in seen[: len(held)]}) > 1:
        raise CheckFailure(f"{backend.name}: dlpack exports a copy of a whole array; it must share its memory")
    with contextlib.suppress(BufferError):  # for a library that makes no copies
        memory_of(copied)
    if copied.address == seen[0].address:
        raise CheckFailure(f"{backend.name}: dlpack exports a whole array in place of the copy that was asked for")


def _check_export(backend: Backend, what: str, view: Callable, host: np.ndarray, due: np.ndarray | None = None) -> None:
    """Check that an exported array can be read by NumPy, if it is on the host, and by the backend itself."""
    expected, place = np.array(view(host) if due is None else due), f"{backend.name}: dlpack, {what}"

    def exported() -> tuple[list[Callable[[], np.ndarray]], weakref.ref | None]:
        x = view(polyarr.asarray(host, device=backend))
        shared = backend.dlpack.export(x.buf)  # type: ignore[union-attr]
        adopted = backend.dlpack.adopt(shared)  # type: ignore[union-attr]
        readers: list[Callable[[], np.ndarray]] = [functools.partial(backend.download, adopted)]
        if tuple(shared.__dlpack_device__()) == CPU:
            readers.append(functools.partial(np.array, memory_of(shared), order="C"))
        shared.__dlpack__()  # a capsule that is never consumed
        return readers, weakref.ref(x.buf) if type(x.buf).__weakrefoffset__ else None

    try:
        readers, gone = exported()
    except BufferError:
        return
    _check_reads(readers, expected, f"{place}, comes out")
    _reuse_freed_memory(backend, host)
    _check_reads(readers, expected, f"{place}, after the array itself is gone, comes out")
    readers.clear()
    if gone is not None and _outlives(gone):
        raise CheckFailure(f"{place}: its memory lives on when nobody holds it or what was exported")


def _check_adopt(backend: Backend, what: str, view: Callable, host: np.ndarray) -> None:
    """Check that an array from NumPy is adopted with its values, kept alive while shared, and not written to."""
    expected, place = np.array(view(host)), f"{backend.name}: dlpack, {what} of NumPy"
    owner = host.copy()
    given, gone, spec = view(owner), weakref.ref(owner), Spec(view(host).shape, host.dtype)

    def shared(stream: Any, copy: Any, given: np.ndarray = given) -> np.ndarray:
        return given

    offered = Shared(shared) if host.dtype == bfloat16 else np.asarray(given)
    try:
        buf = backend.dlpack.adopt(offered)  # type: ignore[union-attr]
    except BufferError:  # memory on another device, or strides that it lacks
        return
    x = Array(backend, buf, spec)
    del buf
    _check_reads([x.numpy], expected, f"{place}, comes in")
    if not is_shared(backend, x, given):
        return
    del owner, given, offered, shared
    _reuse_freed_memory(backend, host)
    if gone() is None:
        raise CheckFailure(f"{place}: it is freed while the backend shares its memory")
    _check_reads([x.numpy], expected, f"{place}, after its owner let go of it, comes in")
    del x
    if _outlives(gone):
        raise CheckFailure(f"{place}: its memory is kept when nobody holds the array that shares it")


def is_shared(backend: Backend, x: Array, given: np.ndarray) -> bool:
    """Return whether the buffer of x is in the memory of `given`; both may be reversed."""
    if not x.size:
        return False
    try:
        start = address_of(backend.dlpack.export(x.buf))  # type: ignore[union-attr]
    except BufferError:
        return False
    first, last = np.lib.array_utils.byte_bounds(given)
    return first <= start < last


def _check_reads(readers: list, expected: np.ndarray, what: str) -> None:
    for read in readers:
        found = read()
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            raise CheckFailure(
                f"{what} as {found.dtype}{list(found.shape)}; it is {expected.dtype}{list(expected.shape)}"
            )
        if found.tobytes() != expected.tobytes():
            raise CheckFailure(f"{what} as other bytes")


def _outlives(gone: weakref.ref) -> bool:
    """Return whether the object is alive even after garbage collection."""
    if gone() is not None:
        gc.collect()
    return gone() is not None


def _reuse_freed_memory(backend: Backend, host: np.ndarray) -> None:
    """Allocate arrays so that freed memory of the host and of the backend is reused."""
    fillers = [np.full_like(host, 1) for _ in range(CHURN)]
    arrays = [polyarr.asarray(filler, device=backend) for filler in fillers]
    del fillers, arrays


def _other_devices_are_refused(backend: Backend) -> None:
    memory = Data((6, 9)).numpy()
    try:
        backend.dlpack.adopt(Shared(lambda stream, copy: memory, UNKNOWN))  # type: ignore[union-attr]
    except BufferError:
        return
    raise CheckFailure(f"{backend.name}: dlpack adopts memory of device {UNKNOWN}; it must raise BufferError")


# ---- moving to other backends ------------------------------------------------------------------------------------


def check_moves(backend: Backend, examples: int) -> None:
    """Check that arrays move to NumPy, and to another device, and back, and that ops accept those of one home."""
    elsewhere = reference()._replace(home=object())
    other_device = backend._replace(home=object())
    places = (("NumPy", elsewhere), ("NumPy", elsewhere._replace(dlpack=None)), ("another device", other_device))
    for place, target in places:
        moved = []
        for what, view, host in _views(backend):
            there = view(polyarr.asarray(host, device=backend)).to(target)
            back = view(polyarr.asarray(host, device=target)).to(backend)
            moved += [(f"{what}, moved to {place}", there, view(host))]
            moved += [(f"{what}, moved from {place}", back, view(host))]
        _reuse_freed_memory(backend, moved[-1][2])
        for what, x, host in moved:
            _check_moved(backend, what, x, host)
    if backend.meets(reference()) and backend.name != reference().name:
        _check_mixed_inputs(backend)


def _check_moved(backend: Backend, what: str, x: Array, host: np.ndarray) -> None:
    got, expected = x.numpy(), host.tobytes()
    if (got.shape, got.dtype) != (host.shape, host.dtype) or got.tobytes() != expected:
        raise CheckFailure(f"{backend.name}: {what}, has other bytes")
    if ops.concat([ops.reshape(x, shape=(-1,))] * 2).numpy().tobytes() != expected * 2:
        raise CheckFailure(f"{backend.name}: {what}, is read by an op as other bytes")


def _check_mixed_inputs(backend: Backend) -> None:
    host = Data((6, 9)).numpy()
    mine, other = (polyarr.asarray(host, device=place) for place in (backend, reference()))
    for a, b in ((mine, other), (other, mine)):
        found = ops.add(a, b).numpy()
        if found.shape != host.shape or found.tobytes() != (host + host).tobytes():
            said = f"its home is {backend.home!r}, and an array of it added to one of NumPy gives other numbers"
            raise CheckFailure(f"{backend.name}: {said}")


# ---- waiting -----------------------------------------------------------------------------------------------------


def check_waiting(backend: Backend, examples: int) -> None:
    """Check that a download after synchronize does not wait, and that an upload behind long work copies at once."""
    work = _enough_work(backend)
    late = [_share_of_download(backend, work) for _ in range(3)]
    if min(late) > 0.5:  # the best of three, so that no pause of the machine counts
        shares = ", ".join(f"{100 * share:.0f}%" for share in late)
        raise CheckFailure(
            f"{backend.name}: after synchronize downloading one number still took {shares} of the time of the work; "
            "synchronize must wait for everything that was enqueued"
        )
    host = np.arange(MIB, dtype=np.float32)
    behind, given = work(), host.copy()
    x = polyarr.asarray(given, device=backend)
    given[...] = -1.0
    if x.numpy().tobytes() != host.tobytes():
        raise CheckFailure(f"{backend.name}: an upload behind long work has values that were written after it")
    behind.numpy()
    if backend.download_later is not None:
        _check_later_downloads(backend, work)


def _check_later_downloads(backend: Backend, work: Callable[[], Array]) -> None:
    """Check downloads that begin behind long work, and end while more of it is enqueued."""
    before = work()
    reads = [
        (what, view(host), read_later(view(polyarr.asarray(host, device=backend))))
        for what, view, host in _views(backend)
    ]
    _reuse_freed_memory(backend, reads[0][1])
    after = work()
    for what, host, read in reads:
        found = read()
        if (found.shape, found.dtype, found.tobytes()) != (host.shape, host.dtype, host.tobytes()):
            raise CheckFailure(f"{backend.name}: download_later of {what} gives other bytes than download")
    if before.numpy().tobytes() != after.numpy().tobytes():
        raise CheckFailure(f"{backend.name}: the same work has other results behind download_later")


def _enough_work(backend: Backend) -> Callable[[], Array]:
    """Return a function that enqueues about WORK seconds of matrix products and returns the sum of the last one."""
    rows = 256
    while True:
        x = polyarr.asarray(Data((rows, rows)).numpy() / rows, device=backend)

        def work(x: Array = x) -> Array:
            y = x
            for _ in range(4):
                y = ops.matrix_product(y, x)
            return ops.sum(y)

        work().numpy()  # compiles
        start = time.perf_counter()
        work().numpy()
        if time.perf_counter() - start >= WORK or rows == LARGEST:
            return work
        rows *= 2


def _share_of_download(backend: Backend, work: Callable[[], Array]) -> float:
    backend.synchronize()
    start = time.perf_counter()
    result = work()
    backend.synchronize()
    waited = time.perf_counter()
    result.numpy()
    end = time.perf_counter()
    return (end - waited) / (end - start)


# ---- launches ----------------------------------------------------------------------------------------------------


def check_observing(backend: Backend, examples: int) -> None:
    """Check that the launch callback gets every launch, with times within the call, and none after its context."""
    if backend.observing is None:
        raise Lacking(f"{backend.name} reports no launches: Backend.observing is None")
    x = polyarr.asarray(Data((33, 33)).numpy(), device=backend)
    calls = {op: functools.partial(op, *args) for op, args in _launching(x).items() if op in backend.kernels}
    for call in calls.values():
        call().numpy()  # compiles
    for op, call in calls.items():
        found: list[Launch] = []
        begun = time.perf_counter()
        with use_backend(backend), backend.observing(found.append) as own:
            result = call()
            backend.synchronize()
        over, count = time.perf_counter(), len(found)
        if id(backend.kernels[op]) in own and not found:
            raise CheckFailure(
                f"{backend.name}: observing claims to report the kernel of {op.name}, and reported nothing"
            )
        for launch in found:
            _check_launch(backend, op, launch, begun, over)
        call().numpy()
        if len(found) > count:
            raise CheckFailure(f"{backend.name}: observing goes on after its context ended")
        del result


def _launching(x: Array) -> dict[Op, tuple]:
    """Return calls of ops that launch work on any device."""
    return {
        ops.exp: (x,),
        ops.add: (x, x),
        ops.matrix_product: (x, x),
        ops.sum: (x,),
        ops.take: (x, x.astype("int32") * 0),
    }


def _check_launch(backend: Backend, op: Op, launch: Launch, begun: float, over: float) -> None:
    slack = 0.01  # seconds: two clocks are compared
    start, end = launch.times()
    if not (begun - slack <= start <= end <= over + slack):
        raise CheckFailure(
            f"{backend.name}: observing reports that {launch.name} of {op.name} ran from {start:.6f} to {end:.6f}; the "
            f"call took from {begun:.6f} to {over:.6f}"
        )


CHECKS: dict[str, tuple[str, Callable[[Backend, int], None]]] = {
    "fields": ("core", check_fields),
    "memory": ("core", check_memory_report),
    "sharing": ("core", check_sharing),
    "moves": ("core", check_moves),
    "waiting": ("core", check_waiting),
    "observing": ("core", check_observing),
}
