"""Files named by the user: special files, endless ones and damaged ones give an error in one line and never block."""

import json
import os
import stat
import struct
import sys
import threading

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load as library_load
from safetensors.numpy import save_file

from polyarr import files
from polyarr.atomic import share, write_whole, written_whole
from polyarr.cli import main
from polyarr.contents import contents_of
from polyarr.files import HeldFile, append_to, open_regular, read_regular
from polyarr.models import GPTModel, save_pretrained
from polyarr.saving import tensor_file
from polyarr.saving.tensor_file import TensorFile
from polyarr.text import byte_tokenizer
from polyarr.training import checkpoint
from polyarr.training.checkpoint import thin_out
from polyarr.training.metrics import MetricsFile, read_metrics
from polyarr.training.pretrained import load_model

SIZES = {
    "vocab_size": 257, "context_length": 4, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "drop_rate": 0.0,
    "qkv_bias": True, "tie_embeddings": True,
}  # fmt: skip
NO_END = "a device, pipe or socket; it must be a regular file"


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path / "loop"


# ---- the atomic writer -------------------------------------------------------------------------------------------


def test_a_file_that_two_threads_write_is_that_of_the_last(tmp_path):
    with written_whole(tmp_path / "x") as first:
        first.write(b"first, ")
        with written_whole(tmp_path / "x") as second:
            second.write(b"second")
        assert (tmp_path / "x").read_bytes() == b"second"
        first.write(b"which ends later")
        first.flush()
        assert (tmp_path / "x").read_bytes() == b"second"
    assert (tmp_path / "x").read_bytes() == b"first, which ends later"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.skipif(sys.platform == "win32", reason="without locks nothing is removed")
def test_temporary_files_of_killed_writers_are_removed(tmp_path):
    """Those of the same file that nobody holds; one that a writer holds stays, however old it is."""
    left, new, other, alike = (
        tmp_path / name
        for name in (".x.12-0123abcd.tmp", ".x.13-0123abcd.tmp", ".x.y.12-0123abcd.tmp", ".x.notes.tmp")
    )
    for path in (left, new, other, alike):
        path.write_bytes(b"half")
    with written_whole(tmp_path / "x") as file:
        file.write(b"slow")
        file.flush()
        (held,) = {*tmp_path.iterdir()} - {left, new, other, alike}
        for path in (left, other, alike, held):
            os.utime(path, (0, 0))
        write_whole(tmp_path / "x", b"fast")
        assert {*tmp_path.iterdir()} == {tmp_path / "x", new, other, alike, held}
    assert (tmp_path / "x").read_bytes() == b"slow"


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be flushed there")
def test_data_are_on_the_disk_before_their_name_and_the_name_in_the_end(tmp_path, monkeypatch):
    flushed, fsync = [], os.fsync

    def noting(handle):
        found = os.fstat(handle)
        size = "folder" if stat.S_ISDIR(found.st_mode) else found.st_size
        flushed.append((size, sorted(os.listdir(tmp_path))[0][0]))  # the name of a temporary file begins with a dot
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    write_whole(tmp_path / "x", b"data")
    share(tmp_path / "x", tmp_path / "y")
    assert flushed == [(4, "."), ("folder", "x"), ("folder", "x")]


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    write_whole(tmp_path / "x", b"old")
    (tmp_path / "x").chmod(0o600)
    write_whole(tmp_path / "x", b"new")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600 and (tmp_path / "x").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["n" * 255, "\u3042" * 85, "\U0001f98a" * 63], ids=["1 byte", "3 bytes", "4 bytes"])
def test_the_longest_names_are_written(tmp_path, name):
    write_whole(tmp_path / name, b"x")
    share(tmp_path / name, tmp_path / "other")
    share(tmp_path / "other", tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"x"


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_link_stays_and_the_file_that_it_names_is_replaced(tmp_path):
    """Also a link to a link, in another folder, and to a file that is not there yet."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    link, file = tmp_path / "here" / "link", tmp_path / "there" / "file"
    (tmp_path / "there" / "second").symlink_to("file")
    link.symlink_to(tmp_path / "there" / "second")
    for data in (b"first", b"second"):
        write_whole(link, data)
        assert file.read_bytes() == data and link.is_symlink() and not file.is_symlink()
    assert {path.name for path in tmp_path.rglob("*")} == {"here", "there", "link", "file", "second"}



# ---- the guarded reader ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [open_regular, lambda path: read_regular(path, 10), append_to, HeldFile, TensorFile])
def test_what_is_no_regular_file_is_never_waited_for(read, pipe, loop, tmp_path):
    for path in (pipe, "/dev/zero", "/dev/null"):
        with pytest.raises(ValueError, match=f"^{path}: {NO_END}$"):
            read(path)
    for path, error in ((loop, OSError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error) as found:
            read(path)
        assert found.value.filename == str(path)


def test_a_file_that_becomes_a_pipe_is_not_waited_for(pipe, tmp_path, monkeypatch):
    """It changes between the check and the opening."""
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.setattr(files, "check_regular", lambda path: os.stat(tmp_path / "a"))
    with pytest.raises(ValueError, match=NO_END):
        open_regular(pipe)


def test_sizes_have_a_limit(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(ValueError, match=f"^{path}: 5 bytes; at most 4 are read$"):
        read_regular(path, 4)
    assert not (tmp_path / "new").exists() and append_to(tmp_path / "new").close() is None


def test_a_held_file_is_read_by_several_threads_and_says_when_it_was_shortened(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(256)) * 256)
    held, wrong = HeldFile(path), []

    def read():
        wrong.extend(i for i in range(0, 60_000, 7) if held.read(i, 9) != bytes((i + j) % 256 for j in range(9)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and held.size == 2**16
    held.check_unchanged()
    os.truncate(path, 5)
    with pytest.raises(ValueError, match=f"^{path}: it ends at byte 5, and bytes 3 to 8 must be read; another program"):
        held.read(3, 5)
    with pytest.raises(ValueError, match=f"^{path}: another program changed it while it was in use$"):
        held.check_unchanged()


# ---- safetensors -------------------------------------------------------------------------------------------------


def written(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype="U8", shape=(2,), offsets=(0, 2), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


DAMAGED = {
    "empty": b"",
    "cut in the length": b"\2\0\0",
    "a length and nothing": struct.pack("<Q", 2),
    "a length beyond the file": struct.pack("<Q", 2**63) + b"{}",
    "no JSON": written(b"{]"),
    "not UTF-8": written(b'{"\xff": 1}'),
    "a list": written([]),
    "nested": written(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "metadata of numbers": written({"__metadata__": {"a": 1}}),
    "no dict": written({"a": 1}, b"12"),
    "no dtype": written({"a": {"shape": [2], "data_offsets": [0, 2]}}, b"12"),
    "a negative length": written({"a": tensor(shape=[-2])}, b"12"),
    "a fraction": written({"a": tensor(shape=[2.0])}, b"12"),
    "true": written({"a": tensor(shape=[2, True])}, b"12"),
    "one offset": written({"a": tensor(offsets=[0])}, b"12"),
    "offsets that fall": written({"a": tensor(offsets=[2, 0])}, b"12"),
    "another size": written({"a": tensor(shape=[3])}, b"12"),
    "a shape beyond all sizes": written({"a": tensor(shape=[2**62, 2**62])}, b"12"),
    "a gap": written({"a": tensor(offsets=[1, 3])}, b"123"),
    "an overlap": written({"a": tensor(), "b": tensor(offsets=[1, 3])}, b"123"),
    "too short": written({"a": tensor()}, b"1"),
    "too long": written({"a": tensor()}, b"123"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_safetensors_files_are_those_that_the_library_refuses(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match=r"\S"):
        TensorFile(tmp_path / "a")
    with pytest.raises(SafetensorError):
        library_load(content)


def test_safetensors_files_of_the_library_are_read(tmp_path):
    arrays = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b.c": np.ones(()), "e": np.zeros((0, 3), bool)}
    save_file(arrays, tmp_path / "a", {"x": "y"})
    found = TensorFile(tmp_path / "a")
    assert found.metadata == {"x": "y"} and found.entries.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(found.array(name), array) and found.array(name).dtype == array.dtype
    os.truncate(tmp_path / "a", (tmp_path / "a").stat().st_size - 1)
    with pytest.raises(ValueError, match="another program shortened it"):
        [found.array(name) for name in arrays]


def test_a_header_whose_length_is_a_brace_is_no_text(tmp_path):
    """Its first byte is that of JSON."""
    text = json.dumps({"a": tensor()}).encode()
    (tmp_path / "a").write_bytes(written(text + b" " * (0x7B - len(text)), b"12"))
    assert (tmp_path / "a").read_bytes()[:1] == b"{" and contents_of(tmp_path / "a").kind == "safetensors file"


def test_headers_and_tables_have_a_limit(tmp_path, monkeypatch):
    save_file({"a": np.zeros(1), "b": np.zeros(1)}, tmp_path / "a")
    monkeypatch.setattr(tensor_file, "MAX_TENSORS", 1)
    with pytest.raises(ValueError, match=r"^it has 2 tensors; at most 1 are read$"):
        TensorFile(tmp_path / "a")
    monkeypatch.setattr(checkpoint, "MAX_ROWS", 8)
    rows = list(range(9))
    thin_out(rows, lambda row: row == 2)
    assert rows == [1, 2, 3, 4, 5, 6, 7, 8]
    thin_out(rows)
    assert len(rows) == 8


# ---- metrics -----------------------------------------------------------------------------------------------------


def test_metrics_that_have_no_end_are_one_line(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/zero")
    for read in (read_metrics, lambda folder: MetricsFile(folder, "run", 0)):
        with pytest.raises(ValueError, match=NO_END):
            read(tmp_path)


def test_of_large_metrics_the_last_rows_are_read_and_no_row_is_lost(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"run": "r", "step": {i}}}\n' for i in range(9)))
    monkeypatch.setattr("polyarr.training.metrics.MAX_METRICS", 60)
    assert [row["step"] for row in read_metrics(tmp_path)] == [7, 8]
    with pytest.raises(ValueError, match=r"metrics\.jsonl: \d+ bytes; at most 60 are read"):
        MetricsFile(tmp_path, "r", 9)
    assert len(path.read_text().splitlines()) == 9


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"])
def test_a_file_of_a_model_that_is_none_is_not_taken_for_missing(tmp_path, name, on_numpy):
    """Without a tokenizer.json, texts would be token numbers, so an unreadable file must be an error."""
    save_pretrained(tmp_path, GPTModel(SIZES))
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_json())
    assert load_model(tmp_path)[1].vocab_size == 257
    for target in ("/dev/zero", "nowhere"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(target)
        if (name, target) != ("tokenizer_config.json", "nowhere"):
            for read in (load_model, contents_of):
                with pytest.raises((ValueError, OSError), match=rf"{name}.*: ({NO_END}|No such file)|'.*{name}'$"):
                    read(tmp_path)


# ---- the commands ------------------------------------------------------------------------------------------------

COMMANDS = [
    ["generate", "{}"],
    ["inspect", "{}"],
    ["inspect", "{}", "--json"],
    ["import", "{}", "--out", "out"],
    ["export", "{}", "--out", "out"],
    ["report", "{}"],
    ["prepare", "{}", "--out", "out"],
    ["prepare", "--check", "{}"],
    ["tokenizer", "show", "{}"],
    ["tokenizer", "train", "{}", "--size", "300", "--out", "out.json"],
    ["train", "--data", "{}", "--out", "out"],
    ["train", "--tokenizer", "{}", "--out", "out"],
    ["train", "--from", "{}", "--out", "out"],
    ["train", "--preset", "{}", "--out", "out"],
    ["train", "--resume", "--out", "{}"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_say_in_one_line_that_a_file_is_no_file(words, pipe, loop, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYARR_BACKEND", "numpy")
    zero = tmp_path / "zero.toml"
    zero.symlink_to("/dev/zero")
    pipe.rename(tmp_path / "pipe.toml")
    (tmp_path / "folder").mkdir()
    for path in ("pipe.toml", zero, loop, "folder", "/dev/null"):
        with pytest.raises(SystemExit) as end:
            main([word.format(path) for word in words])
        err = capsys.readouterr().err
        assert end.value.code in (1, 2) and len(err.splitlines()) == 1 and "Traceback" not in err, err
