"""`polyarr tune`: measurements are checked, saved atomically, used only where they apply, and reported."""

import json
import threading
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import polyarr as pa
from polyarr.cli import main
from polyarr.cli import tune as command
from polyarr.core.errors import BackendError
from polyarr.core.tuning import Kept, Step, Tuning, Work
from polyarr.plugins import hookimpl, register_plugin, unregister_plugin
from tests.helpers.opencl_modules import opencl_modules

FLOAT32 = np.dtype("float32")


@pytest.fixture
def opencl():
    """Return the backend's modules."""
    pytest.importorskip("pyopencl")
    names = (
        "tuned", "tune", "tuning", "matmul", "attention_tiled", "devices", "caches", "variants", "plans", "planning",
    )  # fmt: skip
    return SimpleNamespace(**dict(zip(names, opencl_modules(*names), strict=True)))


@pytest.fixture
def device(backend, opencl, monkeypatch, tmp_path):
    """A CPU without stored measurements, with cache folders of its own."""
    found = opencl.devices.select(backend.name)
    if not found.features.is_cpu:
        pytest.skip("no CPU")
    monkeypatch.setattr(opencl.tuned, "user_config_dir", lambda name: str(tmp_path / name))
    monkeypatch.setattr(opencl.variants, "store_of", lambda identity: opencl.caches.Store(tmp_path))
    monkeypatch.setattr(found, "plans", opencl.plans.Plans(found))
    opencl.tuned._read_once.cache_clear()
    yield found
    opencl.tuned._read_once.cache_clear()


on_opencl = pytest.mark.polyarr_backend("opencl")
PRODUCT = Work("matmul", "float32", (96, 96, 96), "NT")
FORWARD = Work("attention", "float32", (2, 40, 40, 16), "forward")
TILE = {"WIDE": 8, "ROWS": 4, "VECTORS": 2, "DEPTH": 256, "X_BLOCK": 96, "Y_BLOCK": 384}


def entry(opencl, device):
    """Return a stored measurement: the second of the candidate tiles."""
    tunable = opencl.tuned.TUNABLES[PRODUCT.op]
    tile = list(tunable.space(device, PRODUCT))[1]
    return opencl.tuned.entry(device, PRODUCT, tunable.shape(device, PRODUCT), tile, {"GFLOP/s": 1.0})


def used(opencl, device):
    """Return the tile that a product uses."""
    device.plans.renew()
    return device.plans[opencl.matmul.tiles](FLOAT32, "NT", 1, 96, 96, 96)[0]


# ---- looking up --------------------------------------------------------------------------------------------------


@on_opencl
def test_what_was_kept_is_used_for_its_class_alone(device, opencl) -> None:
    before, kept = used(opencl, device), entry(opencl, device)
    opencl.tuned.change([kept])
    tile = used(opencl, device)
    assert vars(tile) == kept.parameters != vars(before)
    for other in (("NT", 1, 256, 96, 96), ("NT", 2, 96, 96, 96)):
        assert device.plans[opencl.matmul.tiles](FLOAT32, *other)[0] == before
    x = np.random.default_rng(0).standard_normal((96, 96), np.float32)
    np.testing.assert_allclose((pa.asarray(x) @ pa.asarray(x).T).numpy(), x @ x.T, rtol=0, atol=1e-4)
    assert opencl.tuned.kept(device)[0].problem == ""
    assert opencl.tuned.diagnose(device)[0][0] == "ok"


@on_opencl
def test_a_capture_plans_with_what_was_kept_and_does_not_try_it(device, opencl, monkeypatch) -> None:
    kept = entry(opencl, device)
    opencl.tuned.change([kept])
    x, y = (np.random.default_rng(0).standard_normal((n, 66), np.float32) for n in (67, 61))
    found = pa.compile(lambda x, y: x @ y.T)(pa.asarray(x), pa.asarray(y))
    np.testing.assert_allclose(found.numpy(), x @ y.T, rtol=0, atol=1e-4)
    monkeypatch.setattr(opencl.tuned, "check", None)
    device.plans.renew()
    planning = opencl.planning.PlanningDevice(device)
    assert vars(planning.plans[opencl.matmul.tiles](FLOAT32, "NT", 1, 96, 96, 96)[0]) == kept.parameters


@on_opencl
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"driver": "an older one"}, "it was measured with an older one"),
        ({"kernel": "another"}, "its kernel has changed since"),
        ({"parameters": {**TILE, "X_BLOCK": 95}}, "the device cannot take its parameters"),
        ({"parameters": {**TILE, "ROWS": True}}, "the device cannot take its parameters"),
        ({"parameters": {"WIDE": 8}}, "the device cannot take its parameters"),
        ({"device": "another"}, "it is another device's"),
        ({"op": "tan"}, "tan has no parameters"),
    ],
)
def test_what_does_not_hold_any_more_is_set_aside(device, opencl, changed, problem) -> None:
    before = used(opencl, device)
    opencl.tuned.change([entry(opencl, device)._replace(**changed)])
    assert used(opencl, device) == before
    assert [kept.problem for kept in opencl.tuned.kept(device)] == [problem]
    lines = [text for level, text in opencl.tuned.diagnose(device) if level == "warning"]
    assert bool(lines) == ("device" not in changed)
    assert all(problem in line and "polyarr tune" in line for line in lines)


@on_opencl
def test_what_computes_wrongly_is_set_aside_and_is_tried_once(device, opencl, monkeypatch) -> None:
    tried = []

    def check(*arguments: object) -> None:
        tried.append(arguments)
        raise BackendError("the result is wrong\nand more")

    before = used(opencl, device)
    opencl.tuned.change([entry(opencl, device)])
    monkeypatch.setattr(opencl.tuned, "check", check)
    for _ in range(2):
        assert used(opencl, device) == before
    assert [kept.problem for kept in opencl.tuned.kept(device)] == ["the result is wrong"] and len(tried) == 1


@on_opencl
@pytest.mark.parametrize(
    "work", [PRODUCT, PRODUCT._replace(form="TN"), FORWARD, FORWARD._replace(form="backward")], ids=str
)
@pytest.mark.parametrize("fault", ["none", "wrong", "overrun"])
def test_candidates_are_checked_against_numpy_between_canaries(device, opencl, monkeypatch, work, fault) -> None:
    tunable = opencl.tuned.TUNABLES[work.op]
    real = opencl.tuned.Trial.run

    def run(self: object, case: object, buffers: list) -> tuple:
        results = real(self, case, buffers)
        whole = device._guards[-1].memory
        at, memory = (whole.size - 4, whole) if fault == "overrun" else (0, results[-1].memory)
        import_module("pyopencl").enqueue_copy(device.queue, memory, np.full(1, 1e3, FLOAT32), dst_offset=at)
        return results

    parameters = next(tunable.space(device, work))
    if fault == "none":
        opencl.tuned.check(device, tunable, work, parameters, problems=1)
        return
    monkeypatch.setattr(opencl.tuned.Trial, "run", run)
    with pytest.raises(BackendError, match="wrong by" if fault == "wrong" else "a kernel wrote to byte"):
        opencl.tuned.check(device, tunable, work, parameters, problems=1)


# ---- measuring ---------------------------------------------------------------------------------------------------


@pytest.fixture
def race(device, opencl, monkeypatch):
    """Measure candidates with given times, by their position; the first one is the default."""
    times: dict[str, list[float]] = {}

    def seconds(self: object, trial: object, calls: int) -> float:
        name, trial.is_asked = str(getattr(trial, "_parameters", None)), True
        return times[name].pop(0) if len(times.get(name, [])) > 1 else times.get(name, [9.0])[0]

    monkeypatch.setattr(opencl.tune.Contest, "_seconds", seconds)
    monkeypatch.setattr(opencl.tune, "check", lambda *arguments, **_: None)
    monkeypatch.setattr(opencl.tuned, "check", lambda *arguments, **_: None)
    space = list(opencl.tuned.TUNABLES["matmul"].space(device, PRODUCT))
    return SimpleNamespace(space=space, set=lambda tile, *found: times.__setitem__(str(tile), list(found)))


def outcome(opencl, device, seconds=60.0):
    *_, last = opencl.tune.tune(device, PRODUCT, seconds)
    return last.outcome


@on_opencl
def test_the_fastest_is_kept_with_figures_and_date(device, opencl, race) -> None:
    race.set(None, 2.0)
    race.set(race.space[3], 1.5)
    race.set(race.space[5], 1.0)
    assert "2.00 times as fast" in outcome(opencl, device)
    (kept,) = opencl.tuned.kept(device)
    assert kept.parameters == vars(race.space[5]) and kept.figures == {"GFLOP/s": 0.0, "before": 0.0}
    assert len(kept.date) == 10 and used(opencl, device) == race.space[5]


@on_opencl
def test_noise_changes_nothing(device, opencl, race) -> None:
    """Faster in total but not in all turns but one, or by at most one percent."""
    race.set(None, 2.0)
    race.set(race.space[3], *[1.0] * (1 + 5 * opencl.tune.RUNS), 2.1)
    race.set(race.space[4], 1.99)
    assert "nothing is faster" in outcome(opencl, device)
    assert not opencl.tuned.kept(device)


@on_opencl
def test_a_stale_entry_goes_when_its_class_is_measured_again(device, opencl, race) -> None:
    opencl.tuned.change([entry(opencl, device)._replace(driver="an older one")])
    race.set(None, 2.0)
    outcome(opencl, device)
    assert not opencl.tuned.kept(device)


@on_opencl
@pytest.mark.parametrize(("turns", "is_kept"), [(2, False), (3, True)])
def test_an_interrupted_tuning_keeps_its_results(device, opencl, race, turns, is_kept) -> None:
    race.set(None, 2.0)
    race.set(race.space[3], 1.0)
    steps = opencl.tune.tune(device, PRODUCT, 60)
    for step in steps:
        if step.done == len(race.space) + turns:
            break
    steps.close()
    assert bool(opencl.tuned.kept(device)) == is_kept


@on_opencl
def test_time_that_is_up_tries_no_more(device, opencl, race) -> None:
    race.set(None, 2.0)
    assert f"(1 of {len(race.space)} candidates tried)" in outcome(opencl, device, seconds=0)


@on_opencl
def test_what_is_wrong_takes_no_part(device, opencl, race, monkeypatch) -> None:
    def check(device: object, tunable: object, work: object, parameters: object, problems: int | None = None) -> None:
        if parameters == race.space[3] or (parameters == race.space[4] and problems is None):
            raise BackendError("wrong")

    monkeypatch.setattr(opencl.tune, "check", check)
    race.set(None, 2.0)
    for place, seconds in ((3, 0.5), (4, 0.7), (5, 1.0)):
        race.set(race.space[place], seconds)
    outcome(opencl, device)
    assert opencl.tuned.kept(device)[0].parameters == vars(race.space[5])


@on_opencl
def test_work_without_parameters_is_refused(device, opencl) -> None:
    with pytest.raises(ValueError, match="tan NN 3 float32 has no parameters here"):
        next(opencl.tune.tune(device, Work("tan", "float32", (3,), "NN"), 1))
    with pytest.raises(ValueError, match="runs on kernels without parameters"):
        list(opencl.tune.tune(device, Work("matmul", "float32", (3, 3, 3), "NN"), 1))


@on_opencl
@pytest.mark.parametrize("work", [PRODUCT, FORWARD._replace(form="backward")], ids=str)
def test_real_work_is_tuned_from_end_to_end(device, opencl, work) -> None:
    steps = list(opencl.tune.tune(device, work, 0))
    assert "GFLOP/s" in steps[-1].outcome and steps[-1].done == steps[-1].total


# ---- the file ----------------------------------------------------------------------------------------------------


@on_opencl
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"tuned": {}}', '{"tuned": [3]}', '{"tuned": [{"op": "x"}]}', "\xff\xfe", "[" * 9999],
    ids=lambda text: text[:9],
)
def test_a_damaged_file_is_neither_used_nor_lost(device, opencl, text) -> None:
    file, before = opencl.tuned.user_file(), used(opencl, device)
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    opencl.tuned._read_once.cache_clear()
    assert used(opencl, device) == before
    with pytest.raises(ValueError):
        opencl.tuned.change([entry(opencl, device)])
    assert file.read_bytes() == text.encode("latin-1")
    assert any("tuned.json" in line for _, line in opencl.tuned.diagnose_file())


@on_opencl
def test_concurrent_writers_lose_nothing(device, opencl) -> None:
    """Like processes, without a shared lock; a reader always finds a complete file."""
    one = entry(opencl, device)

    def write(name: str) -> None:
        for i in range(15):
            opencl.tuned.change([one._replace(device=f"{name} {i}")])

    writers = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        opencl.tuned.read_user_file()
    assert len(opencl.tuned.read_user_file()) == 30
    assert [file.name for file in opencl.tuned.user_file().parent.iterdir()] == ["tuned.json"]


# ---- the command -------------------------------------------------------------------------------------------------


class Offer:
    """A plugin whose backend has something to tune."""

    def __init__(self) -> None:
        self.measured, self.kept, self.wrong = [], [], ()

    @hookimpl
    def polyarr_backends(self, register) -> None:
        tuning = Tuning(
            ("matmul",), str, lambda *asked: self.tune(*asked), lambda: self.kept, lambda: [{"a": 1}], self.imported
        )
        register("tunable", lambda: pa.get_backend("numpy")._replace(name="tunable", tuning=tuning), api=2)

    def tune(self, work, seconds):
        if work in self.wrong:
            raise ValueError("tune: it has none")
        self.measured.append((work, seconds))
        yield Step(1, 2)
        yield Step(2, 2, "5 times as fast")

    def imported(self, found):
        if not isinstance(found, list):
            raise ValueError("it must hold a list")
        return len(found)


@pytest.fixture
def offer():
    """The plugin, registered during the test."""
    plugin, before = Offer(), pa.get_backend()
    register_plugin(plugin, "tunable")
    yield plugin
    pa.set_backend(before.name)
    unregister_plugin(plugin)


def run(*arguments):
    return CliRunner().invoke(main, ["tune", "--device", "tunable", *arguments])


def test_the_command_measures_what_is_named(offer) -> None:
    found = run("--shapes", "64x64x64,32x32x16", "--budget", "2m", "--dtype", "float64")
    assert found.exit_code == 0 and "matmul NT 64 x 64 x 64 float64: 5 times as fast" in found.stdout
    assert [(w.shape, w.form) for w, _ in offer.measured[:3]] == [((64, 64, 64), form) for form in ("NT", "NN", "TN")]
    assert len(offer.measured) == 6 and 19 < offer.measured[0][1] <= 20


def test_a_preset_is_the_work_of_its_training_step(offer) -> None:
    works = command.works_of(("matmul", "attention"), "gpt2-124m", "float32")
    assert Work("matmul", "float32", (4096, 50257, 768), "NT") in works
    assert Work("attention", "float32", (48, 1024, 1024, 64), "backward") in works
    assert len(works) == 17


def test_work_that_has_no_parameters_is_passed_over(offer) -> None:
    offer.wrong = command.works_of(("matmul",), "64x64x64", "float32")[:1]
    found = run("--shapes", "64x64x64")
    assert found.exit_code == 0 and "it has none" in found.stdout and len(offer.measured) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shapes", "64x64"), "'64x64' is neither a preset"),
        (("--shapes", "0x1x1"), "'0x1x1' is neither"),
        (("--shapes", "2x8x8x8"), "names no work for matmul"),
        (("--ops", "tan"), "'tan' cannot be tuned; there are matmul"),
        (("--budget", "soon"), "'soon' is no time such as 60s or 2m"),
        (("--budget", "0"), "'0' is no time"),
        (("--list", "--export", "x"), "give one of"),
    ],
)
def test_bad_usage_is_one_line(offer, arguments, said) -> None:
    found = run(*arguments)
    assert found.exit_code == 2 and said in found.stderr and len(found.stderr.strip().splitlines()) == 1
    assert not offer.measured


def test_a_backend_may_offer_nothing() -> None:
    before = pa.get_backend().name
    try:
        found = CliRunner().invoke(main, ["tune", "--device", "numpy"])
    finally:
        pa.set_backend(before)
    assert found.exit_code == 1 and "the backend numpy offers nothing to tune" in found.stderr


def test_the_command_lists_exports_and_imports(offer, tmp_path) -> None:
    assert "nothing is kept" in run("--list").stdout
    offer.kept = [Kept("matmul", "float32", "NT 8", "a mirror", {"T": 1}, {"GFLOP/s": 2.5}, "2026-01-01", "it fell")]
    row = run("--list").stdout.splitlines()[1]
    assert row.split() == "matmul float32 NT 8 GFLOP/s 2.5 2026-01-01 a mirror no: it fell".split()
    assert json.loads(run("--json").stdout)[0]["parameters"] == {"T": 1}
    file = tmp_path / "tuned"
    assert run("--export", str(file)).exit_code == 0
    assert "1 entries were taken" in run("--import", str(file)).stdout
    for text in ("{}", "[", '"x"'):
        file.write_text(text)
        found = run("--import", str(file))
        assert found.exit_code == 1 and str(file) in found.stderr
    assert run("--import", str(tmp_path / "none")).exit_code == 1


def test_ctrl_c_stops_the_command(offer) -> None:
    closed = []

    def tune(work, seconds):
        try:
            yield Step(1, 9)
            raise KeyboardInterrupt
        finally:
            closed.append(work)

    offer.tune = tune
    found = run("--shapes", "64x64x64")
    assert found.exit_code == 130 and "interrupted" in found.stderr and len(closed) == 1
