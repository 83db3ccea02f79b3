"""`polyarr inspect` and contents_of: summaries of files in bounded memory, and errors in one line."""

import json
import random
import re
import shutil
import struct
import tracemalloc
import warnings
import zipfile

import ml_dtypes
import numpy as np
import pytest

import polyarr as pa
from polyarr.cli import main
from polyarr.contents import contents_of, save_histograms, stored
from polyarr.contents.statistics import statistics_of
from polyarr.models import GPTModel, save_pretrained
from polyarr.models.gpt import GPTConfig
from polyarr.text import CharTokenizer, byte_tokenizer, prepare
from polyarr.training import Recipe, new_run, train
from tests.helpers.pages import follow
from tests.helpers.root import ROOT

safetensors = pytest.importorskip("safetensors.numpy")

TEXT = "the quick brown fox jumps over the lazy dog; " * 12
SIZES = {"context_length": 4, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "drop_rate": 0.0, "tie_embeddings": True}
RECIPE = Recipe({**SIZES, "qkv_bias": False}, batch_size=2, steps=2, lr=1e-2, min_lr=1e-3, warmup=0, eval_every=1)
WEIGHTS = {"a": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "b": np.array([1, -2], np.int8)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a file of every kind that can be inspected."""
    found = tmp_path_factory.mktemp("contents")
    (found / "run").mkdir()
    with pa.use_backend("numpy"):
        train(new_run(TEXT, RECIPE, seed=1), found / "run", lambda line: None)
        model = GPTModel(GPTConfig(vocab_size=257, **SIZES, qkv_bias=True))
        save_pretrained(found / "theirs", model, shard_bytes=4000)
    (found / "theirs" / "tokenizer.json").write_text(byte_tokenizer().to_json())
    (found / "text.txt").write_text(TEXT)
    prepare([found / "text.txt"], found / "prepared")
    (found / "tokenizer.json").write_text(json.dumps(CharTokenizer("abc\x1b").to_dict()))
    safetensors.save_file(WEIGHTS, found / "w.safetensors", metadata={"who": "me"})
    np.savez(found / "w.npz", **WEIGHTS)
    np.savez_compressed(found / "small.npz", **WEIGHTS)
    np.save(found / "w.npy", np.asfortranarray(WEIGHTS["a"]))
    return found


def inspected(capsys, *args):
    """Run `polyarr inspect`; return exit code, output and errors."""
    with pytest.raises(SystemExit) as ended:
        main(["inspect", *map(str, args)])
    return ended.value.code, *capsys.readouterr()


# ---- statistics --------------------------------------------------------------------------------------------------

FLOATS = ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_statistics_are_those_of_all_numbers(monkeypatch, tmp_path, name):
    monkeypatch.setattr(stored, "BLOCK", 7)
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    x = (np.random.default_rng(1).normal(size=(5, 11)) * 20 + 30).astype(dtype)
    safetensors.save_file({"x": x}, tmp_path / "x.safetensors")
    (found,) = contents_of(tmp_path / "x.safetensors").tensors
    wide, s = x.astype(np.float64), found.statistics
    np.testing.assert_allclose((s.mean, s.std), (wide.mean(), wide.std()), rtol=1e-12)
    assert (s.min, s.max, s.nan, s.inf) == (wide.min(), wide.max(), 0, 0)
    assert (found.shape, found.size, found.nbytes, found.dtype) == ((5, 11), 55, x.nbytes, name)


def test_a_large_mean_leaves_the_deviation_its_digits():
    x = 1e9 + np.random.default_rng(1).normal(size=3000)
    assert statistics_of(np.split(x, 3)).std == pytest.approx(x.std(), rel=1e-6)


def test_numbers_that_are_not_finite_are_counted_and_left_out():
    x = np.array([np.nan, 1, np.inf, 3, -np.inf, np.nan], np.float32)
    assert statistics_of([x, x[:1]]) == (1, 3, 2, 1, 3, 2)
    assert statistics_of([x[:1]]) == (None, None, None, None, 1, 0)
    assert statistics_of([]) == (None, None, None, None, 0, 0)


def test_the_ends_of_large_integers_are_exact(tmp_path):
    np.save(tmp_path / "x.npy", np.array([2**63 + 1, 2**64 - 1], np.uint64))
    (found,) = contents_of(tmp_path / "x.npy").tensors
    assert (found.statistics.min, found.statistics.max) == (2**63 + 1, 2**64 - 1)


# ---- kinds -------------------------------------------------------------------------------------------------------


def test_a_run(folder, capsys):
    found = contents_of(folder / "run")
    assert (found.kind, found.files) == ("polyarr run", ["last.safetensors"])
    with pa.use_backend("numpy"):
        expected = new_run(TEXT, RECIPE, seed=1).model.num_parameters()
    assert found.totals["parameters"] == expected < found.totals["size"] and found.totals["nan"] == 0
    assert found.settings["recipe"]["lr"] == 1e-2 and found.settings["preset"] == "GPT"
    assert (found.progress["step"], found.progress["steps"]) == (2, 2)
    assert found.progress["best_val_loss"] <= found.progress["val_loss"] < 5
    assert found.vocabulary["size"] == 28 and found.vocabulary["tokens"][0] == {"number": 0, "token": " "}
    one = contents_of(folder / "run" / "best.safetensors")
    assert one.kind == "polyarr checkpoint" and one.settings == found.settings
    code, out, err = inspected(capsys, folder / "run")
    assert code == 0, err
    assert "progress: step 2, steps 2" in out and "recipe.model.emb_dim: 8" in out
    assert "vocabulary: 28 characters: 0 ' '" in out


def test_a_hugging_face_folder_of_several_files(folder):
    found = contents_of(folder / "theirs")
    assert found.kind == "Hugging Face folder" and len(found.files) > 1
    assert found.settings["model_type"] == "gpt2" and found.vocabulary["size"] == 257
    assert "transformer.h.0.attn.c_attn.weight" in [t.name for t in found.tensors]


def test_a_shard_that_is_missing_is_named(folder, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(ValueError, match=r"gone.safetensors is missing, which model.safetensors.index.json names"):
        contents_of(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../w.safetensors"}}')
    with pytest.raises(ValueError, match=r"it must be a safetensors file of the same folder"):
        contents_of(tmp_path)


@pytest.mark.parametrize("name", ["w.safetensors", "w.npz", "small.npz"])
def test_files_of_arrays(folder, name):
    found = contents_of(folder / name)
    assert [(t.name, t.shape, t.dtype) for t in found.tensors] == [("a", (2, 3, 4), "float32"), ("b", (2,), "int8")]
    assert found.tensors[0].statistics == (0, 23, 11.5, np.arange(24).std(), 0, 0)


def test_one_array(folder):
    (found,) = contents_of(folder / "w.npy").tensors
    assert (found.name, found.shape, found.statistics.mean) == ("w", (2, 3, 4), 11.5)


def test_prepared_tokens_and_tokenizers(folder, capsys):
    found = contents_of(folder / "prepared")
    assert found.kind == "prepared tokens" and found.tensors[0].size == len(TEXT)
    assert found.vocabulary["size"] == 28 and found.settings["texts"] == 1
    code, out, _ = inspected(capsys, folder / "tokenizer.json")
    assert code == 0 and "vocabulary: 4 characters: 0 '\\x1b'  1 'a'" in out


def test_blocks_of_a_model_are_in_the_order_of_their_numbers(tmp_path):
    np.savez(tmp_path / "x.npz", **{f"blocks.{i}.weight": np.zeros(1) for i in (10, 2, 1)})
    assert [t.name.split(".")[1] for t in contents_of(tmp_path / "x.npz").tensors] == ["1", "2", "10"]


def test_what_has_no_statistics_is_listed(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", c=np.ones(2, complex), s=np.array(["ab"]), e=np.zeros((0, 3)))
    code, out, _ = inspected(capsys, tmp_path / "x.npz")
    assert code == 0 and [line.split() for line in out.splitlines()[4:]] == [
        ["c", "2", "complex128", "32", *"------"],
        ["e", "0", "x", "3", "float64", "0", "-", "-", "-", "-", "0", "0"],
        ["s", "1", "str64", "8", *"------"],
    ]


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "theirs", "prepared", "w.npz", "tokenizer.json"])
def test_json_is_one_document_without_nan(folder, capsys, name):
    code, out, err = inspected(capsys, folder / name, "--json")
    assert code == 0, err
    found = json.loads(out, parse_constant=pytest.fail)
    assert found["totals"]["tensors"] == len(found["tensors"]) and found["path"] == str(folder / name)


def test_numbers_that_json_lacks_are_null(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.array([1e308, -1e308, np.nan]))
    (tensor,) = json.loads(inspected(capsys, tmp_path / "x.npy", "--json")[1], parse_constant=pytest.fail)["tensors"]
    assert (tensor["std"], tensor["max"], tensor["nan"]) == (None, 1e308, 1)


def test_histograms_are_drawn(folder, tmp_path, capsys):
    code, out, err = inspected(capsys, folder / "theirs", "--plot", tmp_path / "h.png")
    assert code == 0 and f"16 histograms drawn in {tmp_path}/h.png" in out, err
    assert (tmp_path / "h.png").read_bytes().startswith(b"\x89PNG")
    np.savez(tmp_path / "$x$ä\x1b.npz", **{"$^": np.array([np.nan, np.inf]), "\x1b$": np.ones(3), "0": np.zeros(0)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert save_histograms(tmp_path / "h.png", contents_of(tmp_path / "$x$ä\x1b.npz")) == 1
    assert inspected(capsys, folder, "--plot", tmp_path / "x.png", "--no-statistics")[0] == 2


def test_without_statistics_only_headers_are_read(folder, capsys):
    assert all(t.statistics is None for t in contents_of(folder / "theirs", statistics=False).tensors)
    code, out, _ = inspected(capsys, folder / "w.npz", "--no-statistics")
    assert code == 0 and out.splitlines()[4].split()[-6:] == ["-"] * 6


def test_what_would_move_the_cursor_is_shown(tmp_path, capsys):
    name = "\x1b[2J\u202eevil\n\x07"
    safetensors.save_file({name: np.zeros(1)}, tmp_path / "x.safetensors", metadata={"\x1b]0;t\x07": "\r\x9b2K"})
    code, out, _ = inspected(capsys, tmp_path / "x.safetensors")
    assert code == 0 and "\\x1b[2J\\u202eevil\\n\\x07" in out and "\\x1b]0;t\\x07: \\r\\x9b2K" in out
    assert all(c.isprintable() or c == "\n" for c in out)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr(name, b"")
    code, _, err = inspected(capsys, tmp_path / "x.npz")
    assert code == 1 and err.count("\n") == 1 and all(c.isprintable() for c in err[:-1]) and "evil" in err


# ---- what is refused ---------------------------------------------------------------------------------------------


def refused(path):
    """Return the one-line error for a file."""
    with pytest.raises(ValueError, match=re.escape(str(path))) as found:
        contents_of(path)
    assert "\n" not in str(found.value) and "contents_of" not in str(found.value)  # the command says it as it is
    return str(found.value)


def npy(header, version=b"\1\0", data=b""):
    """Write an npy file with a header."""
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header.encode() + data


def test_what_is_pickled_is_never_read(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}], object))
    np.savez(tmp_path / "o.npz", ok=np.zeros(1), o=np.array([{}], object))
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as file:
        file.writestr("archive/data.pkl", b"")
    (tmp_path / "w.pt").write_bytes(b"\x80\x04")
    for name in ("o.npy", "o.npz"):
        assert "o holds objects, which are pickled and never read; it must hold numbers" in refused(tmp_path / name)
    assert "archive/data.pkl in it is no array; what is pickled is never read" in refused(tmp_path / "t.zip")
    assert "pickled, which is never read" in refused(tmp_path / "w.pt")
    (tmp_path / "o.npz").unlink()
    assert "w.pt is pickled, which is never read: save it as safetensors" in refused(tmp_path)


FORGED = {
    "huge shape": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}"),
    "long header": b"\x93NUMPY\2\0" + struct.pack("<I", 2**32 - 1) + b" " * 100,
    "nested header": npy("(" * 9000),
    "negative shape": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
    "shape of text": npy("{'descr': '<f8', 'fortran_order': False, 'shape': ('x',)}"),
    "huge item": npy("{'descr': '|S2000000000', 'fortran_order': False, 'shape': (9,)}"),
    "unknown version": npy("{}", b"\x09\0"),
    "no dtype": npy("{'descr': 'x', 'fortran_order': False, 'shape': ()}"),
    "long safetensors header": struct.pack("<Q", 2**63) + b'{"a":1}',
    "huge tensor": struct.pack("<Q", 66) + b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}',
    "nothing": b"",
    "noise": bytes(range(200)),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_header_is_one_line_and_no_memory(tmp_path, name):
    (tmp_path / "x").write_bytes(FORGED[name])
    tracemalloc.start()
    try:
        refused(tmp_path / "x")
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()


def test_a_zip_file_that_says_it_is_longer(tmp_path):
    header = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (100,)}")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("a.npy", header + b"\0" * 80)
    assert "a has 800 bytes by its header, and 80 in the file" in refused(tmp_path / "x.npz")


@pytest.mark.parametrize(("place", "value", "said"), [(8, 1, "encrypted"), (10, 99, "compression method")])
def test_a_zip_file_that_python_does_not_read(folder, tmp_path, place, value, said):
    data = bytearray((folder / "w.npz").read_bytes())
    data[data.index(b"PK\1\2") + place] = value
    (tmp_path / "x.npz").write_bytes(data)
    assert said in refused(tmp_path / "x.npz")


def test_memory_does_not_grow_with_the_file(tmp_path):
    header = json.dumps({"a": {"dtype": "BF16", "shape": [1, 2**25], "data_offsets": [0, 2**26]}}).encode()
    with (tmp_path / "x.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2**26)
    contents_of(tmp_path / "x.safetensors", statistics=False)
    tracemalloc.start()
    try:
        (found,) = contents_of(tmp_path / "x.safetensors").tensors
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()
    assert found.size == 2**25 and found.statistics[:4] == (0, 0, 0, 0)


def damaged(whole, draw):
    """Return bytes with one error."""
    place, some = draw.randrange(len(whole)), bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9)))
    if draw.random() < 0.6:  # where the headers are
        place = draw.choice((place % 200, -1 - place % 200)) % len(whole)
    return draw.choice(
        (
            whole[:place],
            whole[:place] + some + whole[place:],
            whole[:place] + some + whole[place + len(some) :],
            whole[:place] + whole[place + draw.randrange(1, 40) :],
            whole[:place] + b"\xff" * 8 + whole[place + 8 :],
        )
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.safetensors", b"x" * 50, "{path} is damaged, or no safetensors file: "),
        ("hf/model.safetensors", b"x" * 50, "{folder}: model.safetensors is damaged, or no safetensors file: "),
        ("tokenizer.json", b"{", "{path}: no tokenizer.json, or a damaged one: "),
        ("tokens/tokenizer.json", b"{", "{path}: no tokenizer.json, or a damaged one: "),
        ("data/manifest.json", b"{", "{folder}: no prepared tokens, or damaged ones: "),
        ("a.npz", b"PK\3\4" + b"x" * 40, "{path}: "),
    ],
)
def test_an_error_names_a_file_once(tmp_path, name, content, said):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    asked = path.parent if "/" in name else path
    with pytest.raises(ValueError, match=f"^{re.escape(said.format(path=path, folder=path.parent))}") as found:
        contents_of(asked)
    text = str(found.value)
    assert text.count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    "name",
    [
        "w.safetensors", "w.npz", "small.npz", "w.npy", "tokenizer.json", "run/best.safetensors",
        "theirs/config.json", "theirs/model.safetensors.index.json", "theirs/tokenizer.json", "prepared/manifest.json",
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_clear_line_if_it_is_noticed(folder, tmp_path, pytestconfig, name):
    """1,000 of each with --polyarr-thorough. A changed number can only be noticed in a zip file."""
    kept = folder / name.partition("/")[0]
    if "/" in name:
        shutil.copytree(kept, tmp_path / kept.name)
    path = tmp_path / name
    whole, draw, noticed = (folder / name).read_bytes(), random.Random(1), 0
    inspected = path.parent if path.suffix == ".json" and "/" in name else path
    for _ in range(1000 if pytestconfig.getoption("polyarr_thorough") else 25):
        path.write_bytes(damaged(whole, draw))
        try:
            json.dumps(contents_of(inspected).to_dict(), allow_nan=False)
        except (ValueError, OSError) as error:
            noticed += 1
            assert len(str(error).splitlines()) == 1 and len(str(error)) < 1000 and str(inspected) in str(error)
    assert noticed


def test_the_page_about_it(folder, tmp_path):
    shutil.copytree(folder / "run", tmp_path / "runs" / "mine")
    shown, python = follow(ROOT / "docs" / "inspect.md", tmp_path)
    assert "vocabulary: 28 characters" in shown and python == "polyarr run 1120 2\n"
