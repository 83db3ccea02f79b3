"""`polyarr backends | devices | doctor | ops`, and errors of the command line, through the installed command."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from polyarr import cli
from polyarr.cli import doctor
from polyarr.core.errors import ShapeError
from polyarr.plugins.diagnosis import devices
from tests.helpers.root import ROOT

GOOD = """
from polyarr.backends.numpy import start as numpy
from polyarr.plugins import DeviceInfo, hookimpl

@hookimpl
def polyarr_backends(register):
    register("mirror", lambda: numpy()._replace(name="mirror", hardware="a mirror"), summary="NumPy again", api=2)

@hookimpl
def polyarr_devices():
    return [
        DeviceInfo("mirror", 0, "Mirror", "Glass", features={"fp64": True, "fp16": False, "memory": 4096}, chosen=True),
        DeviceInfo("mirror", 1, "Shards", problem="fell down"),
    ]

@hookimpl
def polyarr_diagnose():
    return [("ok", "the mirror hangs straight"), ("note", "the mirror is of glass")]
"""
WRONG = GOOD.replace('hardware="a mirror"', "download=lambda buf: buf * 0 + 1")
PAIR = "from polyarr import ops\nfrom polyarr.core.backend import Fused\n" + GOOD.replace(
    'hardware="a mirror"',
    "kernels={**numpy().kernels, ops.logsumexp: Fused(print, lambda *_, wanted: print())}, "
    'precisions={ops.matrix_product: ("high", "medium")}',
)
GROUPLESS = GOOD.replace(
    'hardware="a mirror"', "kernels={op: k for op, k in numpy().kernels.items() if not op.group}"
)
# Lines of a plugin with private data.
UNSAFE = """("error", f"no {__import__('os').path.expanduser('~')}/x.so of {__import__('getpass').getuser()} on "
         f"{__import__('platform').node()}"),
        ("ok", "/home/planted_other/y")"""
BROKEN = "import no_such_library_anywhere"


def polyarr(*arguments, folder="", **environment):
    """Run the command in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("POLYARR_")}
    return subprocess.run(
        [sys.executable, "-m", "polyarr", *arguments],
        env={**clean, "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT))), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def plugin(tmp_path):
    """Install a plugin called mirror with this source; return its folder."""

    def install(source):
        (tmp_path / "polyarr_mirror.py").write_text(source)
        info = tmp_path / "polyarr_mirror-0.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: polyarr-mirror\nVersion: 0.3\n")
        (info / "entry_points.txt").write_text("[polyarr]\nmirror = polyarr_mirror\n")
        return tmp_path

    return install


@pytest.fixture
def no_opencl(tmp_path):
    """A folder in which PyOpenCL is missing: the doctor then measures no OpenCL device, which takes 3 s."""
    (tmp_path / "pyopencl.py").write_text("raise ModuleNotFoundError(\"No module named 'pyopencl'\", name='pyopencl')")
    return tmp_path


# ---- the commands ----------------------------------------------------------------------------------------


def test_backends_lists_each_with_what_it_can_do(plugin):
    """Print a row per backend, and the same as JSON."""
    folder = plugin(GOOD)
    found = polyarr("backends", folder=folder)
    assert found.returncode == 0 and found.stderr == ""
    row = next(line for line in found.stdout.splitlines() if line.startswith("mirror"))
    assert re.match(r"mirror +polyarr-mirror 0.3 +running +a mirror +\d+ of \d+ ops +all", row)
    rows = {row["name"]: row for row in json.loads(polyarr("backends", "--json", folder=folder).stdout)}
    assert rows["numpy"]["state"] == "running" and "float64" in rows["numpy"]["backend"]["dtypes"]
    assert rows["mirror"]["summary"] == "NumPy again" and "exp" in rows["mirror"]["backend"]["kernels"]


def test_backends_shows_a_broken_plugin(plugin):
    """The plugin has a row, and its reason is below the table."""
    found = polyarr("backends", folder=plugin(BROKEN))
    assert found.returncode == 0
    assert re.search(r"^mirror +polyarr-mirror 0.3 +failed", found.stdout, re.MULTILINE)
    assert "No module named 'no_such_library_anywhere'" in found.stdout


def test_devices_lists_what_plugins_say(plugin):
    """The selected device has a star, a broken one its problem; the JSON is equal."""
    folder = plugin(GOOD)
    out = polyarr("devices", folder=folder).stdout
    assert re.search(r"^\* +mirror:0 +Mirror +Glass$", out, re.MULTILINE)
    assert "mirror:0  fp64, no fp16, memory 4,096" in out and "mirror:1  broken: fell down" in out
    rows = json.loads(polyarr("devices", "--json", folder=folder).stdout)
    assert [row["features"] for row in rows if row["name"] == "Mirror"] == [
        {"fp64": True, "fp16": False, "memory": 4096}
    ]


def test_doctor_is_content_with_what_works(plugin, request):
    """Every backend computes something."""
    folder = plugin(GOOD)
    found = polyarr("doctor", folder=folder)
    assert re.search(r"ok +numpy .* computes on", found.stdout)
    assert re.search(r"ok +mirror \(polyarr-mirror 0.3\) computes on a mirror", found.stdout)
    assert "the mirror hangs straight" in found.stdout and "the mirror is of glass" not in found.stdout
    assert re.search(r"\n\d+ notes? on drivers: polyarr doctor --verbose\n$", found.stdout)
    assert found.returncode == (1 if re.search("^  error", found.stdout, re.MULTILINE) else 0)
    folder = request.getfixturevalue("no_opencl")
    assert "  note     the mirror is of glass\n" in polyarr("doctor", "--verbose", folder=folder).stdout


def test_the_command_alone_lists_what_there_is():
    found = CliRunner().invoke(cli.main, [])
    assert found.exit_code == 0 and found.output == CliRunner().invoke(cli.main, ["--help"]).output
    assert all(f"\n  {name} " in found.output for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (WRONG, "a small matrix product came out as 1.0, not 83.0"),
        (BROKEN, "No module named 'no_such_library_anywhere'"),
    ],
)
def test_doctor_finds_what_is_broken(plugin, no_opencl, source, complaint):
    """Exit code 1 with the reason, and nothing on stderr."""
    found = polyarr("doctor", folder=plugin(source))
    line = next(line for line in found.stdout.splitlines() if complaint in line)
    assert line.startswith("  error") and "polyarr-mirror 0.3" in line
    assert found.returncode == 1 and found.stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_doctor_survives_what_it_examines(plugin, no_opencl):
    """A backend that kills the process is one line; all others are examined and listed."""
    fatal = GOOD.replace("lambda: numpy()", "lambda: announce('kernel k') or __import__('os').abort() or numpy()")
    fatal = f"from polyarr.core.announce import announce\n{fatal}"
    found = polyarr("doctor", folder=plugin(fatal))
    said = found.stdout
    assert re.search(r"\n  error +backend mirror: the process that tried it was ended by signal 6 .*in kernel k", said)
    assert re.search(r"ok +numpy .* computes on", found.stdout) and "the mirror hangs straight" in found.stdout
    assert found.returncode == 1 and found.stdout.count("\nBackends\n") == 1
    assert re.search(r"^\d+ problems? found$", found.stdout, re.MULTILINE)


@pytest.mark.parametrize("statement", ["os._exit(0)", "os._exit(3)"])
def test_doctor_notices_a_plugin_that_ends_the_process(plugin, statement):
    """Exit code 0 does not prove that all was examined."""
    found = polyarr("doctor", folder=plugin(f"import os\n{statement}"))
    assert re.search(r"\n  error +to look for plugins: the process that tried it ended ", found.stdout)
    assert found.returncode == 1 and "1 problem found" in found.stdout


def test_doctor_names_the_folders_that_may_be_deleted():
    """The process that may have read them dies."""
    line = doctor._of_death("backend mirror", "was ended by signal 11 (SIGSEGV)", ["/here", "/there"], "")
    assert line.level == "error" and "delete /here and /there" in line.text


def test_doctor_gives_up_what_hangs(monkeypatch):
    """A timeout ends it."""
    monkeypatch.setattr(doctor, "PROGRAM", "import time; time.sleep(600)")
    monkeypatch.setattr(doctor, "STEP_TIMEOUT", 0.1)
    with doctor._ProbeProcess([]) as examiner:
        assert list(examiner) == []
    assert examiner.end == "gave no answer for 0.1 seconds"


@pytest.mark.parametrize(("name", "wrong"), [("nonsense", True), ("numpy:7", True), ("numpy", False)])
def test_doctor_examines_polyarr_backend(no_opencl, name, wrong):
    found = polyarr("doctor", folder=no_opencl, POLYARR_BACKEND=name)
    assert (f"error    POLYARR_BACKEND={name}: " in found.stdout) == wrong
    assert found.returncode == 1 or not wrong


def test_doctor_takes_a_missing_optional_library_for_a_choice(no_opencl):
    """Without PyOpenCL or a library that it needs, all installed features still work; one line says so."""
    (no_opencl / "pyopencl.py").write_text("raise ImportError('It needs Mako.\\nInstall it.')")
    found = polyarr("doctor", folder=no_opencl, POLYARR_PLUGINS="")
    assert found.returncode == 0, found.stdout
    assert re.search(r"warning +opencl: not available .*Mako\. Install .*pip install 'polyarr\[opencl\]'", found.stdout)
    assert found.stdout.count("Mako") == 1, found.stdout  # once, though several hooks of the plugin need it


def test_the_report_has_facts_and_nothing_private(plugin, no_opencl, tmp_path):
    """As a user runs it: settings of polyarr are shown, but for the key; other variables are not."""
    home, file = tmp_path / "planted_home", tmp_path / "report.txt"
    folder = plugin(GOOD.replace('("ok", "the mirror hangs straight")', UNSAFE))
    found = polyarr(
        "doctor", "--report", str(file), folder=folder, HOME=str(home), LOGNAME="planted_user",
        POLYARR_API_KEY="planted_key", OTHER_TOKEN="planted_token", POLYARR_TRACE="0",
    )  # fmt: skip
    assert found.returncode == 1 and f"wrote {file}; read it before" in found.stdout
    text = file.read_text()
    assert "planted_key" not in found.stdout and "planted" not in text and platform.node() not in text
    for line in (
        "Environment: ok: POLYARR_API_KEY=(not shown)", "Environment: ok: POLYARR_TRACE=0",
        "Devices: note: mirror:0 Mirror, Glass: fp64, no fp16, memory 4,096",
        "Devices: note: mirror:1 Shards: fell down", "What the backends say: error: no ~/x.so of <user> on <host>",
        "What the backends say: ok: ~/y", "Environment: ok: numpy ", "Backends: ok: numpy ",
    ):  # fmt: skip
        assert f"\n{line}" in f"\n{text}", text


def test_a_report_that_cannot_be_written_is_one_line(no_opencl, tmp_path):
    found = polyarr("doctor", "--report", str(tmp_path / "none" / "x"), folder=no_opencl)
    assert found.returncode == 1 and len(found.stderr.splitlines()) == 1
    assert "none/x: No such file or directory" in found.stderr


def test_ops_says_how_each_op_runs(plugin):
    """On one backend or all, with the backends that have Fused kernels of a composed op."""
    folder = plugin(PAIR)
    found = polyarr("ops", "--backend", "numpy", folder=folder)
    assert found.returncode == 0 and found.stderr == ""
    assert re.search(r"^exp +primitive +kernel +inexact +function +8$", found.stdout, re.MULTILINE)
    assert re.search(r"^fill +primitive +kernel +float32 +exact +0$", found.stdout, re.MULTILINE)
    assert re.search(r"^logsumexp +composed +as other ops ", found.stdout, re.MULTILINE)
    assert "lacking" not in found.stdout
    rows = {row.pop("op"): row for row in json.loads(polyarr("ops", "--json", folder=folder).stdout)}
    assert rows["logsumexp"]["kind"] == "composed"
    assert rows["logsumexp"]["on"] | {"opencl:0": ""} == {"numpy": "as other ops", "opencl:0": "", "mirror": "fused"}
    assert rows["matrix_product"]["on"]["mirror"] == "kernel (high, medium)"
    del rows["exp"]["on"]
    assert rows["exp"] == {"kind": "primitive", "dtypes": "inexact", "class": "function", "float32": 8}


def test_ops_lists_the_backends_of_each_group(plugin):
    """Each op of the group, and one line for the whole group."""
    folder = plugin(GROUPLESS)
    out = polyarr("ops", folder=folder, POLYARR_PLUGINS="mirror").stdout
    last = out.splitlines()[-1]
    assert re.match(r"linalg \(cholesky, det, .*, svdvals\): ", last)
    assert "offered by numpy" in last and "not offered by mirror" in last
    rows = {row["op"]: row for row in json.loads(polyarr("ops", "--json", folder=folder).stdout)}
    assert (rows["svd"]["group"], rows["svd"]["kind"], rows["pinv"]["kind"]) == ("linalg", "primitive", "composed")
    assert {op: (rows[op]["on"]["numpy"], rows[op]["on"]["mirror"]) for op in ("svd", "pinv", "vector_norm")} == {
        "svd": ("kernel", "not offered"), "pinv": ("as other ops", "not offered"), "vector_norm": ("as other ops",) * 2
    }  # fmt: skip


def test_ops_needs_no_hypothesis(tmp_path):
    """Without it, the testing kit's facts are omitted."""
    (tmp_path / "hypothesis.py").write_text("raise ModuleNotFoundError(\"No module named 'hypothesis'\")")
    found = polyarr("ops", "--backend", "numpy", folder=tmp_path)
    assert found.returncode == 0 and re.search(r"^exp +primitive +kernel$", found.stdout, re.MULTILINE)
    assert found.stderr.splitlines() == ["dtypes and tolerances need: pip install 'polyarr[testing]'"]


# ---- errors ----------------------------------------------------------------------------------------------


def test_an_unknown_backend_is_one_line():
    """Exit code 1 without a traceback; --debug shows it, before or after the command."""
    found = polyarr("ops", "--backend", "nonsense")
    assert found.returncode == 1 and found.stdout == ""
    assert found.stderr.splitlines() == ["polyarr: no backend called 'nonsense'; installed: numpy, opencl"]
    for arguments in (("--debug", "ops", "--backend", "nonsense"), ("ops", "--backend", "nonsense", "--debug")):
        found = polyarr(*arguments)
        assert found.returncode == 1 and found.stderr.startswith("Traceback")
        assert found.stderr.splitlines()[-1] == "polyarr: no backend called 'nonsense'; installed: numpy, opencl"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nonsense"], "polyarr: no command called 'nonsense'; there are: train, generate, chat, evaluate, serve"),
        (["--nonsense"], "polyarr: No such option"),
        (["backends", "--nonsense"], "polyarr backends: No such option"),
        (["backends", "extra"], "polyarr backends: Got unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, line):
    """The message refers to --help."""
    found = polyarr(*arguments)
    assert found.returncode == 2 and found.stderr.startswith(line)
    assert len(found.stderr.splitlines()) == 1 and "--help" in found.stderr


def test_an_empty_name_of_a_file_is_refused():
    """It is not the current folder, which an import or an export would write into."""
    context, count = click.Context(cli.main), 0
    for name in cli.COMMANDS:
        found = cli.main.get_command(context, name)
        for each in (found, *getattr(found, "commands", {}).values()):
            for param in each.params:
                if isinstance(param.type, click.Path):
                    count += 1
                    assert param.type.convert("a/b", param, context) == Path("a/b")
                    with pytest.raises(click.BadParameter, match="the name is empty"):
                        param.type.convert("", param, context)
    assert count > 30


@pytest.fixture
def command(monkeypatch):
    """Run a function as a command of the group; return (exit code, stdout, stderr)."""

    def run(fn, *arguments):
        monkeypatch.setitem(cli.COMMANDS, "test", (f"{__name__}:unused", "A test."))
        made = click.command()(fn)
        monkeypatch.setattr(
            cli, "importlib", type("Loader", (), {"import_module": lambda _: type("M", (), {"unused": made})})
        )
        found = CliRunner().invoke(cli.main, ["test", *arguments], prog_name="polyarr")
        return found.exit_code, found.stdout, found.stderr

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ShapeError("add: no"), 1, "polyarr: add: no"),
        (ValueError("first\nsecond"), 1, "polyarr: first (--debug shows the rest)"),
        (PermissionError(13, "Permission denied", "/here"), 1, "polyarr: /here: Permission denied"),
        (KeyError("x"), 1, "polyarr: KeyError: 'x' (--debug shows where)"),
        (ValueError(), 1, "polyarr: ValueError:  (--debug shows where)"),
        (
            click.BadParameter("no such preset"),
            2,
            "polyarr test: Invalid value: no such preset (try: polyarr test --help)",
        ),
        (click.ClickException("no"), 1, "polyarr: no"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_a_command_raises(command, error, code, line):
    """One line and an exit code; the traceback only with --debug."""

    def fail():
        raise error

    exit_code, _, stderr = command(fail)
    assert (exit_code, stderr.strip()) == (code, line)
    exit_code, _, stderr = command(fail, "--debug")
    assert exit_code == code and stderr.strip().endswith(line)
    assert ("Traceback" in stderr) == (code != 130)


def test_ctrl_c_ends_with_130(plugin):
    """The real signal arrives while a backend starts."""
    folder = plugin(
        GOOD.replace("lambda: numpy()", "lambda: print('here', flush=True) or __import__('time').sleep(60) or numpy()")
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "polyarr", "ops", "--backend", "mirror"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT)))},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # If the tests run in the background of a shell, the signal is ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        assert process.stdout.readline() == "here\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read().split() == ["interrupted"]


# ---- the group -------------------------------------------------------------------------------------------


def test_every_command_is_there_and_takes_debug():
    """The table has real commands with their own summaries."""
    context = click.Context(cli.main)
    for name, (target, _) in cli.COMMANDS.items():
        module, _, attribute = target.partition(":")
        assert isinstance(getattr(import_module(module), attribute), click.Command)
        found = cli.main.get_command(context, name)
        assert [p.name for p in found.params].count("debug") == 1 and found.help


def test_help_starts_nothing():
    """Help imports no command and looks for no backend."""
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from polyarr.cli import main; sys.argv = ['polyarr', '--help']\n"
            "started = ('polyarr.cli.', 'polyarr.backends', 'pyop')\n"
            "try: main()\n"
            "finally: print([n for n in sys.modules if n.startswith(started) and n != 'polyarr.cli.output'])",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0 and found.stdout.splitlines()[-1] == "[]", found.stderr
    assert all(name in found.stdout for name in cli.COMMANDS)


def test_the_script_is_this_group():
    """The script is what pip installs as `polyarr`."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, attribute = scripts["polyarr"].partition(":")
    assert getattr(import_module(module), attribute) is cli.main


@pytest.mark.polyarr_backend("opencl")
def test_no_device_has_the_architecture_0(backend):
    """0 means a driver that reports no architecture."""
    found = [row.features for row in devices() if row.backend == "opencl"]
    assert found and all(features.get("architecture", 90) for features in found)
