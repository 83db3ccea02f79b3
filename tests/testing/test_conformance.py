"""The conformance kit as an author of a backend runs it: pytest sessions with correct, wrong and missing backends."""

import functools
import json
import os
import re
import subprocess
import sys
import warnings

import jsonschema
import pytest
from click.testing import CliRunner

import polyarr
from polyarr import ops, plugins
from polyarr.cli import main
from polyarr.core.backend import Fused
from polyarr.testing import USUAL_LEVEL, CheckFailure, Data, Sample, checks
from polyarr.testing.cases import cases, columns
from polyarr.testing.causes import causes, computed_by
from polyarr.testing.page import SYMBOLS
from polyarr.testing.report import Result, verdict
from tests.helpers.html_page import Page
from tests.helpers.root import ROOT

SCHEMA = json.loads((ROOT / "polyarr" / "testing" / "report.schema.json").read_text())
EXP = "forward-exp and not expm1 and core"  # one case
KIT = "polyarr.testing.conformance"
USUAL = cases(USUAL_LEVEL)  # the default level
ALONE = ("-c", os.devnull, "-p", "no:cacheprovider", "-q", "-rN", "--assert=plain")  # which starts faster
TOYS = """
import os
from polyarr import ops
from polyarr.backends.numpy import start as numpy
from polyarr.core.errors import BackendError
from polyarr.plugins import hookimpl

def like(name, **fields):
    return lambda: numpy()._replace(name=name, **fields)

def with_exp(name, make):
    exp = numpy().kernels[ops.exp]
    return like(name, kernels={**numpy().kernels, ops.exp: make(exp)})

def stop():
    raise KeyboardInterrupt

def broken():
    raise BackendError("the <toy> is in pieces")

@hookimpl
def polyarr_backends(register):
    register("good", like("good", hardware="a <toy>"), api=2)
    register("wrong", with_exp("wrong", lambda exp: lambda out, x: exp(out, x) * out.dtype.type(1.5)), api=2)
    register("crash-y", with_exp("crash-y", lambda exp: lambda out, x: os._exit(3)), api=2)
    register("stopped", with_exp("stopped", lambda exp: lambda out, x: stop()), api=2)
    register("loose", like("loose", unordered=frozenset({ops.sum})), api=2)
    register("empty", like("empty", kernels={}), api=2)
    register("small", like("small", kernels={op: k for op, k in numpy().kernels.items() if not op.group}), api=2)
    register("half", like("half", kernels={op: k for op, k in numpy().kernels.items() if op is not ops.svd}), api=2)
    register("bare", like("bare", dtypes=frozenset()), api=2)
    register("broken", broken, api=2)
    turned = like("garbled", upload=lambda host: host[..., ::-1].copy() if host.ndim else host.copy())
    register("garbled", turned, api=2)
"""


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """A folder with the distribution polyarr-toys installed."""
    folder = tmp_path_factory.mktemp("toys")
    (folder / "polyarr_toys.py").write_text(TOYS)
    info = folder / "polyarr_toys-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: polyarr-toys\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[polyarr]\ntoys = polyarr_toys\n")
    return folder


@pytest.fixture(scope="module")
def run(toys):
    """Run a module in a process of its own, in a folder; return its result."""

    def run(folder, *arguments):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("POLYARR_", "PYTEST_", "PYTHONDONT"))}
        path = os.pathsep.join(map(str, (folder, toys, ROOT)))
        stored = {"HYPOTHESIS_STORAGE_DIRECTORY": str(toys / "hypothesis")}
        return subprocess.run(
            [sys.executable, "-m", *map(str, arguments)],
            env={**clean, **stored, "PYTHONPATH": path},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def kit(run, tmp_path):
    """Run cases of the kit on backends; return the process and, if written, the report."""

    def run_kit(names, selected, *arguments):
        report = tmp_path / "report.json"
        level = re.search(r"\b(core|gpt)\b", selected)  # collecting all levels takes seconds
        within = f"::test_{level[1]}" if level else ""
        found = run(
            tmp_path, "pytest", *ALONE, f"--rootdir={tmp_path}", "--pyargs", KIT + within, f"--polyarr-backend={names}",
            "-k", selected, f"--polyarr-report={report}", *arguments,
        )  # fmt: skip
        return found, json.loads(report.read_text()) if report.exists() else None

    return run_kit


def outcomes(report, name):
    """Return the outcomes by case of one backend."""
    backend = next(b for b in report["backends"] if b["name"] == name)
    return {f"{r['check']}-{r['subject']}": r["outcome"] for r in backend["results"]}


# ---- what a run finds and writes -------------------------------------------------------------------------------


def test_a_backend_that_is_right_holds(kit, tmp_path):
    """Report and page show the result and the deselected cases; neither contains anything executable."""
    page, junit = tmp_path / "report.html", tmp_path / "junit.xml"
    found, report = kit("good", "exp or complete", f"--polyarr-html={page}", f"--junitxml={junit}", "-W", "error")
    assert found.returncode == 0, found.stdout
    assert '<property name="polyarr_check" value="forward" />' in junit.read_text()
    assert re.search(
        r"^polyarr conformance: good on a <toy>: level gpt incomplete \(\d+ of", found.stdout, re.MULTILINE
    )
    assert re.search(r"^ +skipped +\d: good has no fused kernel with a VJP for \.\.\., .*$", found.stdout, re.MULTILINE)
    jsonschema.validate(report, SCHEMA)
    backend = report["backends"][0]
    assert backend["distribution"] == "polyarr-toys 0.3"
    assert backend["verdict"] == report["verdict"] == "incomplete"  # -k left cases out: that is not to conform
    selected = {c.name for c in USUAL if "exp" in c.name or "complete" in c.name}
    assert outcomes(report, "good").keys() == selected and len(USUAL) == report["cases"]
    assert not backend["complete"] and set(outcomes(report, "good").values()) == {"passed", "partly", "skipped"}
    assert {p.name for p in tmp_path.iterdir()} == {"report.json", "report.html", "junit.xml"}
    read = Page(page.read_text())
    assert read.addresses == [] and not read.tags & {"script", "link", "img", "toy"}
    assert "url(" not in page.read_text() and "@import" not in page.read_text() and "http" not in page.read_text()
    assert list(read.cells("exp")) == columns()
    partly = {"bounds", "memory"}  # without `guarded` and `memory`, not all can be checked
    assert {k: v for k, v in read.cells("exp").items() if v} == {
        c.check: SYMBOLS["partly" if c.check in partly else "passed"] for c in USUAL if c.subject == "exp"
    }
    assert backend["covered"]["float32"][0] >= 2**16 and backend["covered"]["float32"][2] > 1e38
    told = r"^  covered  float32 up to [\d,]{6,} elements, values of 1\.4e-45 to 3\.4e\+38$"
    assert re.search(told, found.stdout, re.MULTILINE)
    assert read.cells("logsumexp")["fused"] == SYMBOLS["skipped"]
    assert "good has no fused kernel with a VJP for logsumexp, which is checked without" in read.titles


def test_a_group_that_a_backend_lacks_is_not_offered(kit, tmp_path):
    """Its cases are counted and reported without a failure; an incomplete group is a failure."""
    found, report = kit("small,half", "svd or backend-complete or -inv]", f"--polyarr-html={tmp_path / 'page.html'}")
    jsonschema.validate(report, SCHEMA)
    small, half = report["backends"]
    assert small["groups"] == dict.fromkeys(("complex", "eig", "linalg"), "not offered") | {"conv": "offered"}
    assert half["groups"] == {"complex": "offered", "conv": "offered", "eig": "offered", "linalg": "in part"}
    assert small["verdict"] == "incomplete" and half["verdict"] == "failed"  # incomplete: because of -k
    left_out = {c.name for c in USUAL if c.subject in ("svd", "svdvals", "inv")}
    assert outcomes(report, "small") == {name: "not offered" for name in left_out} | {"backend-complete": "passed"}
    assert sum(counts["not offered"] for counts in small["counts"].values()) == len(left_out)
    told = f"  not offered {len(left_out)}: small does not offer the group linalg"
    assert told in found.stdout.splitlines()
    assert outcomes(report, "half")["backend-complete"] == outcomes(report, "half")["forward-svd"] == "failed"
    assert "half: of linalg, no kernel for svd; a group is there as a whole, or not" in found.stdout
    page = Page((tmp_path / "page.html").read_text())
    assert page.cells("svd")["forward"] == SYMBOLS["not offered"] and ["linalg", "in part"] in page.rows


def test_a_wrong_kernel_fails(kit, toys, monkeypatch):
    """With a one-line reason and a snippet that reproduces it; independent cases pass."""
    found, report = kit("wrong", "core and -exp")
    assert found.returncode == 1 and report["verdict"] == "failed"
    assert "polyarr conformance: wrong on the host's CPU, NumPy: level gpt failed" in found.stdout
    jsonschema.validate(report, SCHEMA)
    assert outcomes(report, "wrong")["forward-exp"] == "failed"
    assert outcomes(report, "wrong")["forward-expm1"] == outcomes(report, "wrong")["purity-exp"] == "passed"
    failure = next(r for r in report["backends"][0]["results"] if r["check"] == "forward" and r["subject"] == "exp")
    assert re.fullmatch(r"exp on wrong: the result \(float32\) differs at .*", failure["reason"])
    monkeypatch.syspath_prepend(toys)
    with plugins.fresh(), polyarr.use_backend("numpy"), pytest.raises(CheckFailure) as raised:
        exec(failure["snippet"], {})
    monkeypatch.delitem(sys.modules, "polyarr_toys")
    assert str(raised.value) == failure["reason"]


@pytest.mark.parametrize(
    ("name", "selected", "told"),
    [
        ("empty", "forward-exp and core", "empty on the host's CPU, NumPy: level core failed"),
        ("broken", EXP, "broken: did not start: backend 'broken' could not start: the <toy> is in pieces"),
        ("good", "gpt and there-is-no-such-case", "good on a <toy>: no case passed: nothing was checked"),
    ],
)
def test_a_backend_without_a_passing_case_fails(kit, name, selected, told):
    """It fails for any reason of the skips."""
    found, report = kit(name, selected, "--polyarr-level=core")
    assert found.returncode != 0 and f"polyarr conformance: {told}" in found.stdout
    jsonschema.validate(report, SCHEMA)
    assert report["verdict"] != "passed" and "passed" not in outcomes(report, name).values()


def test_several_processes_find_the_same(kit, tmp_path):
    """Reports of one and two processes are equal except for times; if all cases are skipped, both fail."""
    reports, known, selected = [], tmp_path / "known.toml", "forward-exp and core and not (bare and expm1)"
    known.write_text('[failures]\n"forward-exp" = "half as much again"\n')
    for jobs in ((), ("-n", "2")):
        found, report = kit("wrong,bare", selected, f"--polyarr-known-failures={known}", *jobs)
        assert found.returncode == 1, found.stdout
        assert "wrong on the host's CPU, NumPy: level gpt incomplete" in found.stdout
        assert "bare on the host's CPU, NumPy: no case passed: nothing was checked" in found.stdout
        assert outcomes(report, "wrong") == {"forward-exp": "known failure", "forward-expm1": "passed"}
        assert set(outcomes(report, "bare").values()) == {"skipped"}
        del report["when"]
        for backend in report["backends"]:
            for result in backend["results"]:
                del result["seconds"]
        reports.append(report)
    assert reports[0] == reports[1]
    assert reports[0]["backends"][0]["results"][0]["snippet"]


def test_a_kernel_that_ends_its_process_fails(kit):
    """The other cases continue in another process."""
    found, report = kit("crash-y", "forward-exp and core", "-n", "1")
    assert found.returncode == 1
    assert outcomes(report, "crash-y") == {"forward-exp": "failed", "forward-expm1": "passed"}
    assert re.search("crashed while running", report["backends"][0]["results"][0]["reason"])


def test_a_process_that_ends_leaves_what_was_found(kit, tmp_path):
    """The journal has a line per result; the last one names the case that ran."""
    found, report = kit("crash-y", "test_core and (forward-negative or forward-exp)")
    assert found.returncode == 3 and report is None
    lines = [json.loads(line) for line in (tmp_path / "report.json.journal").read_text().splitlines()]
    assert [(line["check"], line["subject"], line["outcome"]) for line in lines if "outcome" in line] == [
        ("forward", "negative", "passed")
    ]
    assert lines[-1]["running"].endswith("::test_core[crash-y-forward-exp]")


def test_the_backends_alternate(kit):
    """Backends alternate case by case, to share drawn examples."""
    found, _ = kit("wrong,good", "forward-exp and core", "--collect-only")
    assert re.findall(r"\[(.+)\]", found.stdout) == [
        f"{name}-forward-{op}" for op in ("exp", "expm1") for name in ("wrong", "good")
    ]


def test_where_copies_fail_nothing_else_is_tried(kit):
    """One failure has the reason; thousands would repeat it."""
    found, report = kit("garbled", "copies or forward-exp or layer-Linear")
    assert found.returncode == 1 and "garbled on the host's CPU, NumPy: level gpt failed" in found.stdout
    found = outcomes(report, "garbled")
    assert found.pop("backend-copies") == "failed" and set(found.values()) == {"skipped"}
    assert {r["reason"] for r in report["backends"][0]["results"] if r["outcome"] == "skipped"} == {
        "nothing else was tried, for copies fail: bool[33] comes back from an upload as other bytes"
    }


def test_only_a_whole_level_is_passed():
    """Deselecting cases, by -k or otherwise, gives "incomplete"."""
    held = Result("good", "core", "forward", "exp", "passed", "", "", 0.1)
    wrong = held._replace(outcome="failed")
    assert verdict([held], is_whole=True, complete=True) == "passed"
    assert verdict([held], is_whole=True, complete=False) == "incomplete"
    partly = held._replace(outcome="partly")
    assert verdict([partly], is_whole=True, complete=True) == "passed"
    assert verdict([held], True, True, ["1 known failure"]) == "passed with exceptions"
    assert verdict([held], True, False, ["1 known failure"]) == "incomplete"
    assert verdict([held], is_whole=False, complete=False) == "interrupted"
    assert verdict([held, wrong], is_whole=True, complete=False) == "failed"


def test_one_example_has_the_shape_of_the_others(kit):
    """For backends that compile for every shape."""
    found, report = kit("good", EXP, "--polyarr-few-shapes", "--polyarr-thorough")
    assert found.returncode == 0 and report["effort"] == {"examples": 1, "seed": 0, "thorough": False}


def test_an_interrupted_session_reports_what_there_is(kit):
    """The verdict is not "passed"."""
    found, report = kit("stopped", "core and (forward-negative or forward-exp)")
    assert found.returncode == pytest.ExitCode.INTERRUPTED
    assert "level gpt interrupted (1 of" in found.stdout
    assert report["verdict"] == "interrupted" and outcomes(report, "stopped") == {"forward-negative": "passed"}


def test_backends_that_were_not_named_need_not_start(kit):
    """Those that start are judged."""
    found, report = kit("", "gpt and generation and (good or broken)")
    assert found.returncode == 0, found.stdout
    assert {b["name"]: b["verdict"] for b in report["backends"]} == {"good": "incomplete", "broken": "not started"}


def test_a_level_contains_those_before_it(kit):
    """Later levels are deselected."""
    _, report = kit("good", "forward-exp or backward-exp or copies", "--polyarr-level=autograd")
    assert report["level"] == "autograd"
    assert outcomes(report, "good").keys() == {
        "forward-exp", "forward-expm1", "backward-exp", "backward-expm1", "backend-copies",
    }  # fmt: skip


def test_failures_are_grouped_by_the_op_that_explains_them():
    """An op explains others if its own cases fail in the same checks and the others call it; the rest stays alone."""

    def failed(check, subject, *uses):
        called = [*uses] if check == "backend" else [subject, *uses]
        return Result("wrong", "core", check, subject, "failed", "", "", 0.1, called)

    def told(*results):
        return [group["message"] for group in causes([*results, failed("forward", "log")._replace(outcome="passed")])]

    large = [failed("large", "exp"), failed("large", "tan", "sin"), failed("large", "softmax", "exp", "sum")]
    layer = failed("backend", "training", "exp", "add")
    assert told(*large, layer) == [
        "3 failures, all where exp of large arrays is used: large-exp, large-softmax, backend-training",
        "1 failure: large-tan",
    ]
    other = failed("layout", "softmax", "exp")  # exp of strided arrays is right
    assert told(large[0], other) == ["1 failure: large-exp", "1 failure: layout-softmax"]
    usual = [failed("forward", "exp"), failed("threads", "softmax", "exp"), failed("float16", "softmax", "exp")]
    assert told(*usual) == ["3 failures, all where exp is used: forward-exp, threads-softmax, float16-softmax"]
    assert told(failed("float16", "exp"), failed("float16", "silu", "exp"))[0].startswith(
        "2 failures, all where exp in float16 is used: "
    )
    assert len(told(layer, layer._replace(subject="generation"))) == 2


def test_a_failure_names_the_functions_of_the_kernel():
    def forward(out, x):
        return x * 2, None

    def backward(scale, g, saved, x, *, wanted):
        return (g * scale,)

    backend = polyarr.get_backend("numpy")
    kernels = {**backend.kernels, ops.silu: Fused(forward, functools.partial(backward, 3)), ops.abs: abs}
    backend = backend._replace(kernels=kernels)
    with pytest.raises(CheckFailure) as caught:
        checks.check_forward(ops.silu, backend, Sample((Data((3,), values="normal"),)))
    here, lines = f"{__name__}.test_a_failure_names_the_functions_of_the_kernel.<locals>", []
    for function in (forward, backward):
        lines.append(f"{here}.{function.__name__}, line {function.__code__.co_firstlineno}")
    assert caught.value.__notes__[0].splitlines()[-1] == f"    # computed by {' and '.join(lines)}"
    assert computed_by(ops.abs, backend) == computed_by(ops.mean, backend) == ""  # written in C; a decomposition


def test_exceptions_enter_the_verdict(kit, tmp_path):
    """Known failures and unordered ops are listed."""
    known = tmp_path / "known.toml"
    known.write_text('[failures]\n"forward-exp" = "half as much again"\n')
    _, report = kit("wrong,loose", "forward-exp and core", f"--polyarr-known-failures={known}")
    wrong, loose = report["backends"]
    assert wrong["exceptions"] == ["1 known failure"]
    assert loose["exceptions"] == ["no fixed order of sums, and so of bits, in sum"]
    jsonschema.validate(report, SCHEMA)


# ---- known failures --------------------------------------------------------------------------------------------


def test_known_failures_do_not_count_until_they_are_mended(kit, tmp_path):
    """A listed case that passes is stale, which is a failure."""
    known = tmp_path / "known.toml"
    known.write_text('[failures]\n"forward-exp" = "half as much again"\n"forward-expm1" = "it was wrong once"\n')
    found, report = kit("wrong", "forward-exp and core", f"--polyarr-known-failures={known}")
    assert found.returncode == 1 and report["verdict"] == "failed"
    assert outcomes(report, "wrong") == {"forward-exp": "known failure", "forward-expm1": "stale"}
    reasons = [r["reason"] for r in report["backends"][0]["results"]]
    assert reasons == ["half as much again", "it was wrong once"]


@pytest.mark.parametrize(
    ("option", "content", "complaint"),
    [
        ("known-failures", '[failures]\n"forward-nonsense" = "why"', "known failures: there is no case 'forward-nonse"),
        ("known-failures", "[failures", "known failures: .*Expected ']'"),
        ("known-failures", '[failures]\n"forward-exp" = 3', r"known failures: .*\[failures\] must hold lines like"),
        ("known-failures", None, "known failures: .*No such file"),
        ("report", "", "--polyarr-report: there is no folder .*nowhere"),
        ("html", "", "--polyarr-html: there is no folder .*nowhere"),
    ],
)
def test_wrong_files_are_one_line_before_any_test(run, tmp_path, option, content, complaint):
    """The first process reports it, also with several workers."""
    path = tmp_path / ("given.toml" if option == "known-failures" else "nowhere/report")
    if content:
        path.write_text(content)
    found = run(tmp_path, "pytest", *ALONE, "--pyargs", KIT, "-n", "2", f"--polyarr-{option}={path}")
    assert found.returncode == pytest.ExitCode.USAGE_ERROR and found.stdout.strip() == ""
    assert re.fullmatch(f"ERROR: {complaint}.*", found.stderr.strip())


def test_a_page_needs_jinja(run, tmp_path):
    """The error comes before any test."""
    (tmp_path / "jinja2.py").write_text("raise ModuleNotFoundError(\"No module named 'jinja2'\", name='jinja2')")
    found = run(tmp_path, "pytest", *ALONE, "--pyargs", KIT, "--polyarr-html=page.html")
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert re.fullmatch(
        r"ERROR: --polyarr-html: No module named 'jinja2'; .*'polyarr\[testing\]'", found.stderr.strip()
    )


# ---- the command -----------------------------------------------------------------------------------------------


def test_the_command_does_the_same(run, tmp_path):
    """In any project; it writes only the requested files."""
    (tmp_path / "conftest.py").write_text("raise RuntimeError('of another project')")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nonsense")
    options = ("-k", "forward-exp and core", "--level", "core", "--report", "r.json", "--html", "r.html")
    found = run(tmp_path, "polyarr", "conformance", "good", *options, "--jobs", "2", "--seed", "3")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "polyarr conformance: good on a <toy>: level core incomplete (2 of" in found.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert report["effort"]["seed"] == 3 and outcomes(report, "good").keys() == {"forward-exp", "forward-expm1"}
    assert {p.name for p in tmp_path.iterdir()} == {"conftest.py", "pytest.ini", "r.json", "r.html"}
    found = run(tmp_path, "polyarr", "conformance", "wrong", "-k", EXP)
    assert found.returncode == 1 and "exp on wrong: the result (float32) differs at" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["nonsense"], 1, "polyarr: no backend called 'nonsense'; installed: .*"),
        (["broken"], 1, "polyarr: backend 'broken' could not start: the <toy> is in pieces; .*"),
        (["good:1"], 1, "polyarr: backend 'good' takes no device, got 'good:1'; .*"),
        (["good", "--level", "all"], 2, "polyarr conformance: Invalid value for '--level': .*"),
        (["good", "--html", "no/page.html"], 2, "ERROR: --polyarr-html: there is no folder .*no"),
    ],
)
def test_the_command_refuses_in_one_line(toys, monkeypatch, arguments, code, complaint):
    """The error comes before any test."""
    monkeypatch.syspath_prepend(toys)
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    with plugins.fresh(), polyarr.use_backend("numpy"), warnings.catch_warnings():
        found = CliRunner().invoke(main, ["conformance", *arguments], prog_name="polyarr")
    assert found.exit_code == code
    assert re.fullmatch(complaint, found.output.strip())


def test_the_command_names_cases(run, tmp_path):
    """--list runs none; a -k without matches is an error, unlike in pytest."""
    found = run(tmp_path, "polyarr", "conformance", "good", "--list", "-k", EXP)
    assert (found.returncode, found.stdout) == (0, "forward-exp\n"), found.stdout + found.stderr
    found = run(tmp_path, "polyarr", "conformance", "good", "--level", "core", "-k", "exp1m")
    assert found.returncode == 2
    assert "no case of level core matches -k 'exp1m'; did you mean expm1" in found.stderr
    assert "polyarr conformance good --list names them" in found.stderr


def test_the_command_says_what_is_not_installed(run, tmp_path):
    """pytest-xdist is needed only for several processes."""
    for library, arguments in (("pytest", ()), ("hypothesis", ()), ("xdist", ("--jobs", "2"))):
        (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError('No module named {library}')")
        found = run(tmp_path, "polyarr", "conformance", "good", *arguments)
        assert found.returncode in (1, 2) and found.stdout == ""
        assert re.fullmatch(rf"polyarr.*{library}.*pip install .*", found.stderr.strip())
        (tmp_path / f"{library}.py").unlink()


# ---- the fixture and the marker --------------------------------------------------------------------------------

TESTS = """
import polyarr, pytest

def test_fixture(polyarr_backend):
    assert polyarr.get_backend() is polyarr_backend and polyarr.asarray([1.0]).backend is polyarr_backend

@pytest.mark.polyarr_backend("good", "wrong")
def test_marker():
    assert polyarr.asarray([1.0]).backend.name in ("good", "wrong")

@pytest.mark.polyarr_backend("good", "broken")
def test_both(polyarr_backend):
    assert polyarr_backend.name == "good"
"""


def test_a_users_test_runs_once_per_backend(run, tmp_path):
    """On all that start, or on named ones, which must start; the marker has priority."""
    (tmp_path / "test_users.py").write_text(TESTS)
    found = run(tmp_path, "pytest", *ALONE, "-vv", "test_users.py", "--polyarr-backend=good,broken")
    verdicts = dict(re.findall(r"::(\S+) (PASSED|SKIPPED|ERROR|FAILED)", found.stdout))
    assert found.returncode == 1 and "polyarr conformance" not in found.stdout
    assert verdicts == {
        "test_fixture[good]": "PASSED", "test_fixture[broken]": "ERROR", "test_marker[good]": "PASSED",
        "test_marker[wrong]": "PASSED", "test_both[good]": "PASSED", "test_both[broken]": "ERROR",
    }  # fmt: skip
    found = run(tmp_path, "pytest", *ALONE, "-vv", "test_users.py", "-k", "good or wrong or broken")
    verdicts = dict(re.findall(r"::(\S+) (PASSED|SKIPPED|ERROR|FAILED)", found.stdout))
    assert found.returncode == 0 and len(verdicts) == 7
    assert {name for name, verdict in verdicts.items() if verdict == "SKIPPED"} == {
        "test_fixture[broken]", "test_both[broken]",
    }  # fmt: skip


MISSPELT = """
import pytest

@pytest.mark.polyarr_backend("nosuch", "good", "good", "good:1")
def test_names(): pass

@pytest.mark.polyarr_backend("nosuch:1", "broken", "torn")
def test_more(polyarr_backend): pass
"""


def test_a_misspelt_name_is_an_error(run, tmp_path):
    """It would always be skipped. An installed backend that does not start is skipped; duplicates count once."""
    (tmp_path / "test_misspelt.py").write_text(MISSPELT)
    info = tmp_path / "polyarr_torn-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: polyarr-torn\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[polyarr]\ntorn = no_such_module\n")
    found = run(tmp_path, "pytest", *ALONE, "-vv", "test_misspelt.py")
    verdicts = dict(re.findall(r"::(\S+) (PASSED|SKIPPED|ERROR|FAILED)", found.stdout))
    assert verdicts == {
        "test_names[nosuch]": "ERROR", "test_names[good]": "PASSED", "test_names[good:1]": "ERROR",
        "test_more[nosuch:1]": "ERROR", "test_more[broken]": "SKIPPED", "test_more[torn]": "SKIPPED",
    }  # fmt: skip
    assert "no backend called 'nosuch'; installed: " in found.stdout


def test_other_projects_do_not_pay(run, tmp_path):
    """If polyarr is installed but not used, pytest loads neither the kit's libraries nor plugins."""
    (tmp_path / "test_others.py").write_text(
        "import sys\nfrom polyarr import plugins\n"
        "def test_first(): assert not {'hypothesis', 'jinja2', 'polyarr.testing.cases'} & set(sys.modules)\n"
        "def test_second(): assert plugins.starting._registry.loader._known is None"
    )
    found = run(tmp_path, "pytest", *ALONE, "-p", "no:hypothesispytest", "test_others.py")
    assert found.returncode == 0, found.stdout
