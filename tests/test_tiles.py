"""Tiles of matrix products: chosen by what the compiler does and by measuring, kept, checked, and reported."""

import json
import threading
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from polyarr.core.errors import BackendError

pytest.importorskip("pyopencl")
CpuGeometry = import_module("polyarr.backends.opencl.geometry").CpuGeometry
Plans = import_module("polyarr.backends.opencl.plans").Plans
pocl, tuning, measure, matmul, speed, devices, tune = (
    import_module(f"polyarr.backends.opencl.{name}")
    for name in ("pocl", "tuning", "measure", "matmul", "speed", "devices", "tune")
)
on_opencl = pytest.mark.polyarr_backend("opencl")
FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")

# ---- registers and tiles -----------------------------------------------------------------------------------------


class Machine:
    """A device as tuning sees one."""

    def __init__(self, floats: int = 8, local_memory: int = 1 << 19, native: int = 16) -> None:
        self.floats, self.geometry, self.plans = floats, CpuGeometry(2), Plans(self)
        self.features = SimpleNamespace(local_memory=local_memory)
        self.cl_device = SimpleNamespace(
            name=" Some CPU ", vendor="Someone", driver_version="1.0", native_vector_width_float=native,
            platform=SimpleNamespace(name=pocl.POCL), version="PoCL HSTR: pthread-x86_64-linux-gnu-znver3", int_ptr=0,
        )  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's folder of their own, and compilers that say what a Machine has."""
    monkeypatch.setattr(tuning, "user_config_dir", lambda name: str(tmp_path / "config" / name))
    real = tuning.compiled_floats
    by_device: dict[int, int] = {}
    monkeypatch.setattr(tuning, "compiled_floats", lambda d: by_device.get(id(d)) if id(d) in by_device else real(d))

    def machine(*args: Any, **named: Any) -> Machine:
        made = Machine(*args, **named)
        by_device[id(made.cl_device)] = made.floats
        return made

    forget()
    yield SimpleNamespace(file=tmp_path / "config" / "polyarr" / "tuned.json", machine=machine)
    forget()


def forget() -> None:
    """Everything that this process knows of tiles."""
    tuning._user_table.cache_clear()
    for device in devices._devices.values():
        device.plans.clear()


@pytest.mark.parametrize(
    ("compiled", "native", "width"),
    [(8, 16, 8), (16, 16, 16), (4, 8, 4), (1, 16, 16), (1, 8, 8), (1, 1, 4), (1, 32, 16)],
)
def test_registers_are_as_wide_as_the_compiler_says(home, compiled, native, width):
    """And as wide as the device says only where the compiler is silent."""
    assert tuning.vector_width(home.machine(compiled, native=native)) == width


@pytest.mark.parametrize(
    ("processor", "floats", "local_memory", "first"),
    [
        ("Zen 2 and 3", 8, 1 << 19, (8, 6, 2, 256)),
        ("Zen 4, mended", 16, 1 << 20, (16, 8, 3, 256)),
        ("Zen 4, not mended", 8, 1 << 20, (8, 6, 2, 256)),
        ("Zen 5", 16, 1 << 20, (16, 8, 3, 256)),
        ("Skylake-AVX512", 16, 1 << 20, (16, 8, 3, 256)),
        ("Sapphire Rapids", 16, 1 << 21, (16, 8, 3, 256)),
        ("Haswell", 8, 1 << 18, (8, 6, 2, 128)),
        ("an emulator", 4, 1 << 19, (4, 6, 2, 256)),
        ("little memory", 16, 1 << 15, (16, 8, 3, 64)),
        ("little memory", 8, 1 << 15, (8, 6, 2, 64)),
        ("little memory", 4, 1 << 15, (4, 6, 2, 64)),
    ],
)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_candidates_suit_the_processor(home, processor, floats, local_memory, first, dtype):
    """Few, likely, fitting, of one depth, and none that spills its registers."""
    machine = home.machine(floats, local_memory)
    found, register = tuning.candidates(machine, dtype), floats * 4 // dtype.itemsize
    assert 1 <= len(found) <= 8 and len(set(found)) == len(found)
    if dtype == FLOAT32:
        assert (found[0].WIDE, found[0].ROWS, found[0].VECTORS, found[0].DEPTH) == first
    for tile in (*found, *tuning.space(machine, dtype)):
        assert tile.fits(machine.features, dtype.itemsize) and tile.DEPTH == found[0].DEPTH
        used = (tile.ROWS + 1) * tile.VECTORS * max(1, tile.WIDE // register)
        assert used < (32 if floats == 16 else 16)
    assert tuning.lookup(machine, dtype)[0] == found[0]


@on_opencl
def test_results_do_not_depend_on_the_tile(backend, home):
    """To the last bit: which tile was the fastest on a day must not show."""
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    m, n, k = 45, 131, 300
    generator = np.random.default_rng(1)
    x, y = (device.upload(generator.normal(size=shape).astype(FLOAT32)) for shape in ((m, k), (k, n)))
    results = set()
    for tile in tuning.candidates(device, FLOAT32):
        out = device.upload(np.zeros((m, n), FLOAT32))
        matmul.one_block(device, FLOAT32, tile, (m, n, k))((x.memory, y.memory, None, out.memory, out.memory, None))
        results.add(device.download(out).tobytes())
    assert len(results) == 1


# ---- the user's file ---------------------------------------------------------------------------------------------

TILE = tuning.CpuMatmul(WIDE=8, ROWS=4, VECTORS=2, DEPTH=256, X_BLOCK=96, Y_BLOCK=384)
ENTRY = {"WIDE": 8, "ROWS": 4, "VECTORS": 2, "DEPTH": 256, "X_BLOCK": 96, "Y_BLOCK": 384}


def test_what_was_measured_is_kept_for_this_processor_and_driver(home):
    """In the next process too, beside what the user wrote, and for no other driver, target or registers."""
    home.file.parent.mkdir(parents=True)
    home.file.write_text(json.dumps({"matmul": {"by hand": {"4 bytes": []}}}))
    machine = home.machine()
    assert not tuning.is_known(machine, FLOAT32)
    tuning.remember(machine, FLOAT32, TILE, {"peak": 1.0})
    tuning.remember(machine, FLOAT64, tuning.candidates(machine, FLOAT64)[1], {})
    for _ in range(2):
        assert tuning.lookup(machine, FLOAT32) == (TILE,) and tuning.is_known(machine, FLOAT32)
        assert tuning.lookup(machine, FLOAT64)[0] == tuning.candidates(machine, FLOAT64)[1]
        forget()
    newer = home.machine()
    newer.cl_device.driver_version = "2.0"
    for other in (newer, home.machine(16)):
        assert not tuning.is_known(other, FLOAT32) and tuning.lookup(other, FLOAT32)[0] != TILE
    assert "by hand" in json.loads(home.file.read_text())["matmul"]
    assert [file.name for file in home.file.parent.iterdir()] == ["tuned.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"matmul": []}', '{"matmul": {"cpu with 8 floats": 3}}', "\xff\xfe"])
def test_a_damaged_file_is_neither_used_nor_lost(home, text):
    """Tiles are as without it; a measurement then lasts for the process."""
    home.file.parent.mkdir(parents=True)
    home.file.write_bytes(text.encode("latin-1"))
    machine = home.machine()
    first = tuning.lookup(machine, FLOAT32)[0]
    assert first == tuning.candidates(machine, FLOAT32)[0] != TILE
    tuning.remember(machine, FLOAT32, TILE, {})
    assert tuning.lookup(machine, FLOAT32) == (TILE,)
    assert home.file.read_bytes() == text.encode("latin-1")
    assert any("tuned.json" in line for _, line in speed.diagnose_file())


@pytest.mark.parametrize(
    "entry",
    [
        {**ENTRY, "WIDE": 3}, {**ENTRY, "WIDE": "8"}, {**ENTRY, "ROWS": 0}, {**ENTRY, "ROWS": 10**9},
        {**ENTRY, "ROWS": True}, {**ENTRY, "VECTORS": 5}, {**ENTRY, "DEPTH": -1}, {**ENTRY, "DEPTH": 10**6},
        {**ENTRY, "X_BLOCK": 95}, {**ENTRY, "Y_BLOCK": 8}, {**ENTRY, "MORE": 1}, {"WIDE": 8}, {}, 8, None, [ENTRY],
    ],
    ids=str,
)  # fmt: skip
def test_an_entry_that_no_kernel_could_take_is_passed_over(home, entry):
    machine = home.machine()
    home.file.parent.mkdir(parents=True)
    home.file.write_text(json.dumps({"matmul": {tuning.identity(machine): {"4 bytes": [entry]}}}))
    assert not tuning.is_known(machine, FLOAT32)
    assert tuning.lookup(machine, FLOAT32)[0] == tuning.candidates(machine, FLOAT32)[0]


def test_a_gpu_entry_that_no_kernel_could_take_is_passed_over(home):
    lanes = tuning.GpuMatmul(TILE_M=32, TILE_N=32, TILE_K=8, ITEM_M=4, ITEM_N=4, LANES_N=64, RASTER=8)
    features = SimpleNamespace(local_memory=1 << 16, max_work_group=256)
    assert not lanes.fits(features, 4)
    assert not tuning.GpuMatmul(32, 32, 8, ITEM_M=64, ITEM_N=4, LANES_N=8, RASTER=8).fits(features, 4)


def test_who_reads_while_others_write_finds_a_whole_file(home):
    """As processes do, which share no lock."""
    many = {f"processor {i}": {"4 bytes": [ENTRY] * 10} for i in range(20)}
    tuning._write(many)
    stop, found = threading.Event(), []

    def write() -> None:
        while not stop.is_set():
            tuning._write(many)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        found = [tuning.read_user_file() for _ in range(40)]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert found == [many] * 40 and [file.name for file in home.file.parent.iterdir()] == ["tuned.json"]


def test_a_folder_that_cannot_be_written_does_no_harm(home):
    home.file.parent.parent.mkdir(parents=True)
    home.file.parent.write_text("a file where a folder should be")
    machine = home.machine()
    tuning.remember(machine, FLOAT32, TILE, {})
    assert tuning.lookup(machine, FLOAT32) == (TILE,)


# ---- measuring ---------------------------------------------------------------------------------------------------


class Bench(NamedTuple):
    """Tiles that run at given rates, of a peak of 100."""

    compiled: list[Any]
    kept: list[Any]


@pytest.fixture
def bench(monkeypatch):
    """Rates by the tile: a number, a list of them (one per round), or None for one that is wrong."""
    made = Bench([], [])

    def checked_run(device: Any, dtype: Any, tile: Any, block: Any) -> Any:
        made.compiled.append(tile)
        return tile[1] and iter(tile[1] if isinstance(tile[1], tuple) else (tile[1],) * 100)

    monkeypatch.setattr(measure, "checked_run", checked_run)
    monkeypatch.setattr(measure, "rate_of", lambda device, run: next(run))
    monkeypatch.setattr(measure, "peak_rate", lambda device, dtype: 100.0)
    monkeypatch.setattr(
        measure, "keep", lambda device, dtype, tile, rate, peak: made.kept.append((tile[0], rate, peak))
    )
    return made


@pytest.mark.parametrize(
    ("tiles", "compiled", "kept"),
    [
        ([("likely", 81), ("other", 99)], 1, ("likely", 81)),  # near enough to the peak to look no further
        ([("likely", 40), ("other", 60), ("best", 70)], 3, ("best", 70)),
        ([("likely", 40), ("good", 85), ("other", 99)], 2, ("good", 85)),
        ([("wrong", None), ("other", 60)], 2, ("other", 60)),
        ([("wrong", None)], 1, None),
        ([("likely", 70), ("no better", 72)], 2, ("likely", 70)),
        ([("likely", (60, 70, 70, 70, 70)), ("noise", (79, 79, 79, 60, 79))], 2, ("likely", 70)),
        ([("disturbed", (50, 79, 83, 83, 83)), ("near the peak", 85)], 2, ("disturbed", 83)),
    ],
)
def test_the_choice(bench, tiles, compiled, kept):
    measure.choose(None, FLOAT32, tiles, None)
    assert len(bench.compiled) == compiled
    assert bench.kept == ([(*kept, 100.0)] if kept else [])


def test_the_choice_takes_a_few_seconds_at_most(bench, monkeypatch):
    now = iter(range(0, 1000, 2))
    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: next(now)))
    measure.choose(None, FLOAT32, [(i, 10 + 10 * i) for i in range(7)], None)
    assert len(bench.compiled) == 3 and bench.kept == [(2, 30, 100.0)]


@pytest.mark.parametrize(
    ("operations", "dtype", "setting", "measured"),
    [
        (measure.SIZEABLE, FLOAT32, {}, 1),
        (measure.SIZEABLE, FLOAT64, {}, 1),
        (measure.SIZEABLE, np.dtype("int32"), {}, 0),
        (measure.SIZEABLE - 1, FLOAT32, {}, 0),
        (measure.SIZEABLE, FLOAT32, {"POLYARR_TUNE": "0"}, 0),
        (measure.SIZEABLE, FLOAT32, {"POLYARR_NO_CACHE": "1"}, 0),
    ],
)
def test_only_the_first_sizeable_product_measures(home, monkeypatch, operations, dtype, setting, measured):
    calls = []
    for name in ("POLYARR_TUNE", "POLYARR_NO_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)

    def choose(device: Any, dtype: Any, tiles: Any, block: Any) -> None:
        calls.append(tiles)
        tuning.remember(device, dtype, tiles[-1], {})

    monkeypatch.setattr(measure, "choose", choose)
    machine = home.machine()
    machine.lock = threading.RLock()
    for _ in range(2):
        tile = measure.best_tile(machine, dtype, operations, None)
        machine.plans.clear()  # as in the next process
    assert len(calls) == measured
    assert tile == tuning.candidates(machine, dtype)[-1 if measured else 0]


def test_nothing_is_measured_that_could_not_be_kept(home, monkeypatch):
    """Or every process would measure anew."""
    monkeypatch.delenv("POLYARR_TUNE", raising=False)
    monkeypatch.delenv("POLYARR_NO_CACHE", raising=False)
    monkeypatch.setattr(measure, "choose", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(measure, "is_writable", lambda folder: False)
    machine = home.machine()
    assert measure.best_tile(machine, FLOAT32, measure.SIZEABLE, None) == tuning.candidates(machine, FLOAT32)[0]


@on_opencl
@pytest.mark.parametrize("fault", ["none", "sum", "edge", "overrun", "no build"])
def test_a_tile_is_checked_before_it_is_timed(backend, fault):
    """Against NumPy, with a row after the result that must stay as it was."""
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    enqueue_copy = import_module("pyopencl").enqueue_copy
    (m, n, _), spoil = measure.ODD, {"sum": 0, "edge": -1, "overrun": 0}

    def block(device: Any, dtype: Any, tile: Any, lengths: Any) -> Any:
        if fault == "no build":
            raise BackendError("matmul_cpu.cl does not build")
        launch = matmul.one_block(device, dtype, tile, lengths)

        def faulty(arrays: Any) -> None:
            launch(arrays)
            at = (m * n if fault == "overrun" else spoil[fault] % (m * n)) * 4
            enqueue_copy(device.queue, arrays[4], np.full(1, 1e3, FLOAT32), dst_offset=at)

        return launch if fault == "none" else faulty

    tile = tuning.candidates(device, FLOAT32)[0]
    assert (measure.checked_run(device, FLOAT32, tile, block) is not None) == (fault == "none")


@on_opencl
def test_no_product_beats_the_peak(backend):
    """The peak is one: and a product of this tile comes within a factor that no noise explains."""
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    found = speed.speed_of(device)
    assert 0.02 * found.peak < found.product < 1.3 * found.peak


# ---- doctor and the command --------------------------------------------------------------------------------------


@on_opencl
@pytest.mark.parametrize(("rate", "level"), [(90.0, "ok"), (20.0, "warning")])
def test_doctor_holds_a_product_against_the_peak(backend, monkeypatch, rate, level):
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    monkeypatch.setattr(speed, "rate_of", lambda device, run: rate)
    monkeypatch.setattr(speed, "peak_rate", lambda device, dtype: 100.0)
    (line,) = (line for line in devices.diagnose() if "of its peak" in line[1])
    assert line[0] == level and ("tune" in line[1]) == (level == "warning")
    for fact in (
        f"{rate:.0f} GFLOP/s",
        f"{rate:.0f}%",
        pocl.processor_name(),
        pocl.target_of(device.cl_device),
        "rows of",
    ):
        assert fact in line[1]


@on_opencl
def test_the_command_keeps_the_fastest_tile(backend, home, monkeypatch, capsys):
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    likely, other = tuning.candidates(device, FLOAT32)[:2]
    rates = {likely: 10.0, other: 20.0}
    monkeypatch.setattr(tune, "space", lambda device, dtype: iter([likely]))
    monkeypatch.setattr(tune, "candidates", lambda device, dtype: (likely, other))
    monkeypatch.setattr(tune, "checked_run", lambda device, dtype, tile, block: tile)
    monkeypatch.setattr(tune, "rate_of", lambda device, tile: rates[tile])
    assert tune.main(["--dry-run"]) == 0 and not home.file.exists()
    assert tune.main([]) == 0
    assert tuning.lookup(device, FLOAT32) == (other,) and str(home.file) in capsys.readouterr().out
    rates[likely] = rates[other] = 0.0
    assert tune.main(["--dry-run"]) == 1
