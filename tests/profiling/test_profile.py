"""polyarr.profile: the launches in a block, and their times."""

import json
import math
import threading
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest

import polyarr as pa
from polyarr import plugins
from polyarr.autograd import transforms
from polyarr.capture import repeated
from polyarr.core import watch
from polyarr.core.op import Op
from polyarr.core.record import FusedPull
from polyarr.profiling.perfetto import trace_of
from polyarr.profiling.summary import Account, Row, Timed, _aligned, account_of, kernels, ops
from tests.helpers.opencl_modules import opencl_modules

on_opencl = pytest.mark.polyarr_backend("opencl")


def names(rows):
    return {row.name: row for row in rows}


@pytest.fixture
def layers():
    """Return a function of a weight with Fused kernels, decompositions and VJP rules, and the weight."""
    x, bias = pa.asarray(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)), pa.zeros(4)
    return lambda w: pa.mean(pa.layer_norm(pa.linear(x, w, bias), bias + 1.0, bias)), pa.ones((4, 4)) * x[:1]


def assert_nobody_is_asked():
    assert [getattr(owner, name) for owner, name, _, _ in watch.REPLACED] == [row[2] for row in watch.REPLACED]
    assert {(Op, "_run"), (FusedPull, "__call__"), (transforms, "_backward")} < {row[:2] for row in watch.REPLACED}


def test_every_call_and_its_gradient_has_a_row(backend, layers):
    """Fused forward and backward have rows of their own; otherwise the ops of the decomposition and its gradient."""
    fn, w = layers
    without = pa.value_and_grad(fn)(w)
    with pa.profile() as p:
        within = pa.value_and_grad(fn)(w)
    assert_nobody_is_asked()
    assert [np.array_equal(a.numpy(), b.numpy()) for a, b in zip(without, within, strict=True)] == [True, True]
    rows, composed = names(p.ops()), names(p.decompositions())
    if pa.layer_norm in backend.kernels:
        assert {"linear", "linear backward", "layer_norm", "layer_norm backward"} <= rows.keys()
        assert not {"linear", "layer_norm"} & composed.keys()
    else:
        assert {"matrix_product", "matrix_product (gradient)", "multiply (gradient)"} <= rows.keys()
        assert {"linear", "layer_norm"} <= composed.keys()
    assert "mean" in composed and composed["mean"].launches > 1
    assert sum(row.calls for row in rows.values()) == sum(
        call.part in ("kernel", "forward", "backward") for call in p.calls
    )
    assert all(row.seconds > 0 for row in rows.values() if row.launches)
    assert str(p).splitlines()[4].startswith("host, elsewhere") and "layer_norm" in str(p)


def test_a_compiled_function_is_seen_as_it_runs(backend):
    """Each step with its line, with the bits of a run without a profile, and with this run's scalars."""

    def loss(w, x, n):
        return pa.mean(pa.layer_norm(pa.matmul(x, w), w[0], w[0]) * n)

    compiled = pa.compile(pa.value_and_grad(loss))
    w, x = pa.ones((4, 4)), pa.asarray(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    for n in (2.0, 3.0):
        compiled(w, x, n)
    due = compiled(w, x, 4.0)
    with pa.profile() as p:
        found = compiled(w, x, 4.0)
    assert_nobody_is_asked()
    assert [np.array_equal(a.numpy(), b.numpy()) for a, b in zip(due, found, strict=True)] == [True, True]
    rows = p.ops()
    where = f", test_profile.py:{loss.__code__.co_firstlineno + 1}"
    ran = [part for row in rows if row.name.endswith(where) for part in row.name.removesuffix(where).split("+")]
    assert {"matrix_product", "multiply", "sum"} <= {*ran}
    assert pa.layer_norm not in backend.kernels or "layer_norm" in ran
    assert all(row.launches and row.calls for row in rows if row.name.endswith(where))
    assert backend.observing is None or sum(row.launches for row in rows) == sum(row.launches for row in p.kernels())
    assert backend.observing is None or [row.name for row in p.decompositions()] == ["loss"]
    again = compiled(w, x, 4.0)  # not by the queue that noted times
    assert [np.array_equal(a.numpy(), b.numpy()) for a, b in zip(due, again, strict=True)] == [True, True]


@on_opencl
def test_a_fused_group_is_one_kernel_with_the_names_of_its_ops_and_its_line(tmp_path):
    """Also if an argument is donated, which the run overwrites as it does without a profile."""

    def fn(x, y):
        return pa.exp(x) * 2.0 + y

    compiled = pa.compile(fn, donate=("x",))
    due = [compiled(pa.ones((4, 4)), 3.0).numpy() for _ in range(3)][-1]
    x = pa.ones((4, 4))
    memory = x.buf.memory.int_ptr
    with pa.profile() as p:
        found = compiled(x, 3.0)
    assert found.buf.memory.int_ptr == memory
    p.save(tmp_path / "trace.json")
    assert np.array_equal(found.numpy(), due)
    (row,) = p.ops()
    assert row.name == f"exp+multiply+add, test_profile.py:{fn.__code__.co_firstlineno + 1}"
    assert (row.calls, row.launches, row.nbytes, [name for name, _ in row.kernels]) == (1, 1, 128, ["elementwise"])
    (span,) = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e.get("cat") == "device"]
    place = f"{__file__}:{fn.__code__.co_firstlineno + 1}"
    assert span["name"] == "exp+multiply+add" and span["args"]["kernel"] == "elementwise"
    assert span["args"]["line"] == place and span["args"]["bytes"] == 128
    assert span["args"]["fused"] == [f"{name}, {place}" for name in ("exp", "multiply", "add")]


@on_opencl
def test_the_table_names_three_of_many_fused_ops():
    def long(x):
        for _ in range(3):
            x = pa.tanh(x * 2) + 1
        return x

    step, x = pa.compile(long), pa.ones((4, 5))
    for _ in range(3):
        step(x)
    with pa.profile() as p:
        step(x)
    names = "+".join(["multiply", "tanh", "add"] * 3)
    assert any(row.name.startswith(names) for row in p.ops())
    assert "multiply+tanh+add+6 more" in str(p) and names not in str(p)


def test_layers_share_a_row_where_their_shapes_are_the_same(backend):
    """Layers with other widths have rows of their own, with their numbers."""

    def rows(*widths):
        layers = pa.nn.Sequential(*(pa.nn.Linear(n, m, bias=False) for n, m in pairwise(widths)))
        compiled, x = pa.compile(lambda layers, x: layers(x)), pa.ones((2, widths[0]))
        for _ in range(3):
            compiled(layers, x)
        with pa.profile() as p:
            compiled(layers, x)
        return {tuple(row.name.split(", ")[:2]): row.calls for row in p.ops() if "layers" in row.name}

    op = "linear" if pa.linear in backend.kernels else "matrix_product"
    assert rows(4, 4, 4)[op, "layers.*"] == 2
    found = rows(4, 8, 8, 8, 8, 3, 8)
    assert {path: calls for (name, path), calls in found.items() if name == op} == {
        "layers.0": 1, "layers.1-3": 3, "layers.4": 1, "layers.5": 1
    }  # fmt: skip
    assert "layers.0,2" in {path for _, path in rows(4, 8, 4, 8)}


def test_what_is_traced_is_not_taken_for_work_of_a_device(backend):
    """The first call of a compiled function traces its ops before it runs them."""

    def compiled():
        return pa.compile(lambda x: pa.exp(x @ x) - 1.0)

    with pa.profile() as plain:
        compiled().fn(pa.ones((3, 3)))
    with pa.profile() as p:
        compiled()(pa.ones((3, 3)))
    if backend.observing is None:
        assert len(p.launches) == len(plain.launches)
    else:
        assert all(launch.work for launch in p.launches) and p.launches
        assert sum(row.launches for row in p.ops()) == sum(row.launches for row in p.kernels())
        assert all(row.calls or row.name in ("upload", "transfer") for row in p.ops()), "a row of a kernel"


@on_opencl
def test_a_function_that_is_captured_while_it_is_watched_runs_afterwards():
    """Its commands are bound to the queue that stays."""
    compiled = pa.compile(lambda x: pa.exp(x @ x) - 1.0)
    x = pa.ones((3, 3))
    with pa.profile() as p:
        found = [compiled(x) for _ in range(3)]
    found += [compiled(x) for _ in range(2)]
    assert all(np.array_equal(found[0].numpy(), a.numpy()) for a in found)
    assert "exp+subtract" in {row.name.split(",")[0] for row in p.ops()}


def test_the_ops_of_a_body_are_beneath_it(backend):
    """Each call refers to the call that made it."""
    x = pa.asarray([1.0, 2.0])
    with pa.profile() as p:
        pa.std(x)
    (outermost,) = [call for call in p.calls if call.outer is None]
    assert (outermost.name, outermost.part) == ("std", "decomposition")
    assert {call.name for call in p.calls if call.outer is outermost} == {"var", "equal", "where", "sqrt"}
    rows = [*p.ops(), *p.decompositions()]  # each second on the host is that of one row
    assert sum(row.host for row in rows) == pytest.approx(outermost.ended - outermost.began)


def test_a_gradient_through_a_decomposition_is_seen(backend):
    """A second derivative differentiates the decomposition."""
    x = pa.asarray([0.5, -1.0, 2.0])
    with pa.profile() as p:
        pa.grad(lambda x: pa.sum(pa.grad(lambda x: pa.sum(pa.softmax(x) * x))(x)))(x)
    assert any(call.op is pa.softmax and call.part == "decomposition" and call.within("walk") for call in p.calls) == (
        pa.softmax in backend.kernels
    )


def test_units_of_the_table_are_decimal():
    names, cells = (line.split() for line in _aligned("op", [Row("a", "", 1, 1, 1e-3, 2e-3, 3_000_000, 4e6)], {}))
    assert "".join(names) == "opcallslaunchesdevicemssharehostmsMBGB/sGFLOP/s"
    assert cells == ["a", "1", "1", "1.00", "100.0%", "2.00", "3.0", "3.0", "4.0"]


def test_a_profile_of_nothing_says_so():
    p = pa.profile()
    assert str(p) == p.table(peaks=True) == "nothing is profiled yet: with pa.profile() as p: ..., then print(p)"
    with p:
        assert str(p).startswith("nothing is profiled yet")
    assert str(p).startswith("time")


def test_blocks_nest_repeat_and_end_with_errors(backend):
    x = pa.asarray([1.0, 2.0])
    with pa.profile() as outer:
        pa.exp(x)
        inner = pa.profile()
        with inner:
            pa.log(x)
        with pytest.raises(pa.ShapeError), inner:
            pa.exp(x)
            x + pa.zeros(3)
        with pytest.raises(ZeroDivisionError):
            raise ZeroDivisionError
        pa.sin(x)
    pa.cos(x)
    assert_nobody_is_asked()
    assert [c.name for c in outer.calls if c.name != "fill"] == ["exp", "log", "exp", "add", "sin"]
    assert [c.name for c in inner.calls if c.name != "fill"] == ["log", "exp", "add"]
    (failed,) = [c for c in inner.calls if c.error]
    assert failed.part == "" and isinstance(failed.error, pa.ShapeError)
    assert len(inner.blocks) == 2 and names(inner.ops()).keys() == names(outer.ops()).keys() - {"sin"}


def test_threads_are_seen_and_kept_apart(backend):
    """The parent of a call is in its own thread."""
    x = pa.asarray([1.0, 2.0])
    at_once = threading.Barrier(3)

    def work():
        at_once.wait()
        for _ in range(20):
            pa.std(x)

    with repeated.after(math.inf), pa.profile() as p:  # a capture would be a call, too
        threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert names(p.decompositions())["std"].calls == 60
    assert all(call.outer is None or call.outer.thread is call.thread for call in p.calls)
    named = {e["args"]["name"] for e in trace_of(p.calls, p.launches, p.blocks)["traceEvents"] if e["ph"] == "M"}
    assert {"worker 0", "worker 1", "worker 2"} <= named


# ---- work ----------------------------------------------------------------------------------------------------------


def test_bytes_and_operations_follow_from_the_specs():
    """Operations of products, and the minimum of bytes of everything that moves data."""
    x, y = pa.ones((2, 3, 4), dtype=pa.float32), pa.ones((4, 5), dtype=pa.float32)
    with pa.use_backend("numpy"), pa.profile() as p:
        x @ y
        pa.take(pa.ones((100, 4), dtype=pa.float32), pa.asarray([1, 2]), axis=0)
        x + 1.0
        pa.permute_dims(y, (1, 0))
    rows = names(p.ops())
    assert rows["matrix_product"].operations == 2 * 2 * 3 * 5 * 4
    assert rows["matrix_product"].nbytes == 4 * (24 + 20 + 30)
    assert rows["take"].nbytes == 2 * 8 + 2 * 4 * 8
    assert (rows["add"].nbytes, rows["add"].operations) == (2 * 4 * 24, 0)
    assert rows["permute_dims"].nbytes == 0


@on_opencl
def test_operations_of_fused_kernels(backend):
    """The gradient of a linear layer takes twice as many, that of attention two and a half times as many."""
    q = pa.ones((1, 2, 8, 4), dtype=pa.float32)
    w, x = pa.ones((5, 4), dtype=pa.float32), pa.ones((3, 4), dtype=pa.float32)
    with pa.profile() as p:
        pa.grad(lambda q: pa.sum(pa.attention(q, q, q, causal=True)))(q)
        pa.grad(lambda x: pa.sum(pa.linear(x, w)))(x)
        pa.grad(lambda w: pa.sum(pa.embedding(w, pa.asarray([1, 2, 3], dtype=pa.int32))))(w)
    rows = names(p.ops())
    assert rows["attention"].operations == 2 * (64 + 64) * (8 * 8 - 28) / 8 * 1
    assert rows["attention backward"].operations == 2.5 * rows["attention"].operations
    assert rows["linear"].operations == 2 * 3 * 5 * 4
    assert rows["linear backward"].operations == 2 * rows["linear"].operations
    assert rows["linear backward"].nbytes == 4 * (15 + 12 + 20 + 12)
    assert rows["embedding backward"].nbytes == 4 * (12 + 3 + 20)  # the weight is not read


def test_the_account_of_a_block_adds_up():
    """Overlaps count once, and only inside the block; a gap begins when the next launch is queued."""

    def call(began, ended, outer=None):
        c = watch.Call(pa.exp, (), {}, None)
        c.began, c.ended, c.outer = began, ended, outer
        return c

    def launch(began, ended, queued=math.inf):
        return Timed("k", (1,), (1,), None, began, ended, queued)

    first = call(1.0, 3.0)
    calls = [call(1.5, 2.0, first), first, call(9.0, 12.0)]
    launches = [launch(2.0, 5.0, 1.75), launch(4.0, 6.0, 2.0), launch(20.0, 30.0)]
    assert account_of(calls, launches, [(0.0, 10.0)]) == Account(10.0, 4.0, 0.25, 1.75, 4.0)
    assert account_of([], [launch(8.0, 9.0, 2.0)], [(0.0, 4.0), (7.0, 10.0)]) == Account(7.0, 1.0, 3.0, 0.0, 3.0)
    assert account_of([], [], []) == Account(0.0, 0.0, 0.0, 0.0, 0.0)


def test_the_table_adds_up_to_the_wall_time(backend):
    """Whatever the clock said, and with launches that no op made."""
    with pa.profile() as p:
        pa.asarray(np.arange(4.0)).numpy()
        compiled = pa.compile(lambda x: pa.exp(x) - 1.0)
        for _ in range(3):
            compiled(pa.ones(4))
    account = account_of(p.calls, p.launches, p.blocks)
    assert sum(account[1:]) == pytest.approx(account.wall) and min(account) >= 0
    assert sum(row.seconds for row in p.ops()) == pytest.approx(sum(launch.seconds for launch in p.launches))
    lines = [line.split("  ") for line in str(p).splitlines()[1:7]]
    assert [line[0] for line in lines] == [
        "kernels and copies", "gaps between them", "host, in calls of ops", "host, elsewhere", "sum", "wall time"
    ]  # fmt: skip


def test_the_work_of_a_kernel_is_known_where_it_is_all_of_its_op():
    """The bytes moved are always known."""
    a = watch.Call(pa.exp, (pa.Spec((4,), pa.float32),), {}, None, "kernel")
    b = watch.Call(pa.exp, a.specs, {}, None, "kernel")
    a.out = b.out = a.specs[0]
    alone = [Timed("k", (4,), (1,), a, 0.0, 1.0), Timed("copy", (8,), None, None, 1.0, 2.0)]
    assert [(r.name, r.nbytes) for r in kernels(alone)] == [("k", 32), ("copy", 8)]
    shared = [*alone, Timed("k", (4,), (1,), b, 2.0, 3.0), Timed("l", (4,), (1,), b, 3.0, 4.0)]
    assert {r.name: (r.launches, r.nbytes) for r in kernels(shared)} == {"k": (2, 0), "l": (1, 0), "copy": (1, 8)}
    rows = ops([a, b], shared)
    assert [(r.name, r.calls, r.launches, r.seconds, r.nbytes) for r in rows] == [
        ("exp", 2, 3, 3.0, 64), ("copy", 0, 1, 1.0, 8)
    ]  # fmt: skip
    assert rows[0].kernels == (("k", 2.0), ("l", 1.0))


# ---- the trace -----------------------------------------------------------------------------------------------------


def wrong(trace):
    """Return violations of the trace format's rules for complete and metadata events."""
    found = []
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["no list of traceEvents"]
    for e in trace["traceEvents"]:
        if not isinstance(e.get("name"), str) or not all(isinstance(e.get(k), int) for k in ("pid", "tid")):
            found.append("an event without name, pid or tid")
        if e.get("ph") == "X":
            found += [f"{key} is no time" for key in ("ts", "dur") if not isinstance(e.get(key), float) or e[key] < 0]
        elif e.get("ph") != "M" or not isinstance(e["args"].get("name"), str):
            found.append("neither a span nor a name")
    return found or crossing([e for e in trace["traceEvents"] if e.get("ph") == "X"])


def crossing(spans):
    """Return spans of one track that overlap without being nested."""
    tracks, found = {}, []
    for e in spans:
        tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for track in tracks.values():
        around = []
        for began, ended in sorted(track, key=lambda s: (s[0], -s[1])):
            while around and around[-1] <= began + 1e-3:
                around.pop()
            if around and ended > around[-1] + 1e-3:
                found.append("two spans cross")
            around.append(ended)
    return found


def test_the_saved_trace_is_in_chromes_format(backend, layers, tmp_path):
    fn, w = layers
    with pa.profile() as p:
        pa.value_and_grad(fn)(w)[0].numpy()
    p.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert wrong(trace) == []
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {"gradient", "layer_norm"} <= {e["name"] for e in spans if e["pid"] == 1}
    assert len([e for e in spans if e["pid"] > 1]) == len(p.launches) > 0
    block = sum(ended - began for began, ended in p.blocks) * 1e6
    assert all(-1e3 < e["ts"] and e["ts"] + e["dur"] < block + 1e3 for e in spans), "one clock for host and device"
    found = (e for e in spans if e["name"] in ("layer_norm", "subtract") and e["pid"] == 1)
    kernel = next(e for e in found if e["cat"] != "decomposition")
    assert kernel["args"]["bytes"] > 0 and "float32[3, 4]" in kernel["args"]["inputs"]


def test_planted_faults_of_a_trace_are_found():
    def span(ts, dur, **other):
        return {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": ts, "dur": dur, **other}

    assert wrong({"traceEvents": [span(0.0, 2.0), span(0.5, 1.0), span(2.0, 1.0), span(2.5, 1.0, tid=2)]}) == []
    for planted in ([span(0.0, 2.0), span(1.0, 2.0)], [span(0.0, -1.0)], [span("0", 1.0)], [span(0.0, 1.0, pid="a")],
                    [{"ph": "?", "name": "a", "pid": 1, "tid": 1}]):  # fmt: skip
        assert wrong({"traceEvents": planted})
    assert wrong([]) and wrong({})


# ---- devices that note their own times -----------------------------------------------------------------------------


@on_opencl
def test_the_queue_is_the_plain_one_before_and_after(backend):
    """A profiling queue is slower, so it is used only in a block."""
    commands, observing = opencl_modules("commands", "observing")
    device = import_module("polyarr.backends.opencl.runtime.device").Device
    queue, plain, allocate = backend.home.queue, commands.Command.__call__, device._allocate
    x = pa.asarray([1.0, 2.0])
    held = import_module("polyarr.backends.opencl.devices").select().commands
    assert held.queue is queue
    with pytest.raises(ZeroDivisionError), pa.profile(), pa.profile():
        y = pa.exp(x)
        assert held.queue is not queue and commands.Command.__call__ is not plain
        raise ZeroDivisionError
    assert held.queue is queue and commands.Command.__call__ is plain and observing._notes == {}
    assert device._allocate is allocate
    assert np.allclose(y.numpy(), np.exp([1.0, 2.0]))


@on_opencl
def test_kernels_that_use_the_handles_queue_keep_their_turn(backend):
    """Such kernels bypass the profiling queue, so they are waited for and timed from outside."""
    cl, handle = import_module("pyopencl"), backend.handle
    if hasattr(backend.home.driver, "cuda"):
        pytest.skip("the driver is CUDA's")
    source = "__kernel void twice(__global const float *x, __global float *y)"
    source += "{ int i = get_global_id(0); y[i] = 2 * x[i]; }"
    twice = cl.Kernel(cl.Program(handle.context, source).build(), "twice")

    def kernel(out, x):
        result, x = handle.empty(out), handle.dense(x)
        with handle.lock:
            twice(handle.queue, (out.size,), None, x.memory, result.memory)
        return result

    commands = import_module("polyarr.backends.opencl.devices").select().commands
    with pa.use_backend(backend._replace(kernels={**backend.kernels, pa.negative: kernel})):
        x = pa.asarray([1.0, 2.0], dtype=pa.float32)
        pa.negative(x + 0.0).numpy()  # both are compiled
        with pa.profile() as p:
            x + 0.0
            gate = cl.UserEvent(handle.context)
            cl.enqueue_barrier(commands.queue, wait_for=[gate])
            opener = threading.Timer(0.3, gate.set_status, (cl.command_execution_status.COMPLETE,))
            opener.start()
            y = pa.negative(x + 1.0)  # the sum waits at the gate
            assert np.array_equal(y.numpy(), [4.0, 6.0])
            opener.join()
    assert names(p.ops())["negative"].launches == 1 and "twice" not in names(p.kernels())


def test_many_launches_are_read_in_between(backend, monkeypatch):
    """Drivers then need not keep an event for each launch."""
    monkeypatch.setattr("polyarr.profiling.recorder.UNREAD", 4)
    x = pa.asarray([1.0, 2.0])
    with pa.profile() as p:
        for _ in range(20):
            x = x + 1.0
            assert len(p._unread) < 8
    assert names(p.ops())["add"].launches == 20


def test_overridden_fused_kernels_are_timed_as_a_whole(backend):
    """If a plugin's forward returns NotImplemented, the decomposition appears instead."""

    def declines(out, *bufs, **params):
        return NotImplemented

    other = backend._replace(kernels={**backend.kernels, pa.softmax: pa.Fused(declines, declines)})
    with plugins.fresh(), pa.use_backend(other):
        x = pa.asarray([1.0, 2.0])
        with pa.profile() as p:
            pa.softmax(x)
    (call,) = [c for c in p.calls if c.op is pa.softmax]
    assert call.part == "decomposition" and "softmax" in names(p.decompositions()) and "softmax" not in names(p.ops())
