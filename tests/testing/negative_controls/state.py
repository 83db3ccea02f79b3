"""Faults in a backend's state: reused buffers, incomplete cache keys, scratch shared by threads, copies."""

import threading

import numpy as np

from polyarr import ops
from polyarr.core.backend import Fused
from tests.testing.negative_controls.moving import from_the_start
from tests.testing.negative_controls.sizes import paired, wrapping
from tests.testing.negative_controls.table import differs, fault, with_kernels

# ---- results in memory that is used again ------------------------------------------------------------------------

LASTING = "{what} is another one after 20 more calls"


def in_a_ring(count):
    """Write results of one shape and dtype into so many buffers in turn."""

    def change(kernel):
        rings = {}

        def changed(out, *bufs, **params):
            found = np.asarray(kernel(out, *bufs, **params))
            ring = rings.setdefault((found.shape, found.dtype, threading.get_ident()), [])
            if len(ring) < count:
                ring.append(np.array(found))
                return ring[-1]
            ring.append(ring.pop(0))
            ring[-1][...] = found
            return ring[-1]

        return changed

    return change


for _op, _count in (
    (ops.expm1, 16),
    (ops.log1p, 20),
    (ops.cumulative_sum, 12),
    (ops.argmin, 16),
    (ops.scatter_add, 16),
    (ops.prod, 18),
    (ops.atan2, 16),
):
    wrapping(
        "numpy",
        _op,
        f"{_op.name}: {_count} buffers take turns",
        {f"lasting-{_op.name}": LASTING.format(what="the result")},
        in_a_ring(_count),
    )


def gradient_in_a_ring(fused):
    ring = in_a_ring(16)(lambda out, d: d)
    return fused._replace(
        backward=lambda *args, **params: (
            ring(None, fused.backward(*args, **params)[0]),
            *fused.backward(*args, **params)[1:],
        )
    )


wrapping(
    "fused",
    ops.rms_norm,
    "rms_norm: 16 buffers for gradients take turns",
    {"lasting-rms_norm": LASTING.format(what="d/dx")},
    gradient_in_a_ring,
)

# ---- caches that know too little ---------------------------------------------------------------------------------


def remembering(key, *forgotten):
    """Use the first call's parameters for every call with the same key(out, *bufs)."""

    def change(kernel):
        first = {}

        def changed(out, *bufs, **params):
            known = first.setdefault(key(out, *bufs), params)
            return kernel(out, *bufs, **{**params, **{name: known[name] for name in forgotten}})

        return changed

    return change


def remembering_pair(*forgotten):
    def change(fused):
        first = {}

        def known(bufs, params):
            shapes = tuple((b.shape, b.dtype) if isinstance(b, np.ndarray) else None for b in bufs)
            before = first.setdefault(shapes, params)
            return {**params, **{name: before[name] for name in forgotten}}

        return Fused(
            lambda out, *bufs, **params: fused.forward(out, *bufs, **known(bufs, params)),
            lambda g, saved, *bufs, **params: fused.backward(g, saved, *bufs, **known(bufs, params)),
        )

    return change


def first_number(kernel):
    """Compile a Python number into the kernel, and cache the kernel by shapes."""
    first = {}

    def changed(out, x, y):
        key = getattr(x, "shape", None), getattr(y, "shape", None), out.dtype
        if isinstance(y, np.ndarray):
            return kernel(out, x, y)
        return kernel(out, x, first.setdefault(key, y))

    return changed


def first_strides(kernel):
    """Test whether an array is contiguous only once per shape."""
    first = {}

    def changed(out, x):
        dense = first.setdefault((x.shape, x.dtype), x.flags.c_contiguous)
        return kernel(out, x.ravel(order="K").reshape(x.shape) if dense and not x.flags.c_contiguous else x)

    return changed


def first_dtype(kernel):
    """Use the kernel of the first dtype of a shape for all dtypes."""
    first = {}

    def changed(out, x):
        found = kernel(out, x.astype(first.setdefault(x.shape, x.dtype)))
        return found.astype(out.dtype)

    return changed


for _op, _change in (
    (ops.cumulative_sum, remembering(lambda out, x: (x.shape, x.dtype), "axis")),
    (ops.argsort, remembering(lambda out, x: (x.shape, x.dtype), "descending")),
    (ops.floor_divide, first_number),
    (ops.pow, first_number),
    (ops.bitwise_or, first_number),
    (ops.floor, first_strides),
    (ops.log, first_dtype),
):
    wrapping(
        "numpy",
        _op,
        f"{_op.name}: what is kept is found by the shape alone",
        {f"caches-{_op.name}": r"differs at|came as"},
        _change,
    )


def first_counter(kernel):
    """Cache random numbers by shape and key, without the counter."""
    first = {}

    def changed(out, key, counter, like, *, shape):
        return kernel(out, key, first.setdefault((shape, key), counter), like, shape=shape)

    return changed


wrapping(
    "numpy",
    ops.random_bits,
    "random_bits: the bits of a key are kept whatever the counter",
    {"caches-random_bits": differs(dtype="uint32")},
    first_counter,
)
for _op, _forgotten in (
    (ops.dropout, "rate"),
    (ops.attention, "scale"),
    (ops.gelu, "approximate"),
    (ops.linear, "activation"),
    (ops.cross_entropy, "label_smoothing"),
):
    wrapping(
        "fused",
        _op,
        f"{_op.name}: what is kept knows no {_forgotten}",
        {f"caches-{_op.name}": differs(r"(the result|d/d\w+)")},
        remembering_pair(_forgotten),
    )

# ---- threads -----------------------------------------------------------------------------------------------------

THREADS = r"(the result|d/d\w+) has other bits while other threads compute"


def with_scratch(kernel):
    """Keep a result in scratch memory that all threads share."""
    shared, turn = {}, threading.Condition()

    def changed(out, *bufs, **params):
        found = np.asarray(kernel(out, *bufs, **params))
        scratch = shared.setdefault((found.shape, found.dtype), np.empty_like(found))
        with turn:
            scratch[...] = found
            turn.notify_all()
            if threading.current_thread() is not threading.main_thread():
                turn.wait(0.02)  # the last thread waits for none
        return scratch.copy()

    return changed


for _op in (ops.cos, ops.min, ops.scatter, ops.concat, ops.bitwise_xor, ops.logaddexp, ops.slice_update):
    wrapping("numpy", _op, f"{_op.name}: threads share its scratch", {f"threads-{_op.name}": THREADS}, with_scratch)


def through(scratch, found):
    """Write a result to scratch memory and read it back at once."""
    view = scratch[: found.nbytes].view(found.dtype).reshape(found.shape)
    view[...] = found
    return view.copy()


def with_unlocked_scratch(kernel):
    scratch = np.empty(2**22, np.uint8)
    return lambda out, *bufs, **params: through(scratch, np.asarray(kernel(out, *bufs, **params)))


for _op in (ops.argsort, ops.max, ops.sqrt, ops.divide):
    wrapping(
        "numpy",
        _op,
        f"{_op.name}: threads share its scratch for a moment",
        {f"threads-{_op.name}": THREADS},
        with_unlocked_scratch,
    )


@fault("numpy", {"backend-overlaps": rf"\w+ on numpy: {THREADS}"})
def kernels_share_scratch_for_large_results(backend):
    scratch = np.empty(2**22, np.uint8)

    def change(kernel):
        def changed(out, *bufs, **params):
            found = np.asarray(kernel(out, *bufs, **params))
            return through(scratch, found) if 2**12 < found.size < 2**18 else found

        return changed

    changed = ops.exp, ops.subtract, ops.multiply, ops.argsort, ops.cumulative_sum, ops.take
    return with_kernels(backend, {op: change(backend.kernels[op]) for op in changed})


def with_a_common_state(kernel):
    common = {}

    def changed(out, key, counter, like, *, shape):
        common["state"] = key, counter
        key, counter = common["state"]  # before this line, another thread may have set it
        return kernel(out, key, counter, like, shape=shape)

    return changed


wrapping(
    "numpy",
    ops.random_bits,
    "random_bits: threads share key and counter",
    {"threads-random_bits": THREADS},
    with_a_common_state,
)


def at_home_only(kernel):
    """Leave the kernel's tables empty on all threads but the first."""

    def changed(out, *bufs, **params):
        found = kernel(out, *bufs, **params)
        return found if threading.current_thread() is threading.main_thread() else np.zeros_like(found)

    return changed


for _op in (ops.remainder, ops.erf, ops.nextafter):
    wrapping(
        "numpy",
        _op,
        f"{_op.name}: only the first thread has its tables",
        {f"threads-{_op.name}": THREADS},
        at_home_only,
    )

# ---- what a fused kernel saves ---------------------------------------------------------------------------------------

TWICE = "pulled for the second time, the fused kernel's "


def spending(change):
    """Compute the gradient in the saved buffers: change(saved) after each pull."""

    def wrap(fused):
        def backward(g, saved, *bufs, **params):
            found = fused.backward(g, saved, *bufs, **params)
            change(saved)
            return found

        return fused._replace(backward=backward)

    return wrap


def of_kept(fused):
    """Save into a list that the gradient empties."""

    def forward(out, *bufs, **params):
        found, saved = fused.forward(out, *bufs, **params)
        return found, [saved]

    return Fused(forward, lambda g, saved, *bufs, **params: fused.backward(g, saved.pop(), *bufs, **params))


def keeping(fused):
    """Keep saved buffers for ever."""
    kept = []

    def forward(out, *bufs, **params):
        found, saved = fused.forward(out, *bufs, **params)
        kept.append(saved)
        return found, saved

    return fused._replace(forward=forward)


for _op, _change in (
    (ops.layer_norm, lambda saved: saved[0].__imul__(0.5)),
    (ops.attention, lambda saved: saved[0].fill(0)),
    (ops.cross_entropy, lambda saved: saved[0].fill(0)),
    (ops.dropout, lambda saved: saved.__imul__(2)),
):
    wrapping(
        "fused",
        _op,
        f"{_op.name}: the gradient is worked out in what was saved",
        {f"fused-{_op.name}": differs(TWICE + r"d/d\w+")},
        spending(_change),
    )
wrapping(
    "fused",
    ops.rms_norm,
    "rms_norm: the gradient takes what was saved away",
    {"fused-rms_norm": "IndexError: pop from empty list"},
    of_kept,
)
for _op in (ops.layer_norm, ops.dropout):
    wrapping(
        "fused",
        _op,
        f"{_op.name}: what was saved is kept for ever",
        {f"memory-{_op.name}": "the buffer of what the fused kernel saved lives on when nobody holds it"},
        keeping,
    )

# ---- masks -------------------------------------------------------------------------------------------------------


def masked(name, when, spoil):
    paired(
        ops.attention,
        f"attention: {name}",
        lambda q, k, v, mask, *r, **p: mask is not None and when(q, k, mask),
        {"large-attention": r"differs at|came as|Error"},
        spoil,
    )


def scores_shape(q, k):
    return (*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])


masked(
    "a mask of one axis is taken for the queries'",
    lambda q, k, m: m.ndim == 1 and m.size > 1,
    lambda y, *r: y.__imul__(0.5),
)
masked(
    "a mask of one column hides nothing",
    lambda q, k, m: m.ndim == 2 and m.shape[-1] == 1 < m.shape[-2],
    lambda y, q, k, v, m, *r: np.copyto(y, y + 1),
)
masked(
    "a row that a mask of -inf hides is nan",
    lambda q, k, m: m.dtype.kind == "f" and m.ndim > 1,
    lambda y, q, k, v, m, *r: y.__setitem__(np.isneginf(np.broadcast_to(m, scores_shape(q, k))).all(-1), np.nan),
)
masked(
    "a mask for each of several heads is that of the first",
    lambda q, k, m: m.ndim > 3,
    lambda y, *r: y[1:].__setitem__(..., y[:1]),
)
paired(
    ops.attention,
    "attention: one head of keys serves the first head of queries only",
    lambda q, k, *r, **p: q.ndim > 2 and k.shape[:-2] != q.shape[:-2],
    {"large-attention": differs("d/dk")},
    backward=lambda d, *a: d[1].__imul__(0.5),
)

# ---- copies ------------------------------------------------------------------------------------------------------


def copies(name, caught, **changed):
    """Enter a fault of upload, download or synchronize: field=function of the correct one."""

    def plant(backend):
        return backend._replace(**{field: change(getattr(backend, field)) for field, change in changed.items()})

    plant.__name__ = name
    fault("numpy", {"backend-copies" if "KiB" in name else "backend-hosts": caught})(plant)


OTHER = r"numpy: .* comes (back|down) as other bytes"
copies(
    "an upload ignores the strides of the host",
    OTHER,
    upload=lambda up: lambda h: np.array(h.ravel(order="K").reshape(h.shape)),
)
copies(
    "an upload reads a part of the host from its beginning", OTHER, upload=lambda up: lambda h: up(from_the_start(h))
)
copies(
    "an upload keeps memory that is read-only",
    "read-only and changed after its upload, shares its memory",
    upload=lambda up: lambda h: up(h) if h.flags.writeable else h,
)
copies(
    "an upload past 64 KiB keeps the host's memory",
    r"numpy: bool\[143, 701\] comes back from an upload as other bytes",
    upload=lambda up: lambda h: h if h.nbytes >= 2**16 else up(h),
)
copies(
    "a download past 64 KiB is the memory itself",
    r"a download of .* shares the array's memory",
    download=lambda down: lambda b: b if b.nbytes >= 2**16 and b.flags.c_contiguous else down(b),
)
copies(
    "a download past 64 KiB ends there",
    r"comes back from an upload as other bytes",
    download=lambda down: lambda b: ended(down(b)),
)
copies(
    "a download of a view is a view",
    r"comes down in another order|shares the array's memory",
    download=lambda down: lambda b: b if b.base is not None else down(b),
)
copies(
    "a download of a transposed part ignores its strides",
    OTHER,
    download=lambda down: (
        lambda b: down(b.ravel(order="K").reshape(b.shape) if b.ndim == 2 and b.strides[0] < b.strides[1] else b)
    ),
)
copies(
    "what is downloaded cannot be written to",
    "cannot be written to|read-only",
    download=lambda down: lambda b: fixed(down(b)) if b.ndim == 2 else down(b),
)


def ended(host):
    host.reshape(-1).view(np.uint8)[2**16 :] = 0
    return host


def fixed(host):
    host.flags.writeable = False
    return host


@fault("numpy", {"backend-synchronize": "synchronize returned before an index that is out of range was reported"})
def synchronize_does_not_wait(backend):
    """Let take defer its error to the next download, and synchronize ignore it."""
    own, wrong = backend.kernels[ops.take], []

    def kernel(out, x, indices, *, axis):
        n = x.shape[axis]
        if ((indices < -n) | (indices >= n)).any():
            wrong.append(f"take: an index is out of range for {n} elements")
            indices = np.clip(indices, -n, n - 1)
        return own(out, x, indices, axis=axis)

    def download(buf):
        if wrong:
            raise IndexError(wrong.pop())
        return backend.download(buf)

    return with_kernels(backend._replace(download=download), {ops.take: kernel})
