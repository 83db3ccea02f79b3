"""Planning by OpenCL's launchers: captures compute nothing, and first runs have their programs built ahead."""

from concurrent.futures import Future
from functools import partial

import numpy as np
import pytest

import polyarr as pa
from polyarr import ops
from tests.helpers.opencl_modules import opencl_modules

commands, device_module, devices, probes, program, variants = opencl_modules(
    "commands", "device", "devices", "probes", "program", "variants"
)
pytestmark = pytest.mark.polyarr_backend("opencl")


@pytest.fixture
def fresh(backend):
    """A backend whose device has built no programs yet."""
    from polyarr.backends.opencl import backend_of

    found = backend_of(device_module.Device(devices.select(backend.name).cl_device, backend.name))
    with pa.use_backend(found):
        yield found


@pytest.fixture
def submitted(monkeypatch):
    """Jobs submitted to probe processes, which are not started; every job is done, and found nothing wrong."""
    found = []

    def submit(_, call, *arguments):
        found.append((call.__name__, *arguments))
        job = Future()
        job.set_result("")
        return job

    monkeypatch.setattr(probes.ProbeProcesses, "submit", submit)
    return found


def loss(x, w, b):
    y = ops.layer_norm(ops.gelu(x @ w + b), b, b)
    return (ops.softmax(y) * y).sum() + ops.attention(*[y.reshape(1, 2, 8, 16)] * 3, causal=True).mean()


def arguments():
    r = np.random.default_rng(0)
    return [pa.asarray(r.standard_normal(shape).astype("f4")) for shape in ((16, 16), (16, 16), (16,))]


def test_a_capture_launches_and_allocates_nothing(backend, monkeypatch):
    launched, memory, given = [], [], arguments()
    call = commands.Command.__call__
    monkeypatch.setattr(commands.Command, "__call__", lambda self, *a: launched.append(self.name) or call(self, *a))

    def fn(*args):
        launched.clear()
        memory.append(backend.memory()["in use"])
        found = pa.value_and_grad(loss, argnums=(0, 1, 2))(*args)
        memory.append(backend.memory()["in use"])
        assert launched == ["elementwise"] * 2, "constants from which the gradient begins"
        return found

    expected = pa.value_and_grad(loss, argnums=(0, 1, 2))(*given)
    found = pa.compile(fn)(*given)
    assert memory[1] - memory[0] <= 4096
    for ours, due in zip(pa.tree.leaves(found), pa.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours.numpy(), due.numpy(), rtol=1e-5, atol=1e-6)


def test_a_first_run_submits_the_programs_that_it_builds(fresh, submitted, monkeypatch):
    built, build = [], program.ProgramCache._build

    def noted(self, stem, defines):
        built.append((stem, defines))
        return build(self, stem, defines)

    given = arguments()
    monkeypatch.setattr(program.ProgramCache, "_build", noted)
    monkeypatch.setattr(type(fresh.home.programs.compiler), "is_slow", lambda *_: True)
    value = pa.compile(pa.value_and_grad(loss))(*given)[0]
    of_run = [(job[1], job[2]) for job in submitted if job[0] == "_build"]
    assert len(of_run) > 5
    assert all(each in built for each in of_run), "nothing is built in vain"
    assert built[-len(of_run) :] == [each for each in built if each in of_run], "nothing is missing"
    assert np.isfinite(float(value)) and not fresh.home.programs.jobs and fresh.home.programs.ahead is None


def test_nothing_is_submitted_if_all_programs_are_cached(fresh, submitted, monkeypatch):
    monkeypatch.setattr(type(fresh.home.programs.compiler), "is_slow", lambda *_: False)
    pa.compile(pa.value_and_grad(loss))(*arguments())
    assert not submitted


def test_the_verdict_about_a_program_is_that_of_its_job(fresh, monkeypatch):
    device, asked = fresh.home, []
    monkeypatch.setattr(variants.Verdicts, "_read", lambda _: {})
    monkeypatch.setattr(variants.Store, "save", lambda *_: None)
    monkeypatch.setattr(probes.ProbeProcess, "wrong", lambda *_: asked.append(1) or "asked")
    tested = variants.Variant("tested", "everything", lambda *_: None, stem="sort_gpu")
    monkeypatch.setattr(program.ProgramCache, "text", lambda self, stem, defines: f"{stem} {defines}")
    job = Future()
    job.set_result("the result is wrong")
    device.programs.ahead = partial(device.programs.jobs.update, {"sort_gpu {'A': 1}": job})
    with pytest.warns(RuntimeWarning, match="A=1: the result is wrong$"):
        assert not variants.is_sound_program(device, tested, {"A": 1}, partial(max, device))
    assert not asked and not device.programs.jobs
    assert device.plans[variants.Verdicts]().set_aside() == {
        variants._key("tested", "sort_gpu {'A': 1}"): "A=1: the result is wrong"
    }


def test_processes_answer_at_once(backend, monkeypatch):
    monkeypatch.setattr(probes.os, "cpu_count", lambda: 4)
    both = probes.ProbeProcesses(backend.name)
    jobs = [both.submit(str), both.submit(int), both.submit(str)]
    assert [job.result().partition(":")[0] for job in jobs] == ["", "TypeError", ""]
    assert both.wrong(str) == ""


def test_what_could_not_be_tried_is_tried_again_alone(monkeypatch):
    """The idle processes are ended before, as they hold memory of the device."""
    tried, ended = [], []

    def wrong(self, function, *arguments):
        tried.append(self)
        if len(tried) == 1:
            raise probes.NotTriedError("out of memory")
        return "sound" if len(ended) == 2 else "in vain"

    monkeypatch.setattr(probes.os, "cpu_count", lambda: 6)
    monkeypatch.setattr(probes.ProbeProcess, "wrong", wrong)
    monkeypatch.setattr(probes.ProbeProcess, "end", lambda self: ended.append(self))
    three = probes.ProbeProcesses("opencl")
    assert three.wrong(str) == "sound"
    assert tried[0] is tried[1] and tried[0] not in ended
