"""POLYARR_TRACE, POLYARR_DEBUG, memory_stats, and the table of settings."""

import re
import threading
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import polyarr as pa
from polyarr import settings
from polyarr.core import watch
from polyarr.core.errors import DeviceMemoryError
from polyarr.profiling import tracing
from polyarr.settings import NAMES, VARIABLES
from tests.helpers.root import ROOT

on_opencl = pytest.mark.polyarr_backend("opencl")
PACKAGE = Path(pa.__file__).parent
PAGE = ROOT / "docs" / "debugging.md"


@pytest.fixture
def traced(backend, monkeypatch, capsys):
    """Return a function that returns what a function of x prints at a level of POLYARR_TRACE."""
    x = pa.asarray(np.ones((2, 3), np.float32))
    fn = pa.grad(lambda x: pa.mean(pa.softmax(x * 2.0)))
    fn(x)

    def lines(level, fn=fn):
        monkeypatch.setenv("POLYARR_TRACE", level)
        with tracing.start_from_environment():
            fn(x)
        return capsys.readouterr().err.splitlines()

    return lines


# ---- tracing -------------------------------------------------------------------------------------------------------


def test_a_trace_has_a_line_per_call(backend, traced):
    """With Specs, parameters, backend and kernel; nested ops of decompositions; backward calls."""
    lines = traced("1")
    where = backend.name
    assert f"multiply float32[2, 3], a Python float -> float32[2, 3]  [{where}: kernel]" in lines
    body = lines.index(f"mean float32[2, 3], axis=None, keepdims=False -> float32[]  [{where}: decomposition]")
    assert lines[body + 1].startswith("  sum float32[2, 3], axis=")
    way_back = lines[lines.index("gradient") + 1 :]
    assert way_back and all(line.startswith("  ") for line in way_back)
    if pa.softmax in backend.kernels:
        assert f"softmax float32[2, 3], axis=-1 -> float32[2, 3]  [{where}: forward]" in lines
        assert any(
            line.startswith("  softmax backward ") and line.endswith(f"[{where}: backward]") for line in way_back
        )
    else:
        assert f"softmax float32[2, 3], axis=-1 -> float32[2, 3]  [{where}: decomposition]" in lines
    assert not any("|" in line or "bytes" in line for line in lines)


def test_level_two_adds_launches_with_their_times(backend, traced):
    lines = traced("2")
    at = lines.index(f"multiply float32[2, 3], a Python float -> float32[2, 3]  [{backend.name}: kernel, 48 bytes]")
    geometry = r" \(\d+,\) by \(\d+,\)" if backend.observing else ""
    assert re.fullmatch(rf"  \| \w+{geometry}, [\d,.]+ us", lines[at + 1])


@on_opencl
def test_level_two_shows_what_is_moved(backend, traced):
    lines = traced("2", lambda x: (x + 1.0, pa.asarray([1.0, 2.0, 3.0], dtype=pa.float32).numpy()))
    assert any(re.fullmatch(r"\| upload of 12 bytes, [\d,.]+ us", line) for line in lines)
    assert any(re.fullmatch(r"\| transfer of 12 bytes, [\d,.]+ us", line) for line in lines)


@on_opencl
def test_the_page_shows_what_its_program_prints(backend, traced):
    """Except for facts of one device: kernels, work sizes, and times."""
    source, *shown = re.findall(r"^```(?:python|text)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)[:3]
    *made, watched = source.strip().splitlines()
    names = {}
    exec("\n".join(made), names)
    all_of_it, begins = (text.replace("opencl:0", backend.name).splitlines() for text in shown)
    assert traced("1", lambda _: exec(watched, names)) == all_of_it
    call, launch, *_ = traced("2", lambda _: exec(watched, names))
    assert call == begins[0] and launch[:4] == begins[1][:4] == "  | "


def test_a_trace_names_errors_and_threads(traced):
    def fails(x):
        with pytest.raises(pa.ShapeError):
            x @ x
        thread = threading.Thread(target=lambda: pa.exp(x), name="worker")
        thread.start()
        thread.join()

    lines = traced("1", fails)
    assert lines[0] == (
        "matmul float32[2, 3], float32[2, 3]  ! ShapeError: matmul: x is float32[2, 3], y is float32[2, 3]; "
        "x.shape[-1] must equal y.shape[-2]"
    )
    assert lines[1].startswith("worker: exp float32[2, 3] -> float32[2, 3]  [")


def test_a_trace_says_when_a_function_is_captured_and_why_again(backend, traced):
    """With the argument that has changed; a run of what was captured has a line as well."""
    x, y = pa.ones(2), pa.ones(3)

    def loss(x, n):
        return pa.sum(x * n)

    def calls(fn):
        return [line for line in traced("1", lambda _: [fn(x), fn(x), fn(y), fn(x)]) if line.startswith("loss")]

    first, again, runs = (f"loss  [{backend.name}: {event}]" for event in (
        "captured for the first time", "captured again, because x was float32[2] and is float32[3]", "run as captured"
    ))  # fmt: skip
    compiled = pa.compile(loss)
    assert calls(lambda x: compiled(x, 2.0)) == [first, runs, runs, again, runs, runs]
    fused = pa.fused(loss)
    captures = [line for line in calls(pa.grad(lambda x: fused(x, 2.0))) if line != runs and "backward" not in line]
    assert captures == [
        f"loss  [{backend.name}: captured with its gradient {why}]"
        for why in ("for the first time", "again, because an argument was float32[2] and is float32[3]")
    ]


@pytest.mark.parametrize("level", ["", "0"])
def test_no_trace_is_printed_without_a_level(traced, level):
    assert traced(level) == [] and not watch._observers


@pytest.mark.parametrize("level", ["3", "x", "-1", "1.0"])
def test_an_unknown_level_is_reported(traced, level):
    with pytest.warns(RuntimeWarning, match=f"^POLYARR_TRACE is '{level}'; it must be one of 0, 1, 2$"):
        assert traced(level) == []


def test_a_closed_stderr_stops_nothing(traced, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert traced("1") == []


# ---- debugging -----------------------------------------------------------------------------------------------------


@on_opencl
@pytest.mark.parametrize(("value", "at_once"), [("1", True), ("0", False)])
def test_debug_raises_errors_where_they_are_made(backend, monkeypatch, value, at_once):
    """Without it, the next read reports an index out of range."""
    monkeypatch.setenv("POLYARR_DEBUG", value)
    warnings.simplefilter("ignore")  # of the compiler
    x, at = pa.asarray([1.0, 2.0]), pa.asarray([7])
    with tracing.start_from_environment():
        if at_once:
            with pytest.raises(IndexError, match="index 7 is out of range"):
                pa.take(x, at)
        else:
            y = pa.take(x, at)
            with pytest.raises(IndexError, match="index 7 is out of range"):
                y.numpy()
    assert pa.take(x, pa.asarray([1])).numpy() == [2.0]


@on_opencl
@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False)])
def test_debug_shows_the_compilers_own_words(backend, monkeypatch, tmp_path, value, shown):
    """The text of warnings; or the kernel, if NVIDIA's driver has built it silently before."""
    cl, program = import_module("pyopencl"), import_module("polyarr.backends.opencl.runtime.program")
    monkeypatch.setenv("POLYARR_DEBUG", value)
    device = import_module("polyarr.backends.opencl.devices").select()
    source = (
        f"#warning strange\n__kernel void strange(__global int *x) {{ x[0] = 1; }}\n// {tmp_path}"  # never built before
    )
    monkeypatch.setattr(program, "source_of", lambda stem: source)
    monkeypatch.setattr(program, "needed", lambda stem: frozenset())
    monkeypatch.setattr(program, "arguments_of", lambda stem, macros: {"strange": None})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program.ProgramCache(device.cl_device, device.commands, {}).get("odd", {})
    assert [("strange" in str(w.message), w.category) for w in caught] == [(True, cl.CompilerWarning)] * shown


# ---- memory --------------------------------------------------------------------------------------------------------


def test_memory_is_held_by_arrays_of_ops(backend):
    """Views and second handles hold nothing of their own; freed arrays are not listed.

    The arrays are larger than what a backend keeps for other calls, such as the roots of Fourier transforms.
    """
    with pa.profile():
        x = pa.asarray(np.ones((2000, 770), np.float32))
        kept = [pa.exp(x) for _ in range(3)]
        views = [x.T, x[2:], x.untracked(), pa.reshape(kept[0], (770, 2000))]
        pa.sin(x)
        stats = pa.memory_stats()
    rows = {(h.op, h.arrays): h for h in stats.holders if h.spec == x.spec}
    assert {("exp", 3), ("asarray", 1)} <= rows.keys() and not any(op == "sin" for op, _ in rows)
    assert rows["exp", 3].nbytes == 3 * 2000 * 770 * 4
    assert not any(h.spec in {v.spec for v in views} - {x.spec} for h in stats.holders)
    assert stats.in_use >= 4 * 2000 * 770 * 4 and stats.backend == backend.name
    assert "3 x float32[2000, 770]  exp" in str(stats) and str(stats).startswith(f"{backend.name}: bytes in use ")
    assert all(h.op == "" for h in pa.memory_stats().holders), (
        "outside of a block, memory may be another array's by now"
    )


def test_an_array_that_another_thread_is_making_is_passed_over():
    half = pa.Array.__new__(pa.Array)  # in the state before its __init__
    assert pa.memory_stats().in_use is not None
    del half


def test_what_a_gradient_keeps_is_held(backend):
    """In the middle of a function, the results that the tape keeps."""
    found = []

    def fn(x):
        y = pa.mean(pa.tanh(pa.exp(x)))
        found.append(pa.memory_stats())
        return y

    with pa.profile():
        pa.grad(fn)(pa.ones((2000, 430)))
    (stats,) = found
    assert {"exp", "tanh"} & {h.op for h in stats.holders if h.spec.shape == (2000, 430)}


@on_opencl
def test_the_peak_stays_when_memory_is_given_back(backend):
    before = pa.memory_stats()
    x = pa.ones((before.peak - before.in_use + 5000,), dtype=pa.uint8)
    during = pa.memory_stats()
    assert during.peak > before.peak and during.peak >= during.in_use
    del x
    after = pa.memory_stats()
    assert after.peak >= during.peak and after.in_use < during.in_use
    assert after.pool >= after.in_use and after.limit > 0


@on_opencl
def test_peak_rates_are_measured_once(backend):
    """The peak rates that the table refers to."""
    peaks = backend.peaks()
    assert peaks["GB/s"] > 0 and peaks.get("GFLOP/s", 1) > 0 and backend.peaks() is peaks
    x = pa.ones((64, 64), dtype=pa.float32)
    with pa.profile() as p:
        x @ x
    table = p.table(peaks=True)
    assert f" {peaks['GB/s']:,.0f} GB/s" in table
    assert re.search(r"of peak\nmatmul +1 +.*\d%(\n|$)", table)


@on_opencl
def test_the_peak_of_products_is_kept_for_the_next_process(backend, monkeypatch, tmp_path):
    """Measured once per kind of product, despite a damaged file; its memory is not counted."""
    from polyarr.backends.opencl.runtime import caches
    from polyarr.backends.opencl.tuning import speed

    kept, device, calls = caches.Store(tmp_path), backend.home, []
    monkeypatch.setattr(speed, "kept_on", lambda *_: kept)
    monkeypatch.setattr(speed, "SIDES", (64, 96))
    rate = speed.product_rate
    monkeypatch.setattr(speed, "product_rate", lambda *how: calls.append(how[1:]) or rate(*how))
    kept.save(speed.ENTRY, b"{torn")
    before = pa.memory_stats()
    ways = [(pa.float32, "highest"), (pa.float32, "high"), (pa.bfloat16, "highest")]
    found = [speed.remembered(device, *how) for how in ways]
    assert found == [speed.remembered(device, *how) for how in ways] and min(found) > 0 and calls == ways
    assert pa.memory_stats().peak == before.peak
    monkeypatch.setattr(speed, "source_of", lambda stem: "other kernels")
    speed.remembered(device, *ways[0])
    assert calls == [*ways, ways[0]]


@on_opencl
def test_a_peak_rate_without_memory_is_unknown_and_not_stored(backend, monkeypatch, tmp_path):
    from polyarr.backends.opencl.runtime import caches
    from polyarr.backends.opencl.tuning import speed

    kept = caches.Store(tmp_path)
    monkeypatch.setattr(speed, "kept_on", lambda *_: kept)

    def has_no_room(*_, **__):
        raise DeviceMemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(speed, "matmul", has_no_room)
        assert speed.remembered(backend.home, pa.float32, "highest") == 0 and kept.load(speed.ENTRY) is None
    monkeypatch.setattr(speed, "SIDES", (64,))
    assert speed.remembered(backend.home, pa.float32, "highest") > 0


@on_opencl
def test_peak_rates_of_a_gpu_are_of_products(backend, monkeypatch):
    from types import SimpleNamespace

    from polyarr.backends.opencl.tuning import speed

    asked = []
    monkeypatch.setattr(speed, "remembered", lambda device, *how: asked.append(how) or 5.0)
    peaks = speed.peaks_of(SimpleNamespace(geometry=SimpleNamespace(is_measured=False)))
    assert set(peaks) == {
        "GFLOP/s in float32 at highest", "GFLOP/s in float32 at high", "GFLOP/s in float32 at medium",
        "GFLOP/s in bfloat16", "GFLOP/s in float16", "GB/s",
    }  # fmt: skip
    assert peaks["GFLOP/s in bfloat16"] == peaks["GFLOP/s in bfloat16"] == 5 and asked == [(pa.bfloat16, "highest")]


# ---- settings ------------------------------------------------------------------------------------------------------


def named(sources):
    """Return the variables that source files mention."""
    return {name for text in sources for name in re.findall(r"\bPOLYARR_[A-Z_]*[A-Z]", text)}


def test_every_variable_is_in_the_table():
    """The variables in the source are exactly those of the table."""
    sources = {p: p.read_text() for p in PACKAGE.rglob("*") if p.suffix in (".py", ".cl")}
    del sources[PACKAGE / "settings.py"]
    assert named(sources.values()) == set(NAMES)
    assert named([*sources.values(), 'os.environ.get("POLYARR_NEW")']) - set(NAMES) == {"POLYARR_NEW"}


def test_the_page_shows_the_table():
    """All rows, in the same order."""
    rows = [line for line in PAGE.read_text().partition("\n| environment variable |")[2].splitlines()[2:] if line]
    assert rows == [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]


@pytest.mark.parametrize(
    ("value", "on", "level"), [("", False, 0), ("0", False, 0), ("1", True, 1), ("2", True, 2)]
)
def test_values_of_switches(monkeypatch, value, on, level):
    monkeypatch.setenv("POLYARR_TRACE", value)
    assert (settings.is_on("POLYARR_TRACE"), settings.level("POLYARR_TRACE")) == (on, level)


def test_a_switch_is_on_by_any_word(monkeypatch):
    monkeypatch.setenv("POLYARR_DEBUG", "yes")
    assert settings.is_on("POLYARR_DEBUG")


def test_settings_that_mean_nothing_are_found(monkeypatch):
    monkeypatch.setenv("POLYARR_DEVCE", "1")
    monkeypatch.setenv("POLYARR_DEVICE", "0")
    assert "POLYARR_DEVCE" in settings.unknown() and "POLYARR_DEVICE" not in settings.unknown()
    lines = [line for line in import_module("polyarr.cli.doctor")._environment() if "POLYARR_DEV" in line.text]
    assert [(line.level, line.text) for line in lines] == [
        ("ok", "POLYARR_DEVICE=0"),
        ("warning", "POLYARR_DEVCE is set, and means nothing to polyarr; did you mean POLYARR_DEVICE?"),
    ]
