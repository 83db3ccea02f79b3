"""Faults in the optional fields of a Backend, on NumPy: DLPack, memory, waiting, launches, moves, declarations."""

import contextlib
import ctypes
import threading
import time
import weakref

import numpy as np

from polyarr import ops
from polyarr.core.backend import Fused, Launch
from polyarr.core.dlpack import Shared, memory_of
from polyarr.core.spec import float64
from tests.testing.negative_controls.aliases import root_of
from tests.testing.negative_controls.table import fault

# ---- DLPack ------------------------------------------------------------------------------------------------------


def exporting(change):
    """Return a planter that changes exported memory."""
    share = lambda buf: Shared(lambda stream, copy: np.array(buf) if copy else change(np.asarray(buf)))
    return lambda backend: backend._replace(dlpack=backend.dlpack._replace(export=share))


def adopting(change):
    """Return a planter that changes adopted memory."""
    return lambda backend: backend._replace(
        dlpack=backend.dlpack._replace(adopt=lambda x: change(backend.dlpack.adopt(x)))
    )


def start_of(a):
    return a.__array_interface__["data"][0]


def without_owner(a):
    """Return the same memory without a reference to its owner."""
    if not a.size:
        return a
    first, last = np.lib.array_utils.byte_bounds(a)
    memory = (ctypes.c_char * (last - first)).from_address(first)
    return np.ndarray(a.shape, a.dtype, memory, start_of(a) - first, a.strides)


def comes(how, what="other bytes"):
    return {"backend-sharing": rf"numpy: dlpack, .*, {how} as {what}"}


@fault("numpy", comes("comes out"))
def a_view_is_exported_from_the_start_of_its_memory(backend):
    def begun(a):
        root = root_of(a)
        return np.ndarray(a.shape, a.dtype, root, 0, a.strides) if min(a.strides, default=0) >= 0 else a

    return exporting(begun)(backend)


@fault("numpy", comes("comes out"))
def a_reversed_array_is_exported_forwards(backend):
    return exporting(lambda a: a[tuple(slice(None, None, -1 if s < 0 else 1) for s in a.strides)])(backend)


@fault("numpy", comes("after the array itself is gone, comes out"))
def exported_memory_has_no_owner(backend):
    return exporting(without_owner)(backend)


@fault("numpy", {"backend-sharing": "numpy: dlpack exports a copy of a whole array; it must share its memory"})
def an_export_copies(backend):
    return exporting(np.array)(backend)


@fault("numpy", {"backend-sharing": "numpy: dlpack exports a whole array in place of the copy that was asked for"})
def an_export_never_copies(backend):
    return backend._replace(dlpack=backend.dlpack._replace(export=lambda buf: Shared(lambda stream, copy: buf)))


@fault("numpy", comes("comes in"))
def adopted_memory_is_taken_for_dense(backend):
    def plant(x):
        found = backend.dlpack.adopt(x)
        if isinstance(x, np.ndarray) and found.ndim == 2:
            return np.lib.stride_tricks.as_strided(found, strides=(found.itemsize * found.shape[1], found.itemsize))
        return found

    return backend._replace(dlpack=backend.dlpack._replace(adopt=plant))


@fault("numpy", comes("comes (in|out)", r"float64\[6, 9\]; it is int64\[6, 9\]"))
def adopted_integers_are_taken_for_floats(backend):
    return adopting(lambda a: a.view(np.float64) if a.dtype == np.int64 else a)(backend)


@fault("numpy", {"backend-sharing": "it is freed while the backend shares its memory"})
def adopted_memory_has_no_owner(backend):
    def plant(x):
        if not isinstance(x, np.ndarray):
            return backend.dlpack.adopt(x)
        return without_owner(memory_of(x))

    return backend._replace(dlpack=backend.dlpack._replace(adopt=plant))


@fault("numpy", {"backend-sharing": "its memory (is kept|lives on) when nobody holds"})
def adopted_memory_is_kept_for_ever(backend):
    kept = []
    return adopting(lambda a: (kept.append(a), a)[1])(backend)


@fault("numpy", {"backend-sharing": r"dlpack adopts memory of device \(8, 0\); it must raise BufferError"})
def memory_of_any_device_is_adopted(backend):
    return backend._replace(dlpack=backend.dlpack._replace(adopt=memory_of))


# ---- memory ------------------------------------------------------------------------------------------------------


def metered(size=lambda n: n, falls=True, uploads=True, peak=max):
    """Return a planter that gives NumPy a memory report with these properties."""

    def plant(backend):
        count, known = {"in use": 0, "peak": 0}, weakref.WeakValueDictionary()

        def changed(by):
            count["in use"] += by
            count["peak"] = peak(count["peak"], count["in use"])

        def kept(a):
            if type(a) is tuple:
                return tuple(map(kept, a))
            root = root_of(np.asarray(a))
            if id(root) not in known:
                known[id(root)] = root
                changed(size(root.nbytes))
                if falls:
                    weakref.finalize(root, changed, -size(root.nbytes))
            return a

        def wrapped(kernel):
            return (
                kernel if isinstance(kernel, Fused) else lambda out, *bufs, **params: kept(kernel(out, *bufs, **params))
            )

        kernels = {op: wrapped(kernel) for op, kernel in backend.kernels.items()}
        upload = (lambda host: kept(np.array(host))) if uploads else np.array
        return backend._replace(kernels=kernels, upload=upload, memory=lambda: dict(count))

    return plant


def reports(says):
    return {"backend-memory": f"numpy: {says}"}


@fault("reporting", reports("an upload of 1048576 bytes raises memory in use by 0 bytes"))
def memory_in_use_never_changes(backend):
    return backend._replace(memory=lambda: {"in use": 4096})


@fault("reporting", reports("1048576 bytes are in use after an upload of 1048576 bytes, and nobody holds them"))
def memory_in_use_never_falls(backend):
    return metered(falls=False)(backend)


@fault("reporting", reports("an upload of 1048576 bytes raises memory in use by 262144 bytes"))
def memory_is_counted_in_elements(backend):
    return metered(size=lambda n: n // 4)(backend)


@fault("reporting", reports("an upload of 1048576 bytes raises memory in use by 0 bytes"))
def memory_of_uploads_is_not_counted(backend):
    return metered(uploads=False)(backend)


@fault("reporting", reports("the peak is 0 bytes after an upload of 1048576 bytes, when 1048576 were in use"))
def the_peak_falls(backend):
    return metered(peak=lambda before, now: now)(backend)


# ---- waiting -----------------------------------------------------------------------------------------------------


class Later:
    """A deferred result, computed when it is read or at synchronize."""

    def __init__(self, make):
        self.make, self.found, self.lock = make, None, threading.RLock()

    def get(self):
        with self.lock:
            if self.make is not None:
                self.found, self.make = self.make(), None
            return self.found


def got(buf):
    return tuple(map(got, buf)) if type(buf) is tuple else buf.get() if type(buf) is Later else buf


def later(waits=True, copies=True):
    """Return a planter that makes a backend asynchronous."""

    def plant(backend):
        enqueued = weakref.WeakSet()

        def put_off(make):
            found = Later(make)
            enqueued.add(found)
            return found

        def wrapped(op, kernel):
            def run(out, *bufs, **params):
                work = lambda: kernel(out, *map(got, bufs), **params)
                if op in (ops.matrix_product, ops.sum, ops.exp):
                    return put_off(work)
                found = work()
                return tuple(put_off(lambda a=a: a) for a in found) if type(out) is tuple else put_off(lambda: found)

            return run

        def synchronize():
            for found in [*enqueued] if waits else ():
                found.get()

        def upload(host):
            if host.nbytes < 2**20:
                return np.array(host)
            taken = host.copy() if copies else host
            return put_off(lambda: np.array(taken))

        kernels = {op: wrapped(op, kernel) for op, kernel in backend.kernels.items()}
        return backend._replace(
            kernels=kernels, upload=upload, download=lambda buf: backend.download(got(buf)), synchronize=synchronize,
            dlpack=None,
        )  # fmt: skip

    return plant


@fault("numpy", {"backend-waiting": "numpy: after synchronize downloading one number still took .* of the time"})
def synchronize_does_not_wait(backend):
    return later(waits=False)(backend)


@fault("numpy", {"backend-waiting": "numpy: download_later of .* gives other bytes than download"})
def a_later_download_takes_a_view_for_its_memory(backend):
    def download_later(buf):
        whole = np.ravel(buf if buf.base is None else buf.base)
        return lambda: np.resize(whole.view(buf.dtype), buf.shape)

    return backend._replace(download_later=download_later)


@fault("numpy", {"backend-waiting": "numpy: an upload behind long work has values that were written after it"})
def a_large_upload_is_read_later(backend):
    return later(copies=False)(backend)


# ---- launches ----------------------------------------------------------------------------------------------------


def noting(times=lambda began, ended: (began, ended), ends=True, tells=True):
    """Return a planter that makes NumPy report the calls of its kernels."""

    def plant(backend):
        notes = []

        def wrapped(kernel):
            def run(*args, **params):
                began = time.perf_counter()
                found, ended = kernel(*args, **params), time.perf_counter()
                for note in notes if tells else ():
                    note(Launch("kernel", (), None, lambda: times(began, ended)))
                return found

            return run

        kernels = {op: wrapped(kernel) for op, kernel in backend.kernels.items()}

        @contextlib.contextmanager
        def watched(note):
            notes.append(note)
            yield frozenset(map(id, kernels.values()))
            if ends:
                notes.remove(note)

        return backend._replace(kernels=kernels, observing=watched)

    return plant


@fault("reporting", {"backend-observing": "numpy: observing claims to report the kernel of exp, and reported nothing"})
def launches_are_not_told_of(backend):
    return noting(tells=False)(backend)


@fault("reporting", {"backend-observing": "numpy: observing reports that kernel of exp ran from .*; the call took"})
def launches_have_times_of_another_clock(backend):
    return noting(times=lambda began, ended: (began + 100, ended + 100))(backend)


@fault("reporting", {"backend-observing": "numpy: observing goes on after its context ended"})
def launches_are_told_of_for_ever(backend):
    return noting(ends=False)(backend)


# ---- moves, and what fields claim --------------------------------------------------------------------------------


@fault("numpy", {"backend-moves": "elsewhere: a transposed array of bool, moved to NumPy, has other bytes"})
def a_transfer_takes_all_for_dense(backend):
    def transfer(buf, target):
        return target.upload(np.ravel(buf, "K").reshape(buf.shape))

    return backend._replace(name="elsewhere", transfer=transfer)


@fault("numpy", {"backend-moves": "mine:0: a transposed array of bool, moved to another device, has other"})
def a_transfer_between_devices_takes_all_for_dense(backend):
    def transfer(buf, target):
        return np.ravel(buf, "K").reshape(buf.shape) if target.name == "mine:0" else NotImplemented

    return backend._replace(name="mine:0", transfer=transfer)


@fault(
    "numpy", {"backend-moves": "elsewhere: its home is 'numpy', and an array of it added to one of NumPy gives other"}
)
def a_home_is_that_of_other_buffers(backend):
    def boxed(found):
        return tuple(map(boxed, found)) if type(found) is tuple else [found]

    def opened(buf):
        return tuple(map(opened, buf)) if type(buf) is tuple else buf[0] if type(buf) is list else buf

    def wrapped(kernel):
        return lambda out, *bufs, **params: boxed(kernel(out, *map(opened, bufs), **params))

    return backend._replace(
        name="elsewhere", home="numpy", kernels={op: wrapped(kernel) for op, kernel in backend.kernels.items()},
        upload=lambda host: [np.array(host)], download=lambda buf: backend.download(buf[0]), dlpack=None,
    )  # fmt: skip


@fault(
    "numpy",
    {"backend-fields": "numpy: flushes names float64; it must name floating-point and complex dtypes among dtypes"},
)
def what_is_not_held_is_flushed(backend):
    return backend._replace(dtypes=backend.dtypes - {float64}, flushes=frozenset({float64}))


@fault("numpy", {"backend-fields": "numpy: dtypes names complex64, complex128; there must be kernels for complex$"})
def a_complex_dtype_comes_without_its_group(backend):
    return backend._replace(kernels={op: kernel for op, kernel in backend.kernels.items() if op is not ops.complex})


@fault("numpy", {"backend-fields": "numpy: rows_at_once is 0; it must be an int, at least 1"})
def no_row_is_computed_at_once(backend):
    return backend._replace(rows_at_once=0)


@fault("numpy", {"backend-fields": "numpy: reads names lr of exp; inputs of it that are numbers: none"})
def an_unknown_input_is_read(backend):
    return backend._replace(reads={ops.exp: ("lr",)})


@fault("numpy", {"backend-fields": "numpy: precisions names fast of exp; ops of products know high, medium"})
def an_unknown_precision_is_claimed(backend):
    return backend._replace(precisions={ops.exp: ("fast",)})
