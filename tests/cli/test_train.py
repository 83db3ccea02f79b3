"""`polyarr train` and `polyarr generate`: files and output, and errors in one line."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

import polyarr as pa
from polyarr.cli import main
from polyarr.core.current import undecided
from polyarr.training import load_checkpoint
from tests.helpers.root import ROOT

TEXT = "the quick brown fox jumps over the lazy dog;\n" * 60
FILES = {"best.safetensors", "last.safetensors", "loss.png", "metrics.jsonl"}
SHORT = ("--backend", "numpy", "--steps", "2", "--seed", "1")


def start(*args, cwd, **environment):
    """Start the command."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POLYARR_")}
    return subprocess.Popen(
        [sys.executable, "-m", "polyarr", *map(str, args)],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_apart(*args, cwd, **environment):
    """Run the command in a process of its own; return exit code, output and errors."""
    process = start(*args, cwd=cwd, **environment)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def run(*args, cwd, **environment):
    """Run the command in this process, which has imported everything."""
    with pytest.MonkeyPatch.context() as patch, undecided():
        for name in [name for name in os.environ if name.startswith("POLYARR_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        found = CliRunner().invoke(main, [*map(str, args)], prog_name="polyarr")
    return found.exit_code, found.stdout, found.stderr


def info(folder, name="last"):
    """Return a checkpoint's contents besides its arrays."""
    with pa.use_backend("numpy"):
        return load_checkpoint(folder, name).info


def files(folder):
    """Return all files in a folder with their contents."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a text and a run of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "a.txt").write_text(TEXT)
    (folder / "empty.txt").write_text("")
    (folder / "bare").mkdir()
    (folder / "bare" / "notes.rst").write_text("a text")
    (folder / "short.txt").write_text(TEXT[:50])
    (folder / "latin.txt").write_bytes("naïve\n".encode("latin-1") * 100)
    code, out, err = run_apart("train", *SHORT, "--data", "a.txt", "--out", "run", cwd=folder)
    assert code == 0, err
    return folder, out


def test_training_reports_and_saves(trained):
    folder, out = trained
    numbers = r"train loss \d\.\d{4}  val loss \d\.\d{4}  perplexity \d+\.\d\d  [\d,]+ tokens/s"
    assert re.search(rf"^step +2/2  {numbers}$", out, re.M)
    assert "on numpy" in out and "2,700 characters" in out
    assert {path.name for path in (folder / "run").iterdir()} == FILES
    found = info(folder / "run", "best")
    assert found["preset"] == "demo" and found["step"] == 2 and found["seed"] == 1


@pytest.mark.filterwarnings("always:generate. the text is longer")
def test_a_line_says_when_a_text_is_beyond_the_context_and_it_may_stop_there(trained):
    folder, _ = trained
    command = ("generate", "run", "--backend", "numpy", "--prompt", "the q", "--tokens", 70, "--seed", 3)
    code, out, err = run(*command, cwd=folder)
    assert (code, len(out)) == (0, 76) and err.count("\n") == 1
    assert err.startswith("warning: generate: the text is longer than the model's context of 64 tokens: from here on ")
    assert run(*command, "--stop-at-context", cwd=folder) == (0, out[:64] + "\n", "")
    command = ("generate", "run", "--backend", "numpy", "--prompt", "the q" * 13, "--stop-at-context")
    code, out, err = run(*command, cwd=folder)
    assert (code, out) == (2, "") and "it has 65 tokens, the model's context 64; leave room for more" in err


def test_generating_is_seeded_and_begins_with_the_prompt(trained):
    folder, _ = trained
    command = ("generate", "run", "--backend", "numpy", "--prompt", "the q", "--tokens", 12, "--top-k", 5)
    code, out, err = run(*command, "--seed", 3, cwd=folder)
    assert code == 0, err
    assert out.startswith("the q") and len(out) == 5 + 12 + 1
    assert run(*command, "--seed", 3, cwd=folder)[1] == out
    assert run(*command, "--seed", 3, "--speculate", 3, cwd=folder)[1] == out
    assert run(*command, "--seed", 4, "--top-p", 0.9, cwd=folder)[1] != out
    code, out, _ = run("generate", "run", "--tokens", 3, cwd=folder, POLYARR_BACKEND="numpy")
    assert code == 0 and len(out) == 5
    command = ("generate", "run", "--backend", "numpy", "--tokens", 40, "--seed", 2)
    command = (*command, "--min-p", 0.05, "--repetition-penalty", 1.1)
    text = run(*command, cwd=folder)[1]
    code, out, err = run(*command, "--stop", text[9:12], "--stop", "zz", cwd=folder)
    assert code == 0 and out == text[: text.index(text[9:12], 1)] + "\n", err
    code, out, err = run("generate", "run", "--backend", "numpy", "--tokens", 5, "--weights", "int8", cwd=folder)
    assert code == 0 and len(out) == 7, err


@pytest.fixture
def copied(trained, tmp_path):
    """A folder with a copy of the run."""
    shutil.copytree(trained[0] / "run", tmp_path / "run")
    return tmp_path


RESUME = ("train", "--backend", "numpy", "--resume", "--out", "run")


def test_resuming_goes_on_and_says_where_the_schedule_ended(copied):
    code, out, err = run_apart(*RESUME, "--steps", 3, cwd=copied)
    assert code == 0, err
    assert "step     3/3" in out and "the learning rate stays at 0.0002 from step 2 on" in out
    assert "not the same as a new run of 3 steps" in out
    assert [row["step"] for row in info(copied / "run")["history"]] == [2, 3]


def test_resuming_a_part_of_a_schedule_has_nothing_to_say(trained, tmp_path):
    data = ("--data", trained[0] / "a.txt")
    code, _, err = run("train", *SHORT, "--decay-steps", 3, *data, "--out", "run", cwd=tmp_path)
    assert code == 0, err
    code, out, err = run(*RESUME, "--steps", 3, cwd=tmp_path)
    assert code == 0 and "not the same" not in out, err
    code, out, _ = run(*RESUME, "--steps", 4, "--lr", 1e-4, cwd=tmp_path)
    assert code == 0 and "the recipe changes after step 3: not the same as 4 steps with it" in out


def test_a_run_goes_on_in_another_dtype_and_generates(copied):
    code, out, err = run(*RESUME, "--steps", 3, "--dtype", "float16", "--precision", "high", cwd=copied)
    assert code == 0 and "computed in float16, products of float32 with precision 'high'" in out, err
    recipe = info(copied / "run")["recipe"]
    assert (recipe["dtype"], recipe["precision"]) == ("float16", "high") and "the recipe changes after step 2" in out
    command = ("generate", "run", "--backend", "numpy", "--tokens", 3, "--checkpoint", "last")
    assert run(*command, cwd=copied)[0] == 0


def test_resuming_on_another_text_says_so(trained, copied):
    (copied / "b.txt").write_text((trained[0] / "a.txt").read_text()[::-1])
    code, out, err = run(*RESUME, "--steps", 3, "--data", "b.txt", cwd=copied)
    assert code == 0 and "the text is not the one of the first 2 steps: best begins anew, on this one" in out, err
    code, out, err = run("train", "--resume", "--out", copied / "run", "--backend", "numpy", "--steps", 4, cwd="/")
    assert code == 0 and "step     4/4" in out, err  # in another folder


def test_a_log_has_no_carriage_returns_and_a_quiet_run_says_nothing(trained, tmp_path):
    folder, _ = trained
    data = ("--data", folder / "a.txt")
    code, out, err = run_apart("train", *SHORT, *data, "--out", "plain", cwd=tmp_path, NO_COLOR="1")
    assert code == 0 and err == "" and not re.search(r"[\r\x1b]", out) and "step     2/2" in out
    assert run_apart("train", *SHORT, *data, "--out", "quiet", "--quiet", cwd=tmp_path) == (0, "", "")
    assert {path.name for path in (tmp_path / "quiet").iterdir()} == FILES


def test_resuming_what_is_done_draws_the_curve(copied):
    (copied / "run" / "loss.png").unlink()
    before = files(copied / "run")
    code, out, err = run(*RESUME, cwd=copied)
    assert code == 0, err
    assert "steps are done already" in out and "best val loss" in out
    after = files(copied / "run")
    assert after.pop("loss.png").startswith(b"\x89PNG") and after == before


def test_resuming_a_run_without_its_last_checkpoint(copied):
    (copied / "run" / "last.safetensors").unlink()
    code, out, err = run(*RESUME, "--steps", 3, cwd=copied)
    assert code == 0 and "step     3/3" in out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(trained, tmp_path, number):
    folder, _ = trained
    process = start("train", "--backend", "numpy", "--data", folder / "a.txt", "--out", "run", cwd=tmp_path)
    assert "parameters on numpy" in process.stdout.readline()
    time.sleep(2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in err
    step = re.search(
        r"stopped after (\d+) steps; saved in run; go on with: polyarr train --resume --out run", out
    )
    assert info(tmp_path / "run")["step"] == int(step[1])
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES


WRONG = {
    "missing file": (
        ("train", *SHORT, "--data", "none.txt"),
        1,
        "polyarr: none.txt: No such file or directory",
    ),
    "empty file": (("train", *SHORT, "--data", "empty.txt"), 1, "polyarr: empty.txt: the file is empty"),
    "folder": (("train", *SHORT, "--data", "bare"), 1, "polyarr: bare: no file in this folder ends in .txt, "),
    "short file": (
        ("train", *SHORT, "--data", "short.txt"),
        1,
        "polyarr: short.txt: 45 characters to train on and 5 to validate with; with windows of 64 there must be",
    ),
    "not UTF-8": (
        ("train", *SHORT, "--data", "latin.txt"),
        1,
        "latin.txt: not UTF-8, byte 0xef at position 2",
    ),
    "preset": (
        ("train", "--preset", "huge"),
        1,
        "no preset called 'huge': it is neither a file that ends in .toml nor one of demo, demo-llama, gpt2-124m,",
    ),
    "backend": (
        ("train", "--data", "a.txt", "--backend", "cuda"),
        1,
        "polyarr: no backend called 'cuda'; installed:",
    ),
    "device": (("train", "--data", "a.txt", "--backend", "opencl:99", "--out", "new"), 1, "opencl:99"),
    "steps": (("train", "--steps", "0"), 2, "'--steps'"),
    "learning rate": (("train", *SHORT, "--lr", "-1"), 1, "polyarr: Recipe: lr is -1.0; it must be a number above 0"),
    "out is a file": (("train", *SHORT, "--data", "a.txt", "--out", "a.txt"), 1, "polyarr: a.txt: Not a directory"),
    "out below a file": (("train", *SHORT, "--data", "a.txt", "--out", "a.txt/run"), 1, "a.txt/run: Not a directory"),
    "out holds a run": (("train", *SHORT, "--data", "a.txt", "--out", "run"), 2, "run holds a run already"),
    "resume nothing": (
        ("train", "--resume", "--out", "new", "--backend", "numpy"),
        1,
        "polyarr: new: no such folder",
    ),
    "resume nowhere": (("train", "--resume"), 2, "--resume needs --out"),
    "resume with a seed": (
        ("train", *SHORT, "--resume", "--out", "run"),
        2,
        "leave out --overwrite, --preset",
    ),
    "resume to where it was": (
        ("train", "--resume", "--out", "run", "--backend", "numpy", "--steps", "1"),
        2,
        "run has done 2 steps already",
    ),
    "no file": (
        ("train", *SHORT, "--data", "/dev/zero"),
        1,
        "polyarr: /dev/zero: a device, pipe or socket; it must be a regular file",
    ),
    "prompt": (("generate", "run", "--backend", "numpy", "--prompt", "fox Ä"), 2, "'Ä' (U+00C4)"),
    "empty prompt": (("generate", "run", "--backend", "numpy", "--prompt", ""), 2, "'--prompt'"),
    "no such run": (("generate", "none", "--backend", "numpy"), 1, "polyarr: none: no such file or folder; to fetch a"),
    "no run": (
        ("generate", ".", "--backend", "numpy"),
        1,
        "polyarr: .: no checkpoint 'best' here (best.safetensors is missing); runs in it: run",
    ),
    "a text as a run": (("generate", "a.txt", "--backend", "numpy"), 1, "a.txt: a file; give the folder of a run\n"),
    "a checkpoint's file": (
        ("generate", "run/last.safetensors", "--backend", "numpy"),
        1,
        "run/last.safetensors: a file; give the folder of a run, here run, and the checkpoint's name, last\n",
    ),
    "temperature": (("generate", "run", "--temperature", "-1"), 2, "'--temperature'"),
    "speculate": (("generate", "run", "--speculate", "65"), 2, "'--speculate'"),
    "top-p": (("generate", "run", "--top-p", "0"), 2, "'--top-p'"),
    "penalty": (("generate", "run", "--repetition-penalty", "0"), 2, "'--repetition-penalty'"),
    "nan": (
        ("generate", "run", "--backend", "numpy", "--prompt", "fox", "--temperature", "nan"),
        1,
        "temperature is nan",
    ),
    "nan as a share": (("generate", "run", "--backend", "numpy", "--top-p", "nan"), 1, "top_p is nan"),
    "empty stop": (("generate", "run", "--backend", "numpy", "--stop", ""), 2, "'--stop'"),
}


@pytest.mark.parametrize(("command", "code", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_one_line_and_changes_nothing(trained, command, code, message):
    folder, _ = trained
    before = files(folder)
    found, out, err = run(*command, cwd=folder)
    assert (found, out) == (code, ""), err
    assert message in err and err.count("\n") == 1 and "Traceback" not in err
    assert files(folder) == before and not (folder / "new").exists()


def test_a_damaged_checkpoint_is_one_line(trained, tmp_path):
    folder, _ = trained
    for name, data in files(folder / "run").items():
        (tmp_path / name).write_bytes(data[:200] if name == "best.safetensors" else data)
    code, out, err = run_apart("generate", tmp_path, "--backend", "numpy", cwd=tmp_path)
    assert (code, out) == (1, "") and err.count("\n") == 1
    assert err.startswith(f"polyarr: {tmp_path}/best.safetensors: damaged checkpoint:")
    code, _, err = run_apart("generate", tmp_path, "--backend", "numpy", "--debug", cwd=tmp_path)
    assert code == 1 and "Traceback" in err
    assert (
        run_apart("generate", tmp_path, "--backend", "numpy", "--checkpoint", "last", "--tokens", 1, cwd=tmp_path)[
            0
        ]
        == 0
    )


def test_a_backend_that_cannot_start_names_the_way_out(trained):
    folder, _ = trained
    code, _, err = run_apart(
        "train", "--data", "a.txt", "--out", "new", cwd=folder, POLYARR_DEVICE="no such device"
    )
    assert (
        code == 1 and "backend 'opencl' could not start" in err and err.rstrip().endswith("--backend numpy)")
    )
    assert not (folder / "new").exists()


@pytest.mark.parametrize("module", ["jsonschema", "tqdm", "matplotlib"])
def test_a_missing_library_says_what_to_install(trained, tmp_path, module):
    folder, _ = trained
    (tmp_path / f"{module}.py").write_text("raise ImportError('not here')")
    command = ("train", *SHORT, "--data", "a.txt", "--out", "new")
    code, _, err = run_apart(*command, cwd=folder, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert code == 1 and f"{module} cannot be imported" in err and "pip install 'polyarr[train]'" in err
    assert err.count("\n") == 1 and not (folder / "new").exists()


@pytest.mark.parametrize(("steps", "profiled"), [(2, "steps 1 to 2 of"), (7, "steps 4 to 7 of")])
def test_a_few_steps_are_profiled(trained, steps, profiled):
    """A table and a trace, and the same training as without profiling."""
    folder, out = trained[0], f"profiled{steps}"
    arguments = ("--backend", "numpy", "--seed", "1", "--data", "a.txt", "--steps", steps)
    code, printed, _ = run("train", *arguments, "--out", out, "--profile", f"{out}/trace.json", cwd=folder)
    assert code == 0 and profiled in printed
    assert ("matrix_product (gradient)" if steps == 2 else "matrix_product, ") in printed  # the first step is captured
    spans = json.loads((folder / out / "trace.json").read_text())["traceEvents"]
    ran = {span["name"] for span in spans}
    assert ({"gradient", "adamw"} if steps == 2 else {"matrix_product", "sqrt"}) <= ran
    assert (folder / out / "profile.txt").read_text() in printed
    if steps == 2:
        assert info(folder / out)["history"][-1]["val"] == info(folder / "run")["history"][-1]["val"]


def test_a_trace_that_cannot_be_written_is_found_at_once(trained):
    arguments = (*SHORT, "--data", "a.txt", "--out", "new")
    code, _, errors = run("train", *arguments, "--profile", "a.txt/trace.json", cwd=trained[0])
    assert code != 0 and "a.txt" in errors and len(errors.splitlines()) == 1
