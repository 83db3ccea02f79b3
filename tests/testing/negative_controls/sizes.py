"""Faults that appear only beyond a size, on NumPy and its Fused kernels: past the first block, row or tile."""

import numpy as np

from polyarr import ops
from polyarr.core.backend import Fused
from tests.testing.negative_controls.table import differs, fault, with_kernels


def wrapping(good, op, name, caught, change):
    """Enter a fault that wraps an op's own kernel: change(kernel) -> kernel."""

    def plant(backend):
        return with_kernels(backend, {op: change(backend.kernels[op])})

    plant.__name__ = name
    fault(good, caught)(plant)


def spoilt(op, name, when, spoil, caught=None, good="numpy"):
    """Change the result where when(out, *bufs, **params) holds: spoil(a copy of the result, *bufs)."""

    def change(kernel):
        def changed(out, *bufs, **params):
            found = kernel(out, *bufs, **params)
            if when(out, *bufs, **params):
                found = np.array(found)
                spoil(found, *bufs)
            return found

        return changed

    wrapping(good, op, name, caught or {f"large-{op.name}": differs()}, change)


def beyond(count, to=0):
    """Replace the elements after the first so many."""

    def spoil(found, *bufs):
        found.reshape(-1)[count:] = to

    return spoil


def rows_beyond(count):
    def spoil(found, *bufs):
        found[..., count:, :] = 0

    return spoil


def columns_beyond(count):
    def spoil(found, *bufs):
        found[..., count:] = 0

    return spoil


def is_long(out, *bufs, **params):
    return out.size > 2**16


def has_rows(out, *bufs, **params):
    return len(out.shape) == 2 and out.shape[0] > 128


def has_long_rows(out, *bufs, **params):
    return len(out.shape) > 0 and out.shape[-1] > 1024


# ---- one launch is not enough ------------------------------------------------------------------------------------

for _op in (ops.exp, ops.add, ops.where, ops.random_bits, ops.iota):
    spoilt(_op, f"{_op.name}: a launch covers 65,536 elements", is_long, beyond(2**16))
spoilt(
    ops.tanh,
    "tanh: an index of 16 bits comes round again",
    is_long,
    lambda y, x: y.reshape(-1).__setitem__(slice(2**16, None), y.reshape(-1)[: y.size - 2**16]),
)
spoilt(
    ops.exp,
    "exp: of three elements behind the last vector, two are written",
    lambda out, x: out.size > 1024 and out.size % 4 == 3,
    beyond(-1),
)
spoilt(ops.maximum, "maximum: rows past 1,024 elements are cut off", has_long_rows, columns_beyond(1024))
spoilt(
    ops.concat,
    "concat: the 65th array is left out",
    lambda out, arrays, **p: len(arrays) > 64,
    lambda y, arrays: y[-arrays[-1].shape[0] :].fill(0),
)
spoilt(
    ops.take,
    "take: indices past 65,535 come round again",
    lambda out, x, at, *, axis: x.shape[axis] > 2**16,
    lambda y, x, at: (
        y.__setitem__(..., x[np.where(at < 0, at + len(x), at) % 2**16]) if y.shape[1:] == x.shape[1:] else 0
    ),
)
spoilt(
    ops.scatter_add,
    "scatter_add: the work past 16,384 updates is lost",
    lambda out, x, at, u, *, axis: at.size > 2**14 and axis == 0 and at.ndim == 1,
    lambda y, x, at, u: np.subtract.at(y, at[2**14 :], u[2**14 :]),
)
spoilt(
    ops.sum,
    "sum: rows past 1,024 elements are cut off",
    lambda out, x, *, axis, **p: x.ndim == 2 and axis == (1,) and x.shape[1] > 1024,
    lambda y, x: np.copyto(y, x[:, :1024].sum(1).reshape(y.shape)),
)
spoilt(
    ops.max,
    "max: of the partial results of 512 groups, the first 256 are looked at",
    lambda out, x, *, axis, **p: out.size == 1 and x.size > 2**16,
    lambda y, x: y.fill(np.sort(x, axis=None)[-2]),
)
spoilt(
    ops.argmax,
    "argmax: rows after the 128th have the index of another row",
    lambda out, x, *, axis, **p: len(out.shape) == 1 and out.shape[0] > 128,
    lambda y, x: y[128:].fill(0),
    {"large-argmax": differs(dtype="int64")},
)
spoilt(
    ops.cumulative_sum,
    "cumulative_sum: the carry is lost past 4,096 elements",
    lambda out, x, *, axis, **p: x.ndim == 1 and x.size > 4096,
    lambda y, x: np.subtract(y[4096:], y[4095], out=y[4096:]),
)
spoilt(
    ops.argsort,
    "argsort: blocks of 1,024 are sorted and not merged",
    lambda out, x, *, axis, **p: x.ndim == 1 and x.size > 1024,
    lambda y, x: y.__setitem__(slice(1024), np.sort(y[:1024])),
    {"large-argsort": differs(dtype="int64")},
)
spoilt(
    ops.slice_update,
    "slice_update: rows after the 128th keep what they were",
    has_rows,
    lambda y, x, v, starts: y.__setitem__(slice(128, None), x[128:]),
)

# ---- axes --------------------------------------------------------------------------------------------------------


def has_axes(count):
    return lambda out, *bufs, **params: max(len(out.shape), *(np.ndim(b) for b in bufs)) >= count


def swapped_ends(found, *bufs):
    """Traverse the last axis backwards."""
    found[...] = found[..., ::-1].copy()


spoilt(ops.sin, "sin: a sixth axis is walked the wrong way", has_axes(6), swapped_ends)
spoilt(
    ops.multiply,
    "multiply: of six axes, the first is not looked at",
    has_axes(6),
    lambda y, *bufs: y[1:].__setitem__(..., y[:1]),
)
spoilt(ops.min, "min: six axes are one too many", lambda out, x, *, axis, **p: x.ndim >= 6, lambda y, x: y.fill(0))

# ---- products ----------------------------------------------------------------------------------------------------


def of_size(test):
    return lambda out, x, y: x.ndim >= 2 and y.ndim >= 2 and test(x.shape[-2], y.shape[-1], x.shape[-1])


PRODUCT = {"large-matrix_product": differs(r"(the result|d/d\w)")}
spoilt(
    ops.matrix_product,
    "matrix_product: past 128 rows, the last of an odd number is not written",
    of_size(lambda m, n, k: m > 128 and m % 16 == 1),
    rows_beyond(-1),
    PRODUCT,
)
spoilt(
    ops.matrix_product,
    "matrix_product: past 128 columns, three left over are not written",
    of_size(lambda m, n, k: n > 128 and n % 16 == 3),
    columns_beyond(-3),
    PRODUCT,
)
spoilt(
    ops.matrix_product,
    "matrix_product: of k past 128, the last five are not added",
    of_size(lambda m, n, k: k > 128 and k % 16 == 5),
    lambda z, x, y: z.__isub__(x[..., -5:] @ y[..., -5:, :]),
    PRODUCT,
)
spoilt(
    ops.matrix_product,
    "matrix_product: the 17th product of a batch is that of the 16th",
    lambda out, x, y: len(out.shape) == 3 and out.shape[0] > 16,
    lambda z, x, y: z[16:].__setitem__(..., z[15]),
    PRODUCT,
)
spoilt(
    ops.matrix_product,
    "matrix_product: of two batch axes, the second comes first",
    lambda out, x, y: len(out.shape) == 4 and x.ndim == y.ndim == 4 and min(out.shape[:2]) > 1,
    lambda z, x, y: z.__setitem__(..., z.reshape(z.shape[1], z.shape[0], *z.shape[2:]).swapaxes(0, 1).reshape(z.shape)),
    PRODUCT,
)

# ---- fused kernels ---------------------------------------------------------------------------------------------------


def paired(op, name, when, caught, forward=None, backward=None):
    """Return Fused kernels that spoil the result or the gradients if when(*bufs, **params) holds."""

    def change(fused):
        def run(out, *bufs, **params):
            found, saved = fused.forward(out, *bufs, **params)
            if forward and when(*bufs, **params):
                found = np.array(found)
                forward(found, *bufs)
            return found, saved

        def pull(g, saved, *bufs, wanted, **params):
            grads = fused.backward(g, saved, *bufs, wanted=wanted, **params)
            if backward and when(*bufs, **params):
                grads = tuple(d if d is None else np.array(d) for d in grads)
                backward(grads, g, *bufs)
            return grads

        return Fused(run, pull)

    wrapping("fused", op, name, caught, change)


def large(op, what="the result"):
    return {f"large-{op.name}": differs(what)}


paired(
    ops.softmax,
    "softmax: rows past 1,024 elements are cut off",
    lambda x, *, axis: axis in (-1, x.ndim - 1) and x.shape[-1] > 1024,
    large(ops.softmax),
    lambda y, x: y[..., 1024:].fill(0),
)
paired(
    ops.layer_norm,
    "layer_norm: the weight's gradient sums 128 rows",
    lambda x, *r, eps: x.size // x.shape[-1] > 128 and r[0] is not None,
    large(ops.layer_norm, "d/dweight"),
    backward=lambda d, g, x, *r: d[1].__imul__(0.98),
)
paired(
    ops.rms_norm,
    "rms_norm: rows past 4,096 elements are not normalised",
    lambda x, w, *, eps: x.shape[-1] > 4096,
    large(ops.rms_norm),
    lambda y, x, w: np.copyto(y, x),
)
paired(
    ops.linear,
    "linear: the bias's gradient leaves out rows past 256",
    lambda x, w, b, **p: x.size // x.shape[-1] > 256 and b is not None,
    large(ops.linear, "d/dbias"),
    backward=lambda d, g, *b: d[2].__isub__(g.reshape(-1, g.shape[-1])[256:].sum(0)),
)
paired(
    ops.attention,
    "attention: heads of 128 are summed over the first 64",
    lambda q, *r, **p: q.shape[-1] == 128,
    large(ops.attention),
    lambda y, *r: y[..., 64:].fill(0),
)
paired(
    ops.attention,
    "attention: positions after the 256th are not seen",
    lambda q, k, *r, **p: k.shape[-2] > 256 and q.shape[-2] > 256,
    large(ops.attention),
    lambda y, *r: y[..., 256:, :].fill(0),
)
paired(
    ops.attention,
    "attention: the 17th head has the gradient of the first",
    lambda q, *r, **p: q.ndim == 3 and q.shape[0] > 16,
    large(ops.attention, r"d/d\w"),
    backward=lambda d, g, *b: d[1][16:].__setitem__(..., d[1][0]),
)
paired(
    ops.cross_entropy,
    "cross_entropy: classes past 1,024 have no gradient",
    lambda x, *r, **p: x.shape[-1] > 1024,
    large(ops.cross_entropy, "d/dlogits"),
    backward=lambda d, g, *b: d[0][..., 1024:].fill(0),
)
paired(
    ops.dropout,
    "dropout: the numbers begin anew after 262,144",
    lambda x, *r, **p: x.size > 2**18,
    large(ops.dropout),
    lambda y, x, *r: y.reshape(-1)[2**18 :].fill(0),
)
paired(
    ops.gelu,
    "gelu: the gradient past 65,536 elements is 1",
    lambda x, **p: x.size > 2**16,
    large(ops.gelu, "d/dx"),
    backward=lambda d, g, x: d[0].reshape(-1)[2**16 :].fill(1),
)

# ---- steps over many tensors -------------------------------------------------------------------------------------


def stepping(name, change):
    """Return AdamW as one kernel for all tensors, with a fault: change(arguments, parameters) -> both, changed."""

    def plant(backend):
        sound = backend.without_fused()._replace(
            kernels={op: k for op, k in backend.kernels.items() if op is not ops.adamw}
        )
        before = backend.kernels.get(ops.adamw) or of_decomposition(ops.adamw, sound)
        return with_kernels(backend, {ops.adamw: lambda out, *args, **params: change(before, out, args, params)})

    plant.__name__ = name
    fault("numpy", {"large-adamw": differs(r"result \d+")})(plant)


def of_decomposition(op, backend):
    """Return a kernel that runs the op's decomposition on another backend."""
    from polyarr.core.array import from_numpy
    from polyarr.core.current import use_backend

    def boxed(a):
        return (
            tuple(map(boxed, a)) if isinstance(a, tuple) else from_numpy(a, backend) if isinstance(a, np.ndarray) else a
        )

    def opened(a):
        return tuple(map(opened, a)) if isinstance(a, tuple) else a.buf

    def kernel(out, *args, **params):
        with use_backend(backend):
            return opened(op(*map(boxed, args), **params))

    return kernel


def the_64_first(before, out, args, params):
    found = before(out, *args, **params)
    return tuple((*new[:64], *old[64:]) for new, old in zip(found, (args[0], args[2], args[3]), strict=True))


def one_decay(before, out, args, params):
    decays = params["weight_decay"]
    return before(out, *args, **{**params, "weight_decay": tuple(decays[0] for _ in decays)})


def at_most_100(before, out, args, params):
    *lists, lr, step, scale = args
    return before(out, *lists, lr, min(step, 100), scale, **params)


stepping("adamw: tensors after the 64th stay as they are", the_64_first)
stepping("adamw: every tensor has the decay of the first", one_decay)
stepping("adamw: the step number stops at 100", at_most_100)
