"""save and load: trees of arrays in one safetensors file, round trips, and errors in one line."""

import json
import math
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import polyarr as pa
from polyarr import nn, optim, tree
from polyarr.core.backend import Backend
from polyarr.core.errors import DtypeError, ShapeError
from polyarr.core.spec import DTYPES
from polyarr.saving.tensor_file import source_of, write_arrays

safetensors = pytest.importorskip("safetensors.numpy")


def test_a_tree_comes_back(backend: Backend, tmp_path: Path) -> None:
    x = pa.asarray([[1.5, -2.0], [0.0, 4.0]]).T
    saved = {
        "arrays": [x, (pa.zeros((0, 3)), pa.asarray(7))],
        "numbers": (1, 2.5, -0.0, True, None, 2**70, float("-inf")),
        3: {"text": 'ä\n"', "empty": {}, "none": [], "unit": ()},
        "dotted.name": pa.asarray(1.0),
    }
    pa.save(tmp_path / "tree.safetensors", saved)
    found = pa.load(str(tmp_path / "tree.safetensors"))
    assert repr(tree.map(lambda a: a, found)) == repr(saved)
    assert [*found] == [*saved] and math.copysign(1, found["numbers"][2]) == -1
    assert found["arrays"][0].device == backend.name and found["arrays"][1][1].dtype == pa.int64
    with pa.use_backend("numpy"):
        path = tmp_path / "tree.safetensors"
        there, here = pa.load(path, device=backend), pa.load(path)
    assert there["arrays"][0].device == backend.name and here["arrays"][0].device == "numpy"


@pytest.mark.parametrize("dtype", [d.name for d in DTYPES if d != pa.complex128])  # which the format lacks
def test_every_dtype_comes_back_bit_by_bit(on_numpy: Backend, tmp_path: Path, dtype: str) -> None:
    x = pa.asarray(np.arange(256, dtype=np.uint8)).astype("bool") if dtype == "bool" else pa.arange(100).astype(dtype)
    pa.save(tmp_path / "x", x)
    found = pa.load(tmp_path / "x")
    assert found.dtype == x.dtype and found.numpy().tobytes() == x.numpy().tobytes()


def test_another_program_reads_the_file_and_writes_one(on_numpy: Backend, tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    pa.save(tmp_path / "a", {"model": model, "steps": [pa.asarray([1, 2])], "rate": 0.1})
    theirs = safetensors.load_file(tmp_path / "a")
    assert theirs.keys() == {"model.weight", "model.bias", "steps.0"}
    np.testing.assert_array_equal(theirs["model.weight"], model.weight.numpy())
    safetensors.save_file({"w": np.float16([1, 2])}, tmp_path / "b", metadata={"format": "np"})
    found = pa.load(tmp_path / "b")
    assert [*found] == ["w"] and found["w"].dtype == pa.float16 and found["w"].tolist() == [1, 2]


def test_a_model_and_its_optimiser_go_on(on_numpy: Backend, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 4, activation="gelu"), nn.Linear(4, 1))
    optimizer = optim.AdamW(lr=0.1)
    step = pa.value_and_grad(lambda m: pa.mean(m(pa.ones((3, 2))) ** 2))
    model, state = optimizer.update(step(model)[1], optimizer.init(model), model)
    pa.save(tmp_path / "run", {"model": model, "state": state})
    found = pa.load(tmp_path / "run")
    again = nn.Sequential(nn.Linear(2, 4, activation="gelu"), nn.Linear(4, 1)).load_parameters(found["model"])
    ends = [optimizer.update(step(m)[1], s, m)[0] for m, s in ((model, state), (again, found["state"]))]
    for a, b in zip(*map(tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_names_never_collide(on_numpy: Backend, tmp_path: Path) -> None:
    saved = {"a.b": pa.asarray(1), "a": {"b": pa.asarray(2)}, "__metadata__": pa.asarray(3), "\ud800": pa.asarray(4)}
    pa.save(tmp_path / "x", saved)
    assert repr(pa.load(tmp_path / "x")) == repr(saved)


def test_what_comes_back_as_something_plainer(on_numpy: Backend, tmp_path: Path) -> None:
    pair = namedtuple("pair", "x y")
    pa.save(tmp_path / "x", [pair(np.float32(1.5), np.arange(4, dtype=">f4").reshape(2, 2).T)])
    ((x, y),) = pa.load(tmp_path / "x")
    assert x == 1.5 and y.dtype == pa.float32 and y.tolist() == [[0, 2], [1, 3]]


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.pt", "x.PTH", "x.h5", "x.pkl"])
def test_a_name_of_another_format_is_refused(name: str, on_numpy: Backend, tmp_path: Path) -> None:
    said = rf"^save: path ends in '{name}'; a safetensors file is written, so name it x\.safetensors$"
    with pytest.raises(ValueError, match=said):
        pa.save(tmp_path / name, {"x": pa.ones(2)})
    assert not [*tmp_path.iterdir()]
    pa.save(tmp_path / "x.v2", {"x": pa.ones(2)})


def test_what_cannot_be_saved_leaves_the_old_file(on_numpy: Backend, tmp_path: Path) -> None:
    path, circle = tmp_path / "x", []
    circle.append(circle)
    pa.save(path, {"kept": 1})
    for bad, error, message in (
        ({"a": [1, object()]}, TypeError, r"^save: a\.1 is a object; leaves must be arrays, numbers, strings or None$"),
        (len, TypeError, "^save: tree is a builtin_function_or_method; leaves must"),
        ({1.5: 1}, TypeError, r"^save: a key is 1\.5, a float; keys must be strings or ints$"),
        ({"z": np.ones(2, complex)}, DtypeError, "^save: z is of complex128; the format has bool"),
        (circle, ValueError, "^save: tree is nested too deeply, or holds itself"),
    ):
        with pytest.raises(error, match=message):
            pa.save(path, bad)
    with pytest.raises(TypeError, match=r"^save: path is float32\[2\]; it must be a str or a pathlib\.Path, and"):
        pa.save(pa.ones(2), "file")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pa.save(tmp_path / "nowhere" / "x", {})
    assert pa.load(path) == {"kept": 1} and [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("data", "metadata"),
    [
        (b"", None),
        (b"no safetensors file at all", None),
        (b"PK\x03\x04" + bytes(20), None),
        (None, "{"),
        (None, '{"array": "missing"}'),
        (None, '{"dict": 5}'),
        (None, '{"set": []}'),
        (None, "[" * 100_000),
    ],
)
def test_damaged_files(on_numpy: Backend, tmp_path: Path, data: bytes | None, metadata: str | None) -> None:
    path = tmp_path / "x"
    path.write_bytes(safetensors.save({}, metadata={"polyarr.tree": metadata}) if data is None else data)
    with pytest.raises(ValueError, match=r"^load: .*x is damaged or no safetensors file: .") as found:
        pa.load(path)
    assert "\n" not in str(found.value)


def test_files_of_numpy_are_named(on_numpy: Backend, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones(3))
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"x.npz is .*: it is a zip archive; numpy.load reads an .npz file, torch"):
        pa.load(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"x.npy is .*: it is an .npy file; read it with numpy.load$"):
        pa.load(tmp_path / "x.npy")


def test_what_cannot_be_loaded(on_numpy: Backend, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pa.load(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError):
        pa.load(tmp_path)
    with pytest.raises(TypeError, match=r"^load: path is None; it must be a str"):
        pa.load(None)
    pa.save(tmp_path / "w", pa.ones(2))
    with pytest.raises(TypeError, match=r"^a backend is given by name or as a Backend, not as 3$"):
        pa.load(tmp_path / "w", device=3)  # type: ignore[arg-type]
    header = b'{"w":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(DtypeError, match=r"x: w is of F8_E4M3; polyarr has bool"):
        pa.load(tmp_path / "x")


@pytest.mark.parametrize(("code", "end", "error"), [("F32", 5, ValueError), ("F\n\x1b[31m" * 99, 4, DtypeError)])
def test_what_a_file_says_cannot_write_to_the_terminal(
    on_numpy: Backend, tmp_path: Path, code: str, end: int, error: type
) -> None:
    header = json.dumps({"w\n\x1b[31m": {"dtype": code, "shape": [1], "data_offsets": [0, end]}}).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + bytes(end))
    with pytest.raises(error, match=r"^load: .*x.*: w \\x1b\[31m ") as found:
        pa.load(tmp_path / "x")
    assert str(found.value).isprintable() and len(str(found.value)) < 600


def test_parameters_of_a_tree_must_fit(on_numpy: Backend) -> None:
    with pytest.raises(ValueError, match=r"missing layers\.0\.weight, layers\.0\.bias; unknown 1\.weight"):
        nn.Sequential(nn.Linear(2, 3)).load_parameters({1: {"weight": pa.ones((3, 2))}})
    with pytest.raises(ShapeError, match="weight is"):
        nn.Linear(2, 3).load_parameters({"weight": pa.ones((2, 2)), "bias": pa.ones(3)})


def test_files_are_the_librarys_to_the_byte(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "b": rng.standard_normal((3, 5)).astype(np.float32), "a": np.arange(7),
        "narrow": np.array([1.5, 2.5], pa.bfloat16), "turned": rng.standard_normal((4, 3)).T,
        "flag": np.array([True, False, True]), "none": np.zeros((0, 2)), "naïve 🦊": np.array(2.5),
    }  # fmt: skip
    write_arrays(tmp_path / "ours", {name: source_of(a) for name, a in arrays.items()}, {"format": "pt"})
    theirs = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
    assert (tmp_path / "ours").read_bytes() == safetensors.save(theirs, metadata={"format": "pt"})
