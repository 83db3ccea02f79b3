"""Tile sizes of matrix products: chosen by the compiler's abilities, and reported next to the processor's peak."""

from importlib import import_module
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyarr.core.errors import BackendError
from polyarr.core.spec import Spec
from tests.helpers.opencl_modules import opencl_modules

pytest.importorskip("pyopencl")
CpuGeometry = import_module("polyarr.backends.opencl.runtime.geometry").CpuGeometry
Plans = import_module("polyarr.backends.opencl.runtime.plans").Plans
pocl, tuning, matmul, speed, devices = opencl_modules("pocl", "tuning", "matmul", "speed", "devices")
on_opencl = pytest.mark.polyarr_backend("opencl")
FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")

# ---- registers and tiles -----------------------------------------------------------------------------------------


class Machine:
    """A fake device for tuning."""

    def __init__(self, floats: int = 8, native: int = 16) -> None:
        self.floats, self.geometry, self.plans = floats, CpuGeometry(2), Plans(self)
        self.features = SimpleNamespace()
        self.cl_device = SimpleNamespace(
            name=" Some CPU ", vendor="Someone", driver_version="1.0", native_vector_width_float=native,
            platform=SimpleNamespace(name=pocl.POCL), version="PoCL HSTR: pthread-x86_64-linux-gnu-znver3", int_ptr=0,
        )  # fmt: skip


@pytest.fixture
def machine(monkeypatch):
    """Return a function that creates Machines with a fake compiler."""
    real = tuning.compiled_floats
    by_device: dict[int, int] = {}
    monkeypatch.setattr(tuning, "compiled_floats", lambda d: by_device.get(id(d)) if id(d) in by_device else real(d))

    def make(*args: Any, **named: Any) -> Machine:
        made = Machine(*args, **named)
        by_device[id(made.cl_device)] = made.floats
        return made

    return make


@pytest.mark.parametrize(
    ("compiled", "native", "width"),
    [(8, 16, 8), (16, 16, 16), (4, 8, 4), (1, 16, 16), (1, 8, 8), (1, 1, 4), (1, 32, 16)],
)
def test_registers_are_as_wide_as_the_compiler_says(machine, compiled, native, width):
    """The device's own report counts only if the compiler gives none."""
    assert tuning.vector_width(machine(compiled, native=native)) == width


@pytest.mark.parametrize(
    ("floats", "first"),
    [(16, (16, 8, 3, 256)), (8, (8, 6, 2, 256)), (4, (4, 6, 2, 256))],
    ids=["Skylake-AVX512, Zen 4 and 5", "Haswell, Zen 2 and 3, Zen 4 not mended", "an emulator"],
)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_candidates_suit_the_processor(machine, floats, first, dtype):
    """The default tile first; all fit, have one depth, and spill no registers."""
    device = machine(floats)
    found, register = tuning.lookup(device, dtype), floats * 4 // dtype.itemsize
    tried = [*tuning.space(device, dtype)]
    assert len(set(tried)) == len(tried) and tried[0] == found[0]
    if dtype == FLOAT32:
        assert (found[0].WIDE, found[0].ROWS, found[0].VECTORS, found[0].DEPTH) == first
    for tile in tried:
        assert tile.fits(device.features, dtype.itemsize) and tile.DEPTH == found[0].DEPTH
        used = (tile.ROWS + 1) * tile.VECTORS * max(1, tile.WIDE // register)
        assert used < (32 if floats == 16 else 16)


@on_opencl
def test_results_do_not_depend_on_the_tile(backend):
    """Bit for bit: the fastest tile of the day must not change results."""
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    m, n, k = 45, 131, 300
    generator = np.random.default_rng(1)
    x, y = (device.upload(generator.normal(size=shape).astype(FLOAT32)) for shape in ((m, k), (k, n)))
    results = set()
    for tile in islice(tuning.space(device, FLOAT32), 4):
        out = device.upload(np.zeros((m, n), FLOAT32))
        matmul.one_block(device, FLOAT32, tile, (m, n, k))((x.memory, y.memory, None, out.memory, out.memory, None))
        results.add(device.download(out).tobytes())
    assert len(results) == 1


@on_opencl
def test_rows_that_lie_far_apart_are_packed(backend):
    """Several blocks of x and of y, none of them full; no panel is overrun."""
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    m, n, k = 101, matmul.MIN_PACKED_STRIDE + 6, matmul.MIN_PACKED_STRIDE + 76
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(m, k)).astype(FLOAT32), generator.normal(size=(k, n)).astype(FLOAT32)
    with device.guarded():
        left, right, out = device.upload(x), device.upload(y), device.empty(Spec((m, n), FLOAT32))
        launch = matmul.one_block(device, FLOAT32, tuning.lookup(device, FLOAT32)[0], (m, n, k))
        launch((left.memory, right.memory, None, out.memory, out.memory, None))
        np.testing.assert_allclose(device.download(out), x.astype(FLOAT64) @ y, rtol=0, atol=1e-3)


@on_opencl
def test_work_groups_that_share_a_batch_have_panels_of_their_own(backend):
    """More matrices than work-groups, each too large for panels in local memory."""
    device = devices.select()
    batch, m, n, k = 4 * device.features.compute_units + 1, 8, matmul.MAX_LOCAL_PANELS // 1024 + 80, 260
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(batch, m, k)).astype(FLOAT32), generator.normal(size=(batch, k, n)).astype(FLOAT32)
    with device.guarded():
        found = matmul.matmul(device, Spec((batch, m, n), FLOAT32), device.upload(x), device.upload(y))
        np.testing.assert_allclose(device.download(found), x.astype(FLOAT64) @ y, rtol=0, atol=1e-3)


# ---- shares of a product -----------------------------------------------------------------------------------------


def problem(m: int, n: int, k: int) -> Any:
    """Return a product of row-major matrices."""
    return matmul.Problem(1, 1, m, n, k, matmul.Operand(k, 1, 0, 0), matmul.Operand(1, n, 0, 0))


def time_of(p: Any, tile: Any, cores: int, slow: float) -> float:
    """Return the time of a product with work stealing, and the ideal time; one core is slow."""
    rows, columns = matmul.shares(tile, p, cores)
    sizes = [min(rows, p.m - i) * min(columns, p.n - j) for j in range(0, p.n, columns) for i in range(0, p.m, rows)]
    speeds, free = [1.0] * (cores - 1) + [slow], [0.0] * cores
    for size in sizes:
        core = free.index(min(free))
        free[core] += size / speeds[core]
    return max(free) * sum(speeds) / sum(sizes)


@pytest.mark.parametrize(
    "lengths", [(512, 512, 512), (1024, 1024, 1024), (4096, 4096, 4096), (1024, 2304, 768), (64, 50257, 768)], ids=str
)
@pytest.mark.parametrize("cores", [2, 4, 16])
def test_no_core_has_so_much_that_all_wait_for_it(lengths, cores):
    """With one share per core, a core that is available half of the time would double the total time."""
    tile, p = tuning.CpuMatmul(8, 6, 2, 256, 96, 1024), problem(*lengths)
    assert time_of(p, tile, cores, slow=1) < 1.2
    assert time_of(p, tile, cores, slow=0.45) < (1.4 if cores == 2 else 1.7)


def test_small_products_wake_few_threads():
    assert [matmul.workers_for(problem(n, n, n), 64) for n in (64, 128, 256, 1024)] == [1, 2, 16, 64]


@on_opencl
@pytest.mark.parametrize("lengths", [(130, 260, 70), (300, 33, 520)], ids=str)
@pytest.mark.parametrize("batch", [1, 3, 40])
def test_results_do_not_depend_on_how_work_is_dealt(backend, monkeypatch, lengths, batch):
    """Bit for bit, repeatedly: the shared counters are 0 again after each product."""
    device, results = devices.select(), set()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    m, n, k = lengths
    generator = np.random.default_rng(1)
    x, y = (generator.normal(size=(batch, *shape)).astype(FLOAT32) for shape in ((m, k), (k, n)))
    left, right, expected = device.upload(x), device.upload(y), x.astype(FLOAT64) @ y
    monkeypatch.setattr(matmul, "MIN_WORK_PER_SHARE", 2**12)
    for turns in (1, 3, 8, 8):
        monkeypatch.setattr(device, "plans", Plans(device))
        monkeypatch.setattr(matmul, "TURNS", turns)
        for _ in range(2):
            found = device.download(matmul.matmul(device, Spec((batch, m, n), FLOAT32), left, right))
            results.add(found.tobytes())
            assert not device.read_words(device.plans[matmul._share_counters](), 2).any()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
    assert len(results) == 1


# ---- doctor ------------------------------------------------------------------------------------------------------


@on_opencl
def test_a_tile_is_checked_before_it_is_timed(backend, monkeypatch):
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")

    def check(device: Any, tunable: Any, work: Any, tile: Any) -> None:
        assert tile == tuning.lookup(device, FLOAT32)[0]
        raise BackendError("matmul is wrong")

    monkeypatch.setattr(speed, "check", check)
    assert speed.speed_of(device).product == 0
    ((level, text),) = speed.diagnose(device)
    assert level == "error" and "comes out wrong" in text


@on_opencl
def test_no_product_beats_the_peak(backend):
    """Products of this tile are below the peak and within a factor of it that noise cannot explain."""
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    found = speed.speed_of(device)
    assert 0.02 * found.peak < found.product < 1.3 * found.peak


@on_opencl
@pytest.mark.parametrize(("rate", "level"), [(90.0, "ok"), (20.0, "warning")])
def test_doctor_holds_a_product_against_the_peak(backend, monkeypatch, rate, level):
    device = devices.select()
    if not device.features.is_cpu:
        pytest.skip("no CPU")
    monkeypatch.setattr(speed, "rate_of", lambda device, tile: rate)
    monkeypatch.setattr(speed, "peak_rate", lambda device, dtype: 100.0)
    lines = [line for line in devices.diagnose() if "of its peak" in line[1]]
    assert len(lines) == sum(info.problem == "" and info.features["is_cpu"] for info in devices.listing())
    (line,) = (line for line in lines if line[1].startswith(f"{device.name}: "))
    assert line[0] == level and ("tune" in line[1]) == (level == "warning")
    for fact in (
        f"{rate:.0f} GFLOP/s",
        f"{rate:.0f}%",
        pocl.processor_name(),
        pocl.target_of(device.cl_device),
        "rows of",
    ):
        assert fact in line[1]
