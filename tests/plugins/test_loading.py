"""The plugins that are imported and when, the limits of plugins, and the names of backends."""

import builtins
import contextlib
import io
import sys
import threading
import types
import warnings

import pytest

import polyarr as pa
from polyarr import ops, plugins
from polyarr.backends import numpy as built_in
from polyarr.core.backend import Backend
from polyarr.core.current import get_backend
from polyarr.core.errors import BackendError
from polyarr.plugins import PluginWarning, diagnosis, hookimpl, loading
from tests.helpers.installing import child, install, installed, module_of
from tests.helpers.installing import no_settings as no_settings  # a fixture of every test here

OFFERS = """
from polyarr.core.backend import Backend
from polyarr.plugins import hookimpl
@hookimpl
def polyarr_backends(register):
    register("{backend}", lambda: Backend("{backend}", {}, None, None), api=2)
"""
REPLACES = """
from polyarr import ops
from polyarr.plugins import hookimpl
@hookimpl
def polyarr_kernels(backend):
    return {ops.exp: lambda out, x: x * 0}
"""


def offers(backend):
    return OFFERS.replace("{backend}", backend)


def plugin(**hooks):
    """Return a plugin of this process with these hooks."""
    return types.SimpleNamespace(**{name: hookimpl(fn) for name, fn in hooks.items()})


def offering(name, start):
    return plugin(polyarr_backends=lambda register: register(name, start, api=2))


def was_imported(name):
    return module_of(name) in sys.modules


# ---- only what is asked for ----------------------------------------------------------------------------------


def test_a_backend_loads_the_plugins_that_are_for_it_and_no_other():
    """The part of the entry point's name before a dot is the backend."""
    sources = {"a": offers("a"), "b": offers("b"), "numpy.fast": REPLACES, "a.fast": "raise OSError"}
    with installed(sources):
        assert get_backend("numpy").kernels[ops.exp](None, 3) == 0
        assert [name for name in sources if was_imported(name)] == ["numpy.fast"]
        with pytest.warns(PluginWarning, match="'a.fast'"):
            get_backend("a")
        assert not was_imported("b")
        assert {row.name for row in diagnosis.status()} >= {"a", "b"} and was_imported("b")


def test_a_backend_with_a_name_of_its_own_is_found_all_the_same():
    """If no entry point has the name, all are loaded."""
    with installed({"a": offers("other"), "b": offers("b")}):
        assert get_backend("other").name == "other"
        assert was_imported("b")


def test_a_name_that_is_not_there_is_not_blamed_on_other_plugins():
    """A plugin that failed is reported only for its own name."""
    with installed({"a": "raise OSError('no such bus')", "b": offers("b")}):
        with pytest.warns(PluginWarning), pytest.raises(BackendError, match="no such bus"):
            get_backend("a")
        assert not was_imported("b")


def test_a_hanging_plugin_blocks_no_other(tmp_path):
    """The plugin exits the process here, which is detected sooner than a hang."""
    install(tmp_path, "hangs", "import os; os._exit(9)")
    install(tmp_path, "good", offers("good"))
    for name in ("numpy", "good"):
        found = child(f"import polyarr as pa; print(pa.get_backend('{name}').name)", tmp_path)
        assert (found.stdout.strip(), found.stderr) == (name, "")


def test_a_plugin_for_a_missing_backend_is_named():
    """It would never be loaded otherwise."""
    with installed({"numpi.fast": REPLACES, "absent.fast": REPLACES, "numpy.fast": REPLACES, "a": offers("other")}):
        assert diagnosis.without_backend() == [
            "plugin 'numpi.fast' (fake-numpi.fast 1.2) is for the backend 'numpi', which nobody offers; "
            "did you mean 'numpy.fast'?",
            "plugin 'absent.fast' (fake-absent.fast 1.2) is for the backend 'absent', which nobody offers",
        ]


def test_one_module_under_two_names_is_one_plugin():
    """A package with a backend and kernels for another one has an entry point for each."""
    with installed({"a": offers("a") + REPLACES}) as folder:
        info = folder / "fake_a-1.2.dist-info" / "entry_points.txt"
        info.write_text(info.read_text() + "numpy.a = fake_plugin_a\n")
        assert get_backend("numpy").kernels[ops.exp](None, 3) == 0
        assert [(row.backend, row.entry_point) for row in diagnosis.overrides()] == [("numpy", "numpy.a")]
        assert get_backend("a").name == "a" and not diagnosis.failures()
        assert [row.name for row in diagnosis.status()].count("a") == 1


def test_kernels_of_no_backend_are_a_failure_and_not_forgotten():
    """An entry point without a backend's name would never be loaded before one starts."""
    with (
        installed({"faster": REPLACES}),
        pytest.warns(PluginWarning, match="call it 'numpy.faster' for those of numpy"),
    ):
        assert "faster" in {f.entry_point for f in diagnosis.failures()}


def test_whether_kernels_are_replaced_does_not_depend_on_what_was_loaded_before():
    """A plugin provides kernels only for the backends that its entry points name, even if it is loaded already."""
    for first in ((), ("a",)):
        with installed({"a": offers("a") + REPLACES}):
            for name in first:
                get_backend(name)
            assert get_backend("numpy").kernels[ops.exp] is not get_backend("a").kernels[ops.exp]
            assert [row.backend for row in diagnosis.overrides()] == ["a"]


def test_the_name_of_a_backend_belongs_to_whom_has_the_entry_point():
    """Otherwise the meaning of a name would depend on what was loaded before."""
    with installed({"a": offers("a"), "b": offers("a")}):
        assert get_backend("a").name == "a"
        with pytest.warns(PluginWarning, match="the backend name 'a' belongs to fake-a 1.2"):
            assert {row.name: row.state for row in diagnosis.status()} == {
                "numpy": "registered", "opencl": "registered", "a": "running", "b": "failed",
            }  # fmt: skip


def test_a_plugin_may_use_other_backends_while_it_is_imported():
    """Only its own backend is unavailable."""
    with installed({"a": f"import polyarr as pa\nassert pa.get_backend('numpy').name == 'numpy'\n{offers('a')}"}):
        assert get_backend("a").name == "a" and get_backend().name == "numpy"


@pytest.mark.parametrize("names", ["numpy,opencl", "opencl, a", "numpy.fast,numpy"])
def test_polyarr_s_own_backends_may_be_named_like_plugins(names, monkeypatch):
    """They are always present; naming them is no error and adds no second row."""
    monkeypatch.setenv("POLYARR_PLUGINS", names)
    with installed({"a": offers("a"), "numpy.fast": REPLACES}), warnings.catch_warnings(action="error"):
        found = [row.name for row in diagnosis.status()]
        assert found == ["numpy", "opencl"] + (["a"] if "a" in names.split(", ") else [])
        get_backend("numpy")
        assert bool(diagnosis.overrides()) == ("fast" in names)


# ---- those who take their time -------------------------------------------------------------------------------


class Listening(io.StringIO):
    """Standard error with an event that is set when a line contains a text."""

    def __init__(self, text):
        super().__init__()
        self.text, self.heard = text, threading.Event()

    def flush(self):
        if self.text in self.getvalue():
            self.heard.set()


@contextlib.contextmanager
def listening(text):
    """Return a block in which slow plugins are announced at once; builtins.polyarr_heard() waits for the text."""
    stream = Listening(text)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(stream):
        patch.setattr(loading, "SLOW_SECONDS", 0.01)
        patch.setattr(builtins, "polyarr_heard", lambda: stream.heard.wait(60), raising=False)
        yield
    assert stream.heard.is_set(), stream.getvalue()


def test_a_slow_import_is_announced():
    """During the import, with the plugin's name."""
    waits = "import builtins\nassert builtins.polyarr_heard(), 'nobody said a word'\n"
    text = "polyarr: plugin 'slow' (fake-slow 1.2) is being imported, for 0.01 seconds so far\n"
    with installed({"slow": waits + offers("slow")}), listening(text):
        assert get_backend("slow").name == "slow"


def test_slow_starts_and_hooks_are_announced(monkeypatch):
    """This finds a driver that hangs, too."""
    monkeypatch.delitem(loading.BUILT_IN, "opencl")  # its drivers are not asked here

    def start():
        assert builtins.polyarr_heard()
        return Backend("late", {}, None, None)

    def devices():
        assert builtins.polyarr_heard()
        return []

    late = plugin(polyarr_backends=lambda register: register("late", start, api=2), polyarr_devices=devices)
    plugins.register_plugin(late, "late")
    with listening("polyarr: backend 'late' of plugin 'late' (this process) is starting, for"):
        get_backend("late")
    with listening("polyarr: plugin 'late' (this process) is asked to list devices, for"):
        assert diagnosis.devices() == []
    assert not diagnosis.failures()


def test_quick_plugins_are_not_announced(monkeypatch, capsys):
    """No thread is left behind."""
    monkeypatch.setattr(loading, "SLOW_SECONDS", 3600.0)
    with installed({"a": offers("a")}):
        get_backend("a")
        diagnosis.status()
    assert capsys.readouterr() == ("", "")
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_process_without_more_threads_loads_plugins(monkeypatch):
    """Only the announcement of slow plugins is missing."""

    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", start)
    with installed({"a": offers("a")}):
        assert get_backend("a").name == "a"


# ---- what a plugin may touch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda k: k.clear(), lambda k: k.pop(ops.exp), lambda k: k.update({ops.exp: 1})])
def test_a_plugin_that_is_asked_for_kernels_cannot_change_the_table(change):
    """The attempt is recorded; the backend computes as before."""
    plugins.register_plugin(plugin(polyarr_kernels=lambda backend: change(backend.kernels)), "rude")
    with pytest.warns(PluginWarning, match="'rude' .* could not replace kernels of 'numpy': AttributeError"):
        backend = get_backend("numpy")
    assert pa.exp(pa.zeros(2)).tolist() == [1, 1] and backend.kernels.keys() == built_in.start().kernels.keys()


def test_the_table_of_a_running_backend_is_immutable():
    """Neither its users nor its author: the table is the only definition of what an op runs."""
    mine = {ops.exp: lambda out, x: x}
    plugins.register_plugin(offering("mine", lambda: Backend("mine", mine, None, None)))
    backend = get_backend("mine")
    mine.clear()
    with pytest.raises(TypeError):
        backend.kernels[ops.exp] = None
    assert ops.exp in backend.kernels


def test_a_plugin_that_builds_on_another_backend_s_table_leaves_that_as_it_is():
    """The table is copied, not written to."""

    def start():
        kernels = get_backend("numpy").kernels
        kernels[ops.exp] = kernels[ops.log]

    plugins.register_plugin(offering("mine", start))
    with pytest.warns(PluginWarning), pytest.raises(BackendError, match="does not support item assignment"):
        get_backend("mine")
    assert pa.exp(pa.zeros(2)).tolist() == [1, 1]


# ---- what a backend may be called --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "", "mine2", "numpy:mine", ":mine", "min"])
def test_a_backend_has_the_name_that_it_is_registered_by(name):
    """Otherwise arrays, errors and the conformance kit would use another name."""
    plugins.register_plugin(offering("mine", lambda: Backend(name, {}, None, None)), "mine")
    message = f"start() returned a Backend called {name!r}; it must be 'mine', or 'mine:device'"
    with pytest.warns(PluginWarning), pytest.raises(BackendError) as error:
        get_backend("mine")
    assert message in str(error.value) and message in str(diagnosis.failures()[-1])
    assert pa.ones(1).device == "numpy"


@pytest.mark.parametrize("name", ["mine", "mine:0", "mine:gpu:1"])
def test_a_device_may_follow_the_name(name):
    """The backend's own name then refers to the same backend."""
    started = []

    def start(device="0"):
        started.append(device)
        return Backend(name, {ops.exp: abs}, None, None)

    plugins.register_plugin(offering("mine", start))
    assert get_backend("mine") is get_backend(name) and get_backend(name).family == "mine"
    assert started == ["0"]


def test_kernels_are_replaced_once_for_all_names_of_a_device():
    """Arrays of "mine" and "mine:0" can be inputs of one op, with or without replaced kernels."""
    asked = []

    def kernels(backend):
        asked.append(backend.name)
        return {ops.exp: lambda out, x: x} if backend.family == "mine" else {}

    plugins.register_plugin(offering("mine", lambda device="0": built_in.start()._replace(name=f"mine:{device}")))
    plugins.register_plugin(plugin(polyarr_kernels=kernels))
    assert get_backend("mine") is get_backend("mine:0") is not get_backend("mine:1")
    assert asked == ["mine:0", "mine:1"]
    assert [(row.backend, row.op) for row in diagnosis.overrides()] == [("mine:0", "exp"), ("mine:1", "exp")]


def test_an_error_recommends_no_backend_that_has_failed():
    """Backends not tried yet may work; those that failed to load or start do not."""

    def broken():
        raise BackendError("no such device")

    sources = {"fails": "raise OSError", "untried": offers("untried")}
    with installed(sources), pytest.warns(PluginWarning, match="'fails'"):
        for name in ("first", "second"):
            plugins.register_plugin(offering(name, broken))
        plugins.starting._registry.loader.load("fails")
        with pytest.raises(BackendError, match=r"; or use: numpy, opencl, second, untried$"):
            get_backend("first")
        with pytest.raises(BackendError, match=r"; or use: numpy, opencl, untried$"):
            get_backend("second")
        assert not was_imported("untried")
