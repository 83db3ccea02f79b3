"""The plugin loader: a failing plugin is recorded, and everything else works."""

import asyncio
import re
import sys
import threading
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarr import ops, plugins
from polyarr.core.backend import Backend, Fused
from polyarr.core.current import get_backend, set_backend, use_backend
from polyarr.core.errors import BackendError
from polyarr.plugins import BackendSpec, PluginWarning, diagnosis, hookimpl, loading
from polyarr.plugins.hooks import Diagnosis
from tests.helpers.installing import child, install, installed, module_of
from tests.helpers.installing import no_settings as no_settings  # a fixture of every test here
from tests.helpers.root import ROOT

HEAD = """
import sys
from polyarr.core.backend import Backend
from polyarr.plugins import BackendSpec, hookimpl
def start():
    return Backend("{name}", {{}}, None, None)
"""
HOOK = HEAD + "@hookimpl\ndef polyarr_backends(register):\n    "

# kind of plugin -> its source, and the stage at which it fails ("" for one that works)
KINDS = {
    "good": (HOOK + "register('{name}', start, summary='works', api=2)", ""),
    "good, as a BackendSpec": (HOOK + "register(BackendSpec('{name}', start, api=2))", ""),
    "missing library": ("import no_such_library_anywhere", "import"),
    "syntax error": ("def polyarr_backends(register:", "import"),
    "exits": ("raise SystemExit(3)", "import"),
    "generator exit": ("raise GeneratorExit", "import"),
    "unprintable error": (
        "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd",
        "import",
    ),
    "asks for a backend on import": ("import polyarr\npolyarr.get_backend('{name}')", "import"),
    "no hook": ("x = 1", "register"),
    "unknown hook": (HEAD + "@hookimpl\ndef polyarr_backend(register): pass", "register"),
    "wrong argument": (HEAD + "@hookimpl\ndef polyarr_backends(registry): pass", "register"),
    "raises midway": (HOOK + "register('{name}', start, api=2)\n    1 / 0", "register"),
    "exits midway": (HOOK + "register('{name}', start, api=2)\n    sys.exit(1)", "register"),
    "api of the future": (HOOK + "register('{name}', start, api=99)", "register"),
    "name with a colon": (HOOK + "register('{name}:0', start, api=2)", "register"),
    "name of no text": (HOOK + "register(7, start, api=2)", "register"),
    "start is no callable": (HOOK + "register('{name}', 'start', api=2)", "register"),
    "unknown argument": (HOOK + "register('{name}', start, apy=1, api=2)", "register"),
    "takes numpy's name": (HOOK + "register('numpy', start, api=2)", "register"),
    "fails to start": (HOOK + "register('{name}', lambda: 1 / 0, api=2)", "start"),
    "exits on start": (HOOK + "register('{name}', lambda: sys.exit(1), api=2)", "start"),
    "starts no Backend": (HOOK + "register('{name}', lambda: 'a backend', api=2)", "start"),
    "clashes": (HOOK + "register('shared', lambda: Backend('shared', {{}}, None, None), api=2)", "clash"),
}


def source_of(kind):
    return KINDS[kind][0].replace("{{", "{").replace("}}", "}")


def toy(name="toy", device="cpu"):
    return Backend(name, {}, None, None, hardware=device)


class Toy:
    """A plugin in this process that counts its starts."""

    def __init__(self, name="toy"):
        self.name, self.starts = name, 0

    @hookimpl
    def polyarr_backends(self, register):
        register(self.name, self.start, api=2)

    def start(self):
        self.starts += 1
        return toy(self.name)


# ---- isolation -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=6))
def test_any_mixture_of_plugins_leaves_the_good_ones_working(kinds):
    """Good plugins start, broken ones are recorded once with stage and distribution, and numpy works."""
    names = {f"p{i}": kind for i, kind in enumerate(kinds)}
    with (
        installed({name: source_of(kind) for name, kind in names.items()}),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        assert get_backend("numpy").name == "numpy"
        stages = {name: KINDS[kind][1] for name, kind in names.items()}
        for name, stage in stages.items():
            if stage == "":
                assert get_backend(name) is get_backend(name)
            else:
                with pytest.raises(BackendError):
                    get_backend(name)
                with pytest.raises(BackendError):
                    get_backend(name)
        clashing = [f"fake-{name} 1.2" for name, stage in stages.items() if stage == "clash"]
        if len(clashing) > 1:
            with pytest.raises(BackendError) as error:
                get_backend("shared")
            assert all(distribution in str(error.value) for distribution in clashing)
        elif clashing:
            get_backend("shared")
        broken = {(f"fake-{n} 1.2", n, s) for n, s in stages.items() if s not in ("", "clash")}
        found = [(f.distribution, f.entry_point, f.stage) for f in diagnosis.failures() if f.distribution != "polyarr"]
        assert sorted(found) == sorted(broken)
        warned = [str(w.message) for w in seen if issubclass(w.category, PluginWarning)]
        assert all(sum(f"{name!r} (fake-{name} 1.2)" in text for text in warned) == 1 for _, name, _ in broken)
        states = {row.name: row.state for row in diagnosis.status(start=True)}
        assert all((states[name] == "running") == (stage == "") for name, stage in stages.items() if stage != "clash")
    for name in names:
        assert module_of(name) not in sys.modules


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind][1] in ("import", "register")])
def test_strict_raises_what_would_be_recorded(kind, monkeypatch):
    """POLYARR_STRICT_PLUGINS=1 raises every time, and names the distribution."""
    monkeypatch.setenv("POLYARR_STRICT_PLUGINS", "1")
    with installed({"p": source_of(kind)}):
        for _ in range(2):
            with pytest.raises(BackendError, match=r"'p' \(fake-p 1.2\) could not"):
                get_backend("p")


@pytest.mark.parametrize("setting", ["0", ""])
def test_strictness_can_be_switched_off(setting, monkeypatch):
    monkeypatch.setenv("POLYARR_STRICT_PLUGINS", setting)
    with installed({"p": source_of("missing library")}):
        with pytest.raises(BackendError, match=r"^no backend called 'p'"), pytest.warns(PluginWarning):
            get_backend("p")


def test_keyboard_interrupt_is_not_swallowed():
    """Ctrl-C during a plugin's import ends the program, not the plugin."""
    with installed({"p": "raise KeyboardInterrupt"}), pytest.raises(KeyboardInterrupt):
        get_backend("p")


def test_unknown_name_lists_what_is_installed_and_what_failed():
    """The error lists what is installed, what failed and why, and a suggestion."""
    with installed({"good": source_of("good"), "p": source_of("missing library")}):
        with pytest.raises(BackendError) as error, pytest.warns(PluginWarning, match="no_such_library_anywhere"):
            get_backend("goood")
    text = str(error.value)
    assert text.startswith("no backend called 'goood'; installed: good, numpy, opencl; did you mean 'good'?")
    assert "fake-p 1.2" in text and "No module named 'no_such_library_anywhere'" in text


def test_one_distribution_twice_on_the_path_counts_once(tmp_path):
    """The first one counts, as in imports."""
    with installed({"p": source_of("good")}) as folder:
        install(tmp_path, "p", source_of("good"), version="0.9")
        sys.path.append(str(tmp_path))
        try:
            get_backend("p")
            assert [row.distribution for row in diagnosis.status() if row.name == "p"] == ["fake-p 1.2"]
        finally:
            sys.path.remove(str(tmp_path))
        assert folder.exists()


@pytest.mark.parametrize("text", ["[polyarr]\nnonsense\n", "[polyarr\nx = y\n", "\x00", "[other]\nnonsense\n"])
def test_damaged_metadata_hides_no_other_plugin(text):
    """An entry_points.txt that cannot be parsed is at most one failure."""
    with installed({"p": source_of("good"), "q": source_of("good")}) as folder:
        (folder / "fake_q-1.2.dist-info" / "entry_points.txt").write_text(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            assert get_backend("p").name == "p"


@pytest.mark.parametrize(("names", "loaded"), [("p", {"p"}), ("p, q", {"p", "q"}), ("", set()), (",", set())])
def test_only_the_plugins_asked_for_are_loaded(names, loaded, monkeypatch):
    """POLYARR_PLUGINS selects entry points; built-in backends are always available."""
    monkeypatch.setenv("POLYARR_PLUGINS", names)
    with installed({"p": source_of("good"), "q": source_of("good"), "r": source_of("exits")}):
        found = {row.name for row in diagnosis.status()}
        assert found == {"numpy", "opencl"} | loaded
        assert module_of("r") not in sys.modules


def test_a_plugin_asked_for_that_is_not_installed_is_a_failure(monkeypatch):
    """A typo in POLYARR_PLUGINS must not go unnoticed."""
    monkeypatch.setenv("POLYARR_PLUGINS", "absent")
    with pytest.warns(PluginWarning, match="'absent'"):
        get_backend("numpy")


def test_an_unknown_plugin_that_warns_as_an_error_leaves_the_state_sound():
    """With -W error the first use raises the warning; the next one works."""
    with installed({"p": source_of("exits"), "q": source_of("good")}):
        with pytest.raises(PluginWarning):
            diagnosis.status()
        assert get_backend("q").name == "q" and [f.entry_point for f in diagnosis.failures()] == ["p"]


# ---- starting --------------------------------------------------------------------------------------------


def test_a_backend_whose_start_failed_may_be_tried_again():
    """The failure is on record until a start succeeds."""
    backend, ready = toy("late"), []

    class Late:
        @hookimpl
        def polyarr_backends(self, register):
            register("late", lambda: backend if ready else 1 / 0, api=2)

    plugins.register_plugin(Late())
    with pytest.raises(BackendError, match="'late' could not start: ZeroDivisionError: division by zero; or use: "):
        get_backend("late")
    assert [f.stage for f in diagnosis.failures() if f.entry_point == "Late"] == ["start"]
    ready.append(True)
    assert get_backend("late").kernels == backend.kernels
    assert not [f for f in diagnosis.failures() if f.entry_point == "Late"]


def test_a_missing_library_comes_with_the_command_that_installs_it():
    """An ImportError in start() is the most common failure, with a known remedy."""

    def start():
        raise ModuleNotFoundError("No module named 'cupy'")

    class Cupy:
        @hookimpl
        def polyarr_backends(self, register):
            register(BackendSpec("cupy", start, install_hint="pip install polyarr-cupy[cuda]", api=2))

    plugins.register_plugin(Cupy())
    with pytest.raises(BackendError, match=r"install what it needs with: pip install polyarr-cupy\[cuda\], or use: "):
        get_backend("cupy")


def test_the_way_out_follows_the_reason_whatever_that_says():
    """A semicolon in the reason does not hide the list of other backends."""

    class Torn:
        @hookimpl
        def polyarr_backends(self, register):
            register("torn", lambda: toy("other"), api=2)

    plugins.register_plugin(Torn())
    with pytest.raises(BackendError, match=r"it must be 'torn', or 'torn:device'; or use: "):
        get_backend("torn")


def test_threads_that_start_a_backend_together_get_the_same_one():
    """start() runs once."""
    plugin, found, gate = Toy(), [], threading.Barrier(8)
    plugins.register_plugin(plugin)

    def ask():
        gate.wait()
        found.append(get_backend("toy"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plugin.starts == 1 and len(found) == 8 and all(b is found[0] for b in found)


def test_a_device_reaches_start():
    """name:device passes the text after the colon to start(), and each device is started once."""

    class Many:
        @hookimpl
        def polyarr_backends(self, register):
            register("many", lambda device="0": toy(f"many:{device}", device), api=2)

    plugins.register_plugin(Many())
    assert get_backend("many").hardware == "0"
    assert get_backend("many:1").hardware == "1"
    assert get_backend("many:1") is get_backend("many:1")
    with pytest.raises(BackendError, match="names no device"):
        get_backend("many:")


def test_a_device_for_a_backend_without_devices_is_an_error():
    """The error says what to write instead."""
    plugins.register_plugin(Toy())
    with pytest.raises(BackendError, match="'toy' takes no device, got 'toy:1'; write 'toy'"):
        get_backend("toy:1")


@pytest.mark.parametrize("bad", [3, b"numpy", ("numpy",)])
def test_only_names_and_backends_name_a_backend(bad):
    """Other types are a TypeError."""
    with pytest.raises(TypeError, match="by name or as a Backend"):
        get_backend(bad)


# ---- choosing --------------------------------------------------------------------------------------------


def test_the_order_of_choices(monkeypatch):
    """use_backend, then set_backend, then POLYARR_BACKEND, then numpy."""
    for name in ("a", "b", "c"):
        plugins.register_plugin(Toy(name), name)
    monkeypatch.setenv("POLYARR_BACKEND", "a")
    assert get_backend().name == "a"
    assert set_backend("b").name == get_backend().name == "b"
    with use_backend("c") as backend:
        assert backend is get_backend() and backend.name == "c"
    assert get_backend().name == "b"


def test_a_bad_default_says_where_it_comes_from(monkeypatch):
    """The error names POLYARR_BACKEND, and the next attempt may succeed."""
    monkeypatch.setenv("POLYARR_BACKEND", "nonsense")
    with pytest.raises(BackendError, match="POLYARR_BACKEND=nonsense: no backend called 'nonsense'"):
        get_backend()
    monkeypatch.delenv("POLYARR_BACKEND")
    assert get_backend().name == "numpy"


def test_a_backend_serves_in_place_of_its_name():
    """A Backend is accepted by all three functions."""
    backend = toy()
    assert get_backend(backend) is backend and set_backend(backend) is backend is get_backend()
    with use_backend(toy("other")):
        assert get_backend().name == "other"


def test_set_backend_that_fails_changes_nothing():
    """The old default remains."""
    set_backend(toy())
    with pytest.raises(BackendError):
        set_backend("nonsense")
    assert get_backend().name == "toy"


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8))
def test_scopes_nest(names):
    """Each level sees its own backend, on entry and on exit."""

    def descend(rest):
        with use_backend(values[rest[0]]):
            assert get_backend() is values[rest[0]]
            if rest[1:]:
                descend(rest[1:])
            assert get_backend() is values[rest[0]]

    values = {name: toy(name) for name in "abc"}
    with use_backend(toy("outer")) as outer:
        descend(names)
        assert get_backend() is outer


def test_a_scope_ends_with_an_exception_and_may_be_entered_again():
    """One object can be used several times, also nested."""
    set_backend(toy("outside"))
    scope = use_backend(toy("inside"))
    with pytest.raises(ZeroDivisionError), scope, scope:
        1 / 0  # noqa: B018
    assert get_backend().name == "outside"
    with scope:
        assert get_backend().name == "inside"


def test_as_a_decorator():
    """A decorated function always runs in the scope; generators and coroutines are refused."""
    set_backend(toy("outside"))

    @use_backend(toy("inside"))
    def named(depth):
        """Say where."""
        return [get_backend().name, *(named(depth - 1) if depth else ())]

    assert named(2) == ["inside"] * 3 and named.__doc__ == "Say where."
    assert get_backend().name == "outside"

    async def later():
        """Never called."""

    with pytest.raises(TypeError, match="plain functions"):
        use_backend("numpy")(later)


def test_threads_and_tasks_do_not_disturb_each_other():
    """A scope applies to its own thread, its own task and the tasks that it starts."""
    set_backend(toy("default"))
    seen = {}

    async def task(name):
        with use_backend(toy(name)):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.setdefault(name, set()).add(get_backend().name)

    async def both():
        with use_backend(toy("outer")):
            await asyncio.gather(task("x"), task("y"), asyncio.to_thread(lambda: seen.update(t=get_backend().name)))

    asyncio.run(both())
    with use_backend(toy("here")):
        thread = threading.Thread(target=lambda: seen.update(thread=get_backend().name))
        thread.start()
        thread.join()
    assert seen == {"x": {"x"}, "y": {"y"}, "t": "outer", "thread": "default"}


# ---- in this process -------------------------------------------------------------------------------------


def test_register_and_unregister_in_this_process():
    """Unregistering a plugin also removes it as the default."""
    plugin = Toy()
    plugins.register_plugin(plugin)
    set_backend("toy")
    plugins.unregister_plugin(plugin)
    assert get_backend().name == "numpy"
    with pytest.raises(BackendError, match="no backend called 'toy'"):
        get_backend("toy")
    with pytest.raises(ValueError, match="not a plugin that register_plugin added"):
        plugins.unregister_plugin(plugin)


def test_a_wrong_plugin_in_this_process_raises():
    """The caller that registers it gets the error."""
    with pytest.raises(BackendError, match="it has no hook"):
        plugins.register_plugin(object())
    with pytest.raises(BackendError, match="'numpy' belongs to polyarr"):
        plugins.register_plugin(Toy("numpy"))


def test_the_error_for_an_api_1_plugin_names_the_migration_page():
    spec = BackendSpec("toy", lambda: None, api=1)
    with pytest.raises(BackendError, match="made for api 1") as raised:
        loading._check(spec)
    section, page = re.search(r"see '(.*)' in (\S+\.md)", str(raised.value)).groups()
    assert f"\n## {section}\n" in (ROOT / page).read_text()


@pytest.mark.parametrize("backward", [lambda g, saved, *bufs, **params: None, lambda g, saved, x, axis: None])
def test_a_fused_kernel_for_api_1_is_refused(backward):
    """It does not know `wanted`, and with **params would take it for a parameter of the op."""
    plugin = Toy()
    plugin.start = lambda: toy()._replace(kernels={ops.softmax: Fused(print, backward)})
    plugins.register_plugin(plugin)
    with pytest.raises(BackendError, match="softmax: backward of its Fused kernel has no parameter wanted"):
        get_backend("toy")


def test_fresh_puts_everything_back():
    """Changes inside the block are undone."""
    before = set_backend(toy("before"))
    with use_backend(toy("scope")) as scope:
        with plugins.fresh():
            plugins.register_plugin(Toy())
            assert set_backend("toy") is get_backend()
        assert get_backend() is scope
    assert get_backend() is before
    assert "toy" not in {row.name for row in diagnosis.status()}


# ---- devices and diagnoses -------------------------------------------------------------------------------


def test_devices_and_diagnoses_are_gathered_and_isolated(monkeypatch):
    """A hook that fails is recorded and warned about once; the others run."""
    monkeypatch.delitem(loading.BUILT_IN, "opencl")  # its drivers are not asked here

    class Speaks:
        @hookimpl
        def polyarr_devices(self):
            return [plugins.DeviceInfo("speaks", 0, "a device")]

        @hookimpl
        def polyarr_diagnose(self):
            return [("ok", "all is well")]

    class Fails:
        @hookimpl
        def polyarr_devices(self):
            raise OSError("the driver is gone")

        @hookimpl
        def polyarr_diagnose(self):
            return [("fine", "no such level")]

    for plugin in (Fails(), Speaks()):
        plugins.register_plugin(plugin)
    with pytest.warns(PluginWarning, match="'Fails' .* could not list devices: OSError: the driver is gone"):
        assert plugins.DeviceInfo("speaks", 0, "a device") in diagnosis.devices()
    diagnosis.devices()  # warned once
    with pytest.warns(PluginWarning, match="level is 'fine'"):
        assert Diagnosis("ok", "all is well") in diagnosis.diagnose()
    assert {f.stage for f in diagnosis.failures() if f.entry_point == "Fails"} == {"list devices", "diagnose"}


# ---- in a process of its own -----------------------------------------------------------------------------


def test_import_polyarr_starts_no_driver_and_loads_no_plugin(tmp_path):
    """Neither import nor use of numpy loads OpenCL; a fatal plugin only matters if it is used."""
    install(tmp_path, "fatal", "import os; os._exit(9)")
    found = child(
        """
        import sys, pathlib
        def heavy():
            maps = pathlib.Path("/proc/self/maps")
            loaded = maps.read_text() if maps.exists() else ""
            names = ("pyopencl", "matplotlib", "tqdm", "safetensors", "click", "fake_plugin_fatal")
            libraries = ("libOpenCL", "libpocl")
            return [n for n in names if n in sys.modules] + [n for n in libraries if n in loaded]
        import polyarr
        print(heavy())
        """,
        tmp_path,
    )
    assert found.stdout.strip() == "[]", found.stderr
    code = "import polyarr, sys; polyarr.get_backend('numpy'); print('pyopencl' in sys.modules)"
    assert child(code, tmp_path).stdout.strip() == "False"
    assert child("import polyarr; polyarr.get_backend('fatal')", tmp_path).returncode == 9


def test_settings_in_a_process_of_its_own(tmp_path):
    """The three environment variables, as a user sets them."""
    install(tmp_path, "good", source_of("good"))
    install(tmp_path, "bad", source_of("missing library"))
    code = "from polyarr import get_backend; print(get_backend().name)"

    found = child(code, tmp_path, POLYARR_BACKEND="good", POLYARR_PLUGINS="good")
    assert (found.stdout.strip(), found.stderr) == ("good", "")
    code += "; from polyarr.plugins.diagnosis import status; status()"
    found = child(code, tmp_path)
    assert found.stdout.strip() == "numpy" and found.stderr.count("PluginWarning") == 1
    found = child(code, tmp_path, POLYARR_STRICT_PLUGINS="1")
    assert found.returncode == 1 and "plugin 'bad' (fake-bad 1.2) could not import" in found.stderr
    found = child(code, tmp_path, POLYARR_BACKEND="good", POLYARR_PLUGINS="")
    assert found.returncode == 1 and "POLYARR_BACKEND=good: no backend called 'good'" in found.stderr
