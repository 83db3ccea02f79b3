"""Faults with side effects, on NumPy: changed memory, threads, copies, missing kernels and dtypes."""

import contextlib
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

from polyarr import ops, plugins
from polyarr.capture.run import runner
from polyarr.core.backend import count_download, count_upload
from polyarr.core.program import Fusion, Kind, flat
from polyarr.core.spec import NARROW, Spec, complex64, complex128, float32, int64
from tests.testing.negative_controls import fused_kernels
from tests.testing.negative_controls.table import differs, fault, with_kernels


def changing(op, change):
    """Return a planter that wraps the op's own kernel."""
    return lambda backend: with_kernels(backend, {op: change(backend.kernels[op])})


# ---- whose memory it is --------------------------------------------------------------------------------------


@fault("numpy", {"purity-negative": "the op changed the input x"})
def an_input_is_overwritten(backend):
    def kernel(out, x):
        found = np.negative(x)
        if x.flags.writeable:
            x[...] = found
        return found

    return with_kernels(backend, {ops.negative: kernel})


@fault("fused", {"purity-layer_norm": "its gradient changed the input x"})
def a_gradient_overwrites_an_input(backend):
    fused = fused_kernels.FUSED[ops.layer_norm]

    def backward(g, saved, x, *rest, **params):
        found = fused.backward(g, saved, x, *rest, **params)
        if x.flags.writeable:
            x[...] = found[0]
        return found

    return with_kernels(backend, {ops.layer_norm: fused._replace(backward=backward)})


@fault("numpy", {"bounds-exp": "memory beside the elements of an input was changed"})
def memory_beside_an_input_is_written(backend):
    def change(kernel):
        def changed(out, x):
            root = x
            while root.base is not None:
                root = root.base
            if root.size > x.size:
                root.reshape(-1)[-1] = 0
            return kernel(out, x)

        return changed

    return changing(ops.exp, change)(backend)


@fault("numpy", {"memory-exp": "the buffer of the result lives on when nobody holds it"})
def results_are_kept(backend):
    kept = []

    def change(kernel):
        def changed(out, x):
            kept.append(kernel(out, x))
            return kept[-1]

        return changed

    return changing(ops.exp, change)(backend)


@fault("fused", {"memory-rms_norm": "the buffer of d/dx lives on when nobody holds it"})
def gradients_are_kept(backend):
    fused, kept = fused_kernels.FUSED[ops.rms_norm], []

    def backward(*args, **params):
        kept.append(fused.backward(*args, **params))
        return kept[-1]

    return with_kernels(backend, {ops.rms_norm: fused._replace(backward=backward)})


@fault("numpy", {"backend-copies": r"numpy: bool\[\d+\] comes back from an upload as other bytes"})
def an_upload_keeps_the_callers_memory(backend):
    return backend._replace(upload=np.asarray)


@fault("numpy", {"backend-copies": r"numpy: bool\[143, 701\] comes back from an upload as other bytes"})
def an_upload_keeps_aligned_memory(backend):
    def upload(host):
        is_fit = host.nbytes >= 4096 and host.ctypes.data % 64 == 0 and host.flags.c_contiguous
        return np.asarray(host) if is_fit else np.array(host)

    return backend._replace(upload=upload)


@fault("numpy", {"backend-copies": r"numpy: a download of bool\[\] shares the array's memory"})
def a_download_is_the_memory_itself(backend):
    return backend._replace(download=np.asarray)


@fault("numpy", {"transfers-exp": "the op made 1 uploads and 1 downloads; expected none"})
def an_op_goes_through_the_host(backend):
    def change(kernel):
        def changed(out, x):
            count_download(x.nbytes)
            count_upload(x.nbytes)
            return kernel(out, backend.upload(backend.download(x)))

        return changed

    return changing(ops.exp, change)(backend)


READS = "if they are numbers, have the kernel read key, counter from arrays, and say so in Backend.reads"


@fault("numpy", {"transfers-random_bits": f"the op made 0 uploads and 1 downloads; expected none; {READS}"})
def a_kernel_takes_its_numbers_to_the_host(backend):
    def change(kernel):
        def changed(out, *bufs, **params):
            count_download(8)
            return kernel(out, *bufs, **params)

        return changed

    return changing(ops.random_bits, change)(backend)


@fault("numpy", {"captured-negative": "compiled, when it is captured: the result has other bits"}, steady=False)
def a_kernel_counts_its_calls(backend):
    calls = itertools.count(1)
    return changing(ops.negative, lambda kernel: lambda *a, **p: kernel(*a, **p) + next(calls).__index__())(backend)


@fault("numpy", {"batched-tanh": "vmap over inputs .0. along axis 0: result or gradient of each example"})
def a_third_axis_is_read_in_another_order(backend):
    """The first example of most checks has fewer axes."""

    def change(kernel):
        return lambda out, x: kernel(out, x[::-1] if x.ndim == 3 else x)

    return changing(ops.tanh, change)(backend)


# ---- the same every time -------------------------------------------------------------------------------------


def off_by_a_bit(found, times):
    """Change the last bit of the first element in every so many calls."""
    if times and found.size and found.dtype.kind == "f":
        found = np.array(found)
        found.reshape(-1)[0] = np.nextafter(found.reshape(-1)[0], found.dtype.type(9))
    return found


@fault("numpy", {"determinism-sum": "the result has other bits the second time"}, steady=False)
def every_third_sum_differs(backend):
    calls = itertools.count()
    return changing(ops.sum, lambda kernel: lambda *a, **p: off_by_a_bit(kernel(*a, **p), next(calls) % 3 == 0))(
        backend
    )


@fault("numpy", {"determinism-tanh": "not the same every time; once: .* has other bits the second time"}, steady=False)
def some_results_differ(backend):
    """Change results so rarely that hypothesis does not reproduce it."""
    calls = itertools.count()
    return changing(ops.tanh, lambda kernel: lambda *a, **p: off_by_a_bit(kernel(*a, **p), next(calls) == 2))(backend)


THREADS = {"backend-threads": r"numpy: thread \d+ of 16 computed other bits than it does alone"}


@fault("fused", THREADS)
def threads_share_what_is_saved(backend):
    fused, place = fused_kernels.FUSED[ops.layer_norm], {}

    def forward(out, x, *rest, **params):
        place["x"] = x
        time.sleep(1e-3)  # the others get their turn
        return fused.forward(out, place["x"], *rest, **params)

    return with_kernels(backend, {ops.layer_norm: fused._replace(forward=forward)})


@fault("numpy", THREADS)
def threads_share_a_buffer(backend):
    shared = {}

    def change(kernel):
        def changed(out, *bufs, **params):
            found = kernel(out, *bufs, **params)
            scratch = shared.setdefault((out.shape, out.dtype), np.empty_like(found))
            scratch[...] = found
            time.sleep(1e-3)  # the others get their turn
            return scratch.copy()

        return changed

    return changing(ops.exp, change)(backend)


STALE = """
import os
from pathlib import Path
import numpy as np
from polyarr import ops
from polyarr.backends.numpy import start as sound
from polyarr.plugins import hookimpl

def start():
    file, backend = Path(os.environ["XDG_CACHE_HOME"]) / "polyarr-stale", sound()
    if "POLYARR_NO_CACHE" not in os.environ and file.exists():
        exp = backend.kernels[ops.exp]
        backend.kernels[ops.exp] = lambda out, x: (exp(out, x) * 1.001).astype(out.dtype)
    file.touch()
    return backend._replace(name="stale")

@hookimpl
def polyarr_backends(register):
    register("stale", start, api=2)
"""


@contextlib.contextmanager
def installed(name="stale", source=STALE):
    """Install a backend in this and in new processes, as `pip install` would."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"polyarr_{name}.py").write_text(source)
        info = Path(folder) / f"polyarr_{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: polyarr-{name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[polyarr]\n{name} = polyarr_{name}\n")
        known = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        with mock.patch.dict(os.environ, PYTHONPATH=known), mock.patch.object(sys, "path", [folder, *sys.path]):
            with plugins.fresh():
                yield
            sys.modules.pop(f"polyarr_{name}", None)


@fault(
    "numpy",
    {"backend-program-cache": "stale: a process with a full cache computes other bits than one with an empty cache"},
    within=installed,
)
def what_is_cached_is_another_program(backend):
    return backend._replace(name="stale")


# ---- what joins ops ---------------------------------------------------------------------------------------------

JOINED = (ops.add, ops.subtract, ops.multiply, ops.divide, ops.exp, ops.tanh, ops.where)


def joining(make, of=JOINED):
    """Return a planter that fuses some ops with `make`."""
    fusion = Fusion(lambda step, specs, out: Kind(out.shape) if step.op in of else None, make, 12)
    return lambda backend: backend._replace(fusion=fusion)


@fault("numpy", {"backend-joined": r"compiled ops of float\w+\[.*\], \w+ have other bits than the ops"})
def an_input_that_is_repeated_is_read_as_dense(backend):
    def make(group, kind):
        run = runner(group)
        return lambda outs, *inputs: tuple(run([b if np.isscalar(b) else np.resize(b, outs[0].shape) for b in inputs]))

    return joining(make)(backend)


def rounded_once(wider):
    """Return a maker of groups that compute in the wider dtypes, by dtype, and round their results to their own."""

    def wide(value):
        if type(value) is Spec:
            return Spec(value.shape, wider.get(value.dtype, value.dtype))
        return value.astype(wider[value.dtype]) if getattr(value, "dtype", None) in wider else value

    def make(group, kind):
        steps = [s._replace(call=lambda *args, call=s.call: call(*map(wide, args))) for s in group.steps]
        run = runner(group._replace(steps=tuple(steps)))
        return lambda outs, *inputs: tuple(f.astype(o.dtype) for f, o in zip(run([*inputs]), outs, strict=True))

    return make


@fault("numpy", {"backend-joined": r"compiled ops of b?float16\[.*\], \w+ have other bits than the ops"})
def ops_of_16_bits_are_rounded_once_for_all(backend):
    return joining(rounded_once(dict.fromkeys(NARROW, float32)))(backend)


@fault("numpy", {"backend-joined": r"compiled ops of complex64\[.*\], \w+ have other bits than the ops"})
def parts_of_fused_products_of_complex64_are_rounded_once(backend):
    return joining(rounded_once({complex64: complex128}), of=(ops.multiply, ops.real_part))(backend)


@fault("fused", {"backend-joined": r"compiled ops of norms and linear layers of float32\[5, 33\] have other bits"})
def a_residual_connection_loses_its_gradient_to_that_of_a_norm(backend):
    def replay(program, plain):
        of_norms = {
            v for s in program.steps if s.op is ops.layer_norm and s.part == "backward" for v in flat(s.outputs)
        }

        def joined(step):
            places = [i for i, v in enumerate(step.inputs) if v in of_norms]
            return step._replace(call=lambda *args: args[places[0]]) if step.op is ops.add and places else step

        return runner(program._replace(steps=tuple(map(joined, program.steps))))

    return backend._replace(replay=replay)


# ---- what a backend must have --------------------------------------------------------------------------------


@fault(
    "numpy",
    {
        "backend-complete": "numpy: no kernel for cumulative_sum; every primitive needs one",
        "forward-cumulative_sum": "BackendError: cumulative_sum: backend 'numpy' has no kernel for it",
    },
)
def a_primitive_is_missing(backend):
    return backend._replace(kernels={op: k for op, k in backend.kernels.items() if op is not ops.cumulative_sum})


@fault("numpy", {"backend-complete": "numpy: holds no int64; every backend must"})
def a_dtype_is_missing(backend):
    return backend._replace(dtypes=backend.dtypes - {int64})


@fault("numpy", {"forward-hypot": "TypeError: .*unexpected keyword|TypeError: .*positional"})
def a_kernel_takes_other_arguments(backend):
    return with_kernels(backend, {ops.hypot: lambda x, y: np.hypot(x, y)})


@fault("numpy", {"forward-unstack": differs(r"result \d+")})
def a_window_begins_too_late(backend):
    def change(kernel):
        def changed(out, x, starts, *, steps, shape):
            late = tuple(
                start + (0 < start < n - count) for start, n, count in zip(starts, x.shape, shape, strict=True)
            )
            return kernel(out, x, late if set(steps) == {1} else starts, steps=steps, shape=shape)

        return changed

    return changing(ops.slice, change)(backend)
