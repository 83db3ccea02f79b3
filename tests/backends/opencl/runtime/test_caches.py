"""The on-disk cache of compiled kernels: damaged files, files of others and a full disk only cost time."""

import io
import itertools
import linecache
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("platformdirs")
if find_spec("pyopencl") is None:
    pytest.skip("PyOpenCL is not installed", allow_module_level=True)
caches = import_module("polyarr.backends.opencl.runtime.caches")

USE = "import polyarr as pa; pa.set_backend('opencl'); print((pa.asarray([0.5, 1.0]) * 2).tolist())"
posix = pytest.mark.skipif(os.name != "posix", reason="owners, modes and limits of files")


def used(folder: Path, program: str = USE, *, limit: int | None = None, **environment: str) -> str:
    """Return the output of a process that computes with its cache under folder; it must not die of a signal."""
    clean = {k: v for k, v in os.environ.items() if k not in ("POCL_CACHE_DIR", "POLYARR_NO_CACHE")}
    if limit is not None:
        program = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n{program}"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
        env={**clean, "XDG_CACHE_HOME": str(folder), **environment},
    )  # fmt: skip
    assert found.returncode >= 0, found.stderr
    return (found.stdout if found.returncode == 0 else found.stderr).strip().splitlines()[-1]


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.glob(f"polyarr/kernels/{caches.FORMAT}-*/*") if path.is_file()]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the cache entries of a process."""
    folder = tmp_path_factory.mktemp("warm")
    assert used(folder) == "[1.0, 2.0]"
    if not entries(folder):
        pytest.skip("the driver keeps what it compiles")
    return folder


DAMAGES = {
    "truncated": lambda content: content[:1000],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "one byte": lambda content: content[:-1] + b"?",
    "another's": lambda content: content[:32] + content[::-1],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_not_there(tmp_path, name):
    """A damaged entry is deleted, so that the next process saves it again."""
    store = caches.Store(tmp_path)
    store.save("name", b"content" * 1000)
    (tmp_path / "name").write_bytes(DAMAGES[name]((tmp_path / "name").read_bytes()))
    assert store.load("name") is None and list(tmp_path.iterdir()) == []


def test_a_process_compiles_anew_what_was_damaged(warm):
    """The driver never sees the damaged entry; afterwards the cache is intact."""
    damaged = entries(warm)
    for path, damage in zip(damaged, itertools.cycle(DAMAGES.values()), strict=False):
        path.write_bytes(damage(path.read_bytes()))
    assert used(warm) == "[1.0, 2.0]"
    assert all(caches.Store(path.parent).load(path.name) is not None for path in damaged)


def test_the_first_process_saves_every_program(tmp_path):
    """A program is saved even if the driver was asked about its compiler, with a program of its own, just before."""
    used(tmp_path)
    saved = entries(tmp_path)
    used(tmp_path)
    assert sorted(entries(tmp_path)) == sorted(saved)


@posix
def test_entries_and_folders_are_the_users_alone_and_nothing_is_left_over(warm):
    """A process leaves its entries and nothing else."""
    kernels = warm / "polyarr" / "kernels"
    for path in (kernels, *kernels.iterdir()):
        assert path.stat().st_mode & 0o777 == 0o700
    assert list((kernels / "run").iterdir()) == [] if (kernels / "run").exists() else True
    assert not list(kernels.rglob(".new-*"))


@posix
def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path):
    """The folder of a running process stays."""
    program = f"{USE}\nimport os; os.kill(os.getpid(), 9)"
    clean = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, timeout=120)
    run = tmp_path / "polyarr" / "kernels" / "run"
    if not run.exists():
        pytest.skip("no driver compiles in a folder")
    abandoned, living = list(run.iterdir()), run / f"{caches.RUN}living"
    living.mkdir()
    with (living / caches.LOCK).open("wb") as file:
        caches.fcntl.flock(file, caches.fcntl.LOCK_EX)
        assert len(abandoned) == 1 and used(tmp_path) == "[1.0, 2.0]"
        assert list(run.iterdir()) == [living]


@posix
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.chmod(0o777), "may be written to by other users"),
        (lambda path: (path.rename(path.with_name("real")), path.symlink_to("real")), "is a link"),
    ],
    ids=["writable", "link"],
)
def test_folders_that_others_could_have_written_to_are_not_read(tmp_path, spoil, reason):
    folder = caches.private(tmp_path / "kernels")
    spoil(folder)
    with pytest.raises(OSError, match=reason):
        caches.private(folder)


@posix
def test_files_of_other_owners_are_not_read(tmp_path, monkeypatch):
    """Folders and entries with another owner are ignored."""
    store = caches.Store(caches.private(tmp_path / "kernels"))
    store.save("name", b"content")
    assert store.load("name") == b"content"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert store.load("name") is None
    with pytest.raises(OSError, match="belongs to the user"):
        caches.private(tmp_path / "kernels")


@posix
def test_a_folder_that_others_may_only_read_is_closed_to_them(tmp_path):
    (tmp_path / "kernels").mkdir(mode=0o755)
    assert caches.private(tmp_path / "kernels").stat().st_mode & 0o777 == 0o700


def test_without_a_home_nothing_is_kept_in_the_current_folder():
    with pytest.raises(OSError, match="set HOME or XDG_CACHE_HOME"):
        caches.private(Path("~/.cache/polyarr"))


def test_an_entry_under_another_name_is_none(tmp_path):
    store = caches.Store(tmp_path)
    store.save("one", b"content")
    (tmp_path / "one").rename(tmp_path / "two")
    assert store.load("two") is None and not (tmp_path / "two").exists()


def test_entries_unused_for_long_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "root", lambda: tmp_path / "kernels")
    caches.trouble.cache_clear()
    store = caches.store_of("a driver")
    folder = store._folder
    for name in ("used", "unused"):
        store.save(name, b"content")
        os.utime(folder / name, (0, 0))
    assert store.load("used") == b"content"
    caches.store_of("a driver")
    caches.trouble.cache_clear()
    assert [path.name for path in folder.iterdir()] == ["used"]


@pytest.mark.parametrize("content", [b"no archive", b"PK\5\6" + bytes(18)], ids=["text", "empty archive"])
def test_an_entry_without_files_is_compiled_anew(warm, content):
    """The entry's checksum is correct, but its content is not."""
    for path in entries(warm):
        caches.Store(path.parent).save(path.name, content)
    assert used(warm) == "[1.0, 2.0]"
    assert all(caches.Store(path.parent).load(path.name) != content for path in entries(warm))


def test_a_program_whose_files_are_gone_is_not_saved(tmp_path, warm):
    """A process that loses PoCL's files leaves no entry that the next one could not use."""
    lost = "import shutil; from polyarr.backends.opencl.runtime.caches import run_folder"
    lost += "; [shutil.rmtree(folder) for folder in run_folder().path.glob('*') if folder.is_dir()]"
    assert used(tmp_path, f"{USE}; {lost}") == "[1.0, 2.0]"
    archives = [content for path in entries(tmp_path) if (content := path.read_bytes()[32:]).startswith(b"PK")]
    assert all(zipfile.ZipFile(io.BytesIO(content)).namelist() for content in archives)
    assert used(tmp_path) == "[1.0, 2.0]"


def test_an_entry_that_cannot_be_written_is_left_out(tmp_path, monkeypatch):
    """No partial file is left."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    store = caches.Store(tmp_path)
    store.save("name", b"content")
    assert store.load("name") is None and list(tmp_path.iterdir()) == []


@posix
def test_a_full_disk_is_one_line(tmp_path):
    """PoCL alone would abort the process."""
    line = used(tmp_path, limit=20_000)
    assert line == "[1.0, 2.0]" or ("BackendError" in line and "files may have 20000 bytes at most" in line)


@posix
def test_where_nothing_can_be_kept_it_computes_all_the_same(tmp_path):
    """The user's cache folder is a file here."""
    (tmp_path / "polyarr").write_text("")
    assert used(tmp_path) == "[1.0, 2.0]"


@pytest.mark.parametrize(
    ("cores", "setting", "is_pinned"),
    [({0, 1, 2, 3}, None, True), ({1, 2}, None, False), ({0, 1, 2, 3}, "POCL_MAX_PTHREAD_COUNT", False)],
)
def test_pocls_threads_keep_to_cores_that_the_process_has(monkeypatch, cores, setting, is_pinned):
    for name in ("POCL_AFFINITY", "POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"):
        monkeypatch.delenv(name, raising=False)
    if setting:
        monkeypatch.setenv(setting, "1")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: cores, raising=False)
    assert caches.for_pocl().get("POCL_AFFINITY") == ("1" if is_pinned else None)


def test_what_other_processes_remove_meanwhile_is_not_counted(tmp_path, monkeypatch):
    """A process that exits removes its run folder while another one adds up sizes."""
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    for name in ("kept", "gone"):
        (caches.root() / name / "inner").mkdir(parents=True)
        (caches.root() / name / "inner" / "file").write_bytes(bytes(100))
    scan = os.scandir

    def scanned(folder):
        if "gone" in str(folder):
            shutil.rmtree(caches.root() / "gone", ignore_errors=True)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scanned)
    assert caches.size() == 100


def test_a_users_own_folder_for_pocl_is_taken_and_put_back(tmp_path):
    """Entries go into a subfolder, and the variable is restored for child processes."""
    program = f"{USE}\nimport os; print(os.environ['POCL_CACHE_DIR'], 'PYOPENCL_NO_CACHE' in os.environ)"
    assert used(tmp_path, program, POCL_CACHE_DIR=str(tmp_path / "own")) == f"{tmp_path / 'own'} False"
    assert entries(tmp_path) == []


def test_a_binary_that_a_driver_refuses_is_built_anew(tmp_path, backend_device):
    """This concerns drivers without a cache of their own."""
    compiled = import_module("polyarr.backends.opencl.runtime.compiled")
    store = caches.Store(caches.private(tmp_path / "kernels"))
    source = "__kernel void one(__global int *x) { x[0] = 1; }"
    for content in (None, b"no binary"):
        if content:
            store.save("name", content)
        compiler = compiled.BinaryCompiler(backend_device.context, store)
        assert compiler.build("name", source, []).kernel_names == "one"
        compiler.launched("name")
        compiler.keep()
        assert store.load("name") not in (None, b"no binary")
        assert compiled.BinaryCompiler(backend_device.context, store).build("name", source, []).kernel_names == "one"


def test_a_program_is_the_same_wherever_pyopencl_is_installed(backend_device):
    """PyOpenCL passes the path of its headers to drivers; binaries must be found in other environments as well."""
    compiled, cl = import_module("polyarr.backends.opencl.runtime.compiled"), import_module("pyopencl")
    compiler = compiled.Compiler(backend_device.context)
    source = "__kernel void one(__global int *x) { x[0] = 1; }"
    program = compiler.build("name", source, ["-cl-std=CL1.2", "-w"])
    told = program.get_build_info(backend_device.cl_device, cl.program_build_info.OPTIONS)
    assert told.split() == ["-cl-std=CL1.2", "-w"]
    with pytest.raises(cl.Error, match=r"implicit|undeclared|Unresolved"):
        compiler.build("name", source.replace("1;", "of_nobody(1);"), ["-cl-std=CL1.2"])


@pytest.fixture
def backend_device():
    """The device of the OpenCL backend."""
    return import_module("polyarr.backends.opencl.devices").select()


@pytest.mark.polyarr_backend("opencl")
def test_kernel_objects_share_the_code_that_sets_arguments(backend):
    """PyOpenCL keeps the text of each function that it writes; a program of n launches has n kernel objects."""
    kernel = backend.home.build("faults").fault_time
    kernel.repeated((1,), (1,), (None, 0))
    before = len(linecache.cache)
    objects = [kernel.repeated((1,), (1,), (None, 0))[1] for _ in range(5)]
    assert len({*map(id, objects)}) == 5 and len(linecache.cache) == before
