"""Checkpoints: one safetensors file each, with everything but arrays as JSON in its metadata, and a checksum."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation, tree
from polyarr.atomic import sync_folder
from polyarr.core.array import Array
from polyarr.core.spec import Spec, float32, float64
from polyarr.distributed import World
from polyarr.models.decoder import LanguageModel
from polyarr.models.families import new_model
from polyarr.models.folders import hint_of_others
from polyarr.models.pretrained import largest_first
from polyarr.nn import shapes_only
from polyarr.nn.quantized import with_codes
from polyarr.optim import LossScale
from polyarr.saving.tensor_file import Source, TensorFile, finite, source_of, write_arrays
from polyarr.schema import check_json, in_one_line, parsed_json
from polyarr.text import Tokenizer, tokenizer_from_dict
from polyarr.training.files import checkpoints, kept_steps, name_at, path_of
from polyarr.training.ranks import ALONE, Content, broadcast_content
from polyarr.training.recipes import Recipe

FORMAT = "2"
MAX_INFO = 45_000_000  # bytes: safetensors reads headers of 100 MB, in which quotes and backslashes take two
SCHEMA = Path(__file__).with_name("checkpoint.schema.json")
# Columns of the tables of float64 that grow with the run; arrays of any length are checked at once, unlike JSON.
TABLES = {"history": ("step", "train", "val", "seconds"), "curve": ("step", "loss")}
_MODEL, _STATE = "model.", "optimizer."
_CODES, _SCALE = ".codes", ".scale"  # suffixes of the arrays of a quantized layer
_WEIGHTS = ("F32", "F16", "BF16")  # dtypes that a model may have
_OF_CODES = {_CODES: ("I8", "U8"), _SCALE: ("F16", "F32")}  # likewise of quantized layers
_MAX_LOSS = 3.5e38  # just above the largest float32, which a loss is
MAX_ROWS = 1_000_000  # rows of a table, which take seconds and hundreds of MB to read


class CheckpointError(ValueError):
    """Error for a checkpoint that is damaged, has another format, or lies beside one of another run."""


class NotFiniteError(ValueError):
    """Error for a checkpoint that would hold nan or inf, and could therefore not be loaded."""


class Checkpoint(NamedTuple):
    """Content of a checkpoint.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        state: State of the optimizer; for a model that was not trained yet, only the step, 0.
        info: Data that checkpoint.schema.json describes, without the tokenizer: the run, its recipe, the seed and the
            step, and also `history`, a list of dicts with step, train, val and seconds, and `curve`, a list of (step,
            loss).
    """

    model: LanguageModel
    tokenizer: Tokenizer
    state: dict[str, Any]
    info: dict[str, Any]


# ---- saving --------------------------------------------------------------------------------------------------


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Save a checkpoint as a file in a folder; a crash at any moment leaves either the previous file or the new one.

    A checkpoint of another run in the folder is removed, so that a folder never has files of two runs.

    Args:
        folder: Folder of the run.
        name: "best", "last", or "step-N" for step N.
        checkpoint: The checkpoint.

    Raises:
        OSError: The folder cannot be written to.
        ValueError: `checkpoint.info` does not match its schema.
        NotFiniteError: An array holds nan or inf.
    """
    info = check(checkpoint)
    text, arrays = json.dumps(info), _arrays(checkpoint)
    metadata = {"format": FORMAT, "info": text, "checksum": _checksum(text, arrays)}
    target, others = path_of(folder, name), lambda: _remove_others(folder, name, info["run"])
    write_arrays(target, arrays, metadata, first=others)


def thin_out(rows: list[Any], is_kept: Callable[[Any], bool] = lambda row: False) -> None:
    """Drop every second row of the older half of a table above MAX_ROWS rows, unless `is_kept` returns True for it."""
    half = MAX_ROWS // 2
    if len(rows) > MAX_ROWS:
        rows[:half] = [row for i, row in enumerate(rows[:half]) if i % 2 or is_kept(row)]


def remove_ahead(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps, which a run that went back to this step left."""
    for found in kept_steps(folder):
        if found > step:
            path_of(folder, name_at(found)).unlink()


def remove_old(folder: Path, keep: int) -> None:
    """Remove the checkpoints of single steps except for the `keep` newest; with keep=1 only "last" stays."""
    steps = kept_steps(folder)
    for found in steps[: max(len(steps) - keep, 0)] if keep > 1 else steps:
        path_of(folder, name_at(found)).unlink()


def check(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the info of a checkpoint as it is saved in JSON, with lists for tuples.

    Raises:
        ValueError: The info does not match its schema or the recipe, or is too long.
    """
    info = {key: value for key, value in checkpoint.info.items() if key not in TABLES}
    text = json.dumps({**info, "tokenizer": checkpoint.tokenizer.to_dict()})
    if len(text) > MAX_INFO:
        raise ValueError(f"a checkpoint would hold {len(text):,} bytes of JSON, its tokenizer first; {MAX_INFO:,} fit")
    info = json.loads(text)
    check_json(info, SCHEMA)
    _check_steps(info)
    return info


def _arrays(checkpoint: Checkpoint) -> dict[str, Source]:
    model, _, state, info = checkpoint
    kept = {name: value for name, value in state.items() if name != "step"}
    arrays = {_MODEL + path: p for path, p in model.state_dict().items()}
    arrays |= {_STATE + ".".join(map(str, path)): a for path, a in tree.items(kept)}
    rows = {"history": [tuple(row.values()) for row in info["history"]], "curve": info["curve"]}
    return {name: _finite(name, a) for name, a in arrays.items()} | {
        name: source_of(np.array(rows[name], np.float64).reshape(-1, len(columns)))
        for name, columns in TABLES.items()
    }


def _finite(name: str, a: Array) -> Source:
    """Return the source of an array, which raises NotFiniteError when it is read and holds nan or inf."""
    spec, read_any = source_of(a)

    def read() -> np.ndarray:
        try:
            return finite(name, read_any(), spec.dtype)
        except ValueError:
            raise NotFiniteError(f"{name} holds nan or inf") from None

    return Source(spec, read)


def _remove_others(folder: Path, name: str, run: str) -> None:
    for path in _others(folder, name):
        if _is_of_another_run(path, run):
            path.unlink()
            sync_folder(folder)


def _checksum(text: str, arrays: Mapping[str, Source | np.ndarray]) -> str:
    """Return SHA-256 of the JSON text, then of each array's name, dtype, shape and bytes in the order of the names."""
    found = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        source = source_of(array)
        found.update(f"\n{name} {source.spec.dtype} {source.spec.shape}\n".encode())
        for piece in source.pieces(name):
            found.update(piece)
    return found.hexdigest()


# ---- loading -------------------------------------------------------------------------------------------------


def load_checkpoint(
    folder: str | os.PathLike[str], name: str = "best", world: World = ALONE, *, dtype: Any = None
) -> Checkpoint:
    """Load a checkpoint, with its arrays on the current backend.

    The file is read twice: first its checksum is verified, then its arrays are uploaded one by one.

    Args:
        folder: The folder of a run.
        name: "best", "last", or "step-N" for step N.
        world: The processes that load it together; the first one reads the file.
        dtype: Dtype of the model's parameters; None: the file's. Adapters beside 16-bit weights are float32.

    Returns:
        The checkpoint.

    Raises:
        OSError: The file cannot be read.
        CheckpointError: The file is damaged, or lies beside one of another run, or has numbers that are not finite in
            `dtype`.
    """
    path = path_of(Path(folder), name)
    info, arrays = broadcast_content(world, partial(_content, path.parent, name))
    with _errors_with_path(path):
        return _restored(info, arrays, dtype)


def _name_of(file: Path) -> str:
    """Return a hint for an error about a file in place of a folder: which checkpoint of its folder it is, or ""."""
    is_checkpoint = file.stem in checkpoints(file.parent) and file == path_of(file.parent, file.stem)
    return f", here {file.parent}, and the checkpoint's name, {file.stem}" if is_checkpoint else ""


def _runs_inside(folder: Path) -> str:
    """Return a hint for an error about a folder without checkpoints: the subfolders with some, up to 5, or ""."""
    runs = [str(inside) for inside in sorted(folder.iterdir()) if inside.is_dir() and checkpoints(inside)]
    more = ", ..." if len(runs) > 5 else ""
    return f"; runs in it: {', '.join(runs[:5])}{more}" if runs else ""


def _content(folder: Path, name: str) -> Content:
    """Return the info and the arrays of a checkpoint, which must be intact and not lie beside one of another run."""
    path = path_of(folder, name)
    if folder.is_file():
        raise NotADirectoryError(f"{folder}: a file; give the folder of a run{_name_of(folder)}")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    if not path.is_file():
        names = ", ".join(checkpoints(folder))
        others, hint = (f"; there is {names}", "") if names else ("", hint_of_others(folder) or _runs_inside(folder))
        raise FileNotFoundError(f"{folder}: no checkpoint {name!r} here ({path.name} is missing{others}){hint}")
    with _errors_with_path(path):
        found = _read(path)
    for other in _others(folder, name):
        if _is_of_another_run(other, found[0]["run"]):
            raise CheckpointError(
                f"{folder}: {path.name} and {other.name} belong to two runs; remove the one that is not wanted"
            )
    return found


@contextlib.contextmanager
def _errors_with_path(path: Path) -> Iterator[None]:
    """Add the path of the file to errors about its content."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged checkpoint: {in_one_line(error)}") from error


def _read(path: Path) -> Content:
    """Return the info and the arrays of a file whose checksum matches."""
    file = TensorFile(path)
    metadata = _metadata(file)
    _check_dtypes(file)
    for name in TABLES.keys() & file.entries.keys():
        _check_table(file, name)
    arrays = {name: file.source(name) for name in file.entries}
    if _checksum(metadata["info"], arrays) != metadata["checksum"]:
        raise ValueError("its checksum does not agree with its content")
    info = parsed_json(metadata["info"], SCHEMA)
    _check_steps(info)
    return info, arrays


def _check_dtypes(file: TensorFile) -> None:
    """Raise ValueError unless the weights have one floating-point dtype, the optimizer float32, and tables float64."""
    own = next((file.entries[name].code for name in _weights(file.entries)), "F32")
    weights = (own,) if own in _WEIGHTS else _WEIGHTS
    quantized = _quantized(file.entries)
    for name, entry in file.entries.items():
        path, suffix = name[: -len(_CODES)], name[-len(_CODES) :]
        of_model = _OF_CODES[suffix] if path in quantized and suffix in _OF_CODES else weights
        wanted = ("F64",) if name in TABLES else of_model if name.startswith(_MODEL) else ("F32",)
        if entry.code not in wanted:
            raise ValueError(f"{name} is of dtype {entry.code}; it must be {' or '.join(wanted)}")


def _quantized(names: Iterable[str]) -> set[str]:
    """Return the paths of the quantized layers among the names of arrays."""
    return {name.removesuffix(_CODES) for name in names if name.startswith(_MODEL) and name.endswith(_CODES)}


def _weights(names: Iterable[str]) -> list[str]:
    """Return the names of the model's arrays, without codes and their scales."""
    coded = {path + suffix for path in _quantized(names) for suffix in _OF_CODES}
    return [name for name in names if name.startswith(_MODEL) and name not in coded]


def read_info(path: Path) -> dict[str, Any]:
    """Return the info of a checkpoint, with its tokenizer, without reading its weights or verifying the checksum.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged, or is not a checkpoint.
    """
    file = TensorFile(path)
    info = parsed_json(_metadata(file)["info"], SCHEMA)
    tables = {name: _table(file, name) for name in TABLES}
    history, curve = (_rows(name, tables[name], info["step"]) for name in TABLES)
    return info | {"history": [dict(zip(TABLES["history"], row, strict=True)) for row in history], "curve": curve}


def _table(file: TensorFile, name: str) -> np.ndarray:
    if name not in file.entries:
        raise ValueError(f"{name} is missing")
    _check_table(file, name)
    return file.array(name)


def _check_table(file: TensorFile, name: str) -> None:
    code, shape = file.entries[name][:2]
    if len(shape) != 2 or shape[1] != len(TABLES[name]) or code != "F64" or shape[0] > MAX_ROWS:
        wanted = f"[N, {len(TABLES[name])}], of F64, with N up to {MAX_ROWS:,}"
        raise ValueError(f"{name} is {code}{list(shape)}; its shape must be {wanted}")


def _metadata(file: TensorFile) -> dict[str, str]:
    found = file.metadata
    if found.keys() != {"format", "info", "checksum"}:
        raise CheckpointError("no checkpoint: its metadata is not the format, info and checksum of one")
    if found["format"] != FORMAT:
        raise CheckpointError(f"a checkpoint of format {in_one_line(found['format'])}; this polyarr reads {FORMAT}")
    return found


def _check_steps(info: dict[str, Any]) -> None:
    steps = Recipe.from_dict(info["recipe"]).steps
    if info["step"] > steps:
        raise ValueError(f"step: {info['step']} is more than the {steps} steps of the recipe")


def _restored(info: dict[str, Any], arrays: dict[str, Source], dtype: Any) -> Checkpoint:
    tokenizer = tokenizer_from_dict(info.pop("tokenizer"))
    recipe = Recipe.from_dict(info["recipe"])
    dtype = dtype or next((arrays[name].spec.dtype for name in _weights(arrays)), float32)
    with shapes_only():
        plain = new_model(recipe.config(tokenizer.vocab_size)).astype(dtype)
        model = recipe.adapted(with_codes(plain, _specs_of_codes(arrays)))
    parameters, trained = model.named_parameters(), model.named_parameters(only_trainable=True)
    names = _state_specs(recipe, trained) if info["step"] or any(n.startswith(_STATE) for n in arrays) else {}
    _check_arrays(parameters, names, arrays)

    def read(name: str, dtype: np.dtype) -> np.ndarray:
        return finite(name, arrays[name].read(), dtype)

    model.load_parameters(largest_first(model, lambda name, dtype: read(_MODEL + name, dtype)))
    state = {
        kept: {name: creation.asarray(read(f"{_STATE}{kept}.{name}", float32)) for name in members}
        for kept, members in names.items()
    }
    history, curve = (_rows(name, read(name, float64), info["step"]) for name in TABLES)
    info["history"] = [dict(zip(TABLES["history"], row, strict=True)) for row in history]
    info["curve"] = curve
    return Checkpoint(model, tokenizer, {"step": info["step"], **state}, info)


def _specs_of_codes(arrays: Mapping[str, Source]) -> dict[str, tuple[Spec, Spec]]:
    """Return the Specs of codes and scales by the paths of quantized layers, adapted or not."""
    found = {path: (path + _CODES, path + _SCALE) for path in _quantized(arrays)}
    specs = {path: tuple(arrays[name].spec for name in names) for path, names in found.items() if names[1] in arrays}
    return {path.removeprefix(_MODEL).removesuffix(".base"): (codes, scale) for path, (codes, scale) in specs.items()}


def _state_specs(recipe: Recipe, parameters: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the Specs of the optimizer's state by name: the moments of trained parameters, and the loss scale."""
    optimizer = recipe.new_optimizer()
    scale: dict[str, Any] = dict.fromkeys(LossScale.kept, Spec((), np.float32)) if optimizer.loss_scale else {}
    return {**optimizer.kept(parameters), **({"loss_scale": scale} if scale else {})}


def _check_arrays(
    parameters: dict[str, Any], kept: dict[str, dict[str, Any]], arrays: dict[str, Source]
) -> None:
    """Raise ValueError unless all parameters, optimizer state and tables are there and of the right shapes."""
    groups = {_MODEL: parameters, **{f"{_STATE}{moment}.": specs for moment, specs in kept.items()}}
    shapes = {prefix + name: spec.shape for prefix, specs in groups.items() for name, spec in specs.items()}
    shapes |= {name: (*arrays[name].spec.shape[:1], len(TABLES[name])) for name in TABLES if name in arrays}
    wanted = {*shapes, *TABLES}
    for wrong, names in (("missing", wanted - arrays.keys()), ("unknown", arrays.keys() - wanted)):
        if names:
            raise ValueError(f"{len(names)} arrays are {wrong}, {min(names)} among them")
    for name, shape in shapes.items():
        if (spec := arrays[name].spec).shape != shape:
            raise ValueError(f"{name} is {spec}; its shape must be {list(shape)}")


def _rows(name: str, table: np.ndarray, step: int) -> list[tuple]:
    """Return the rows of a table, whose first column is the step."""
    steps = table[:, 0]
    if np.any(np.abs(table) > _MAX_LOSS):
        raise ValueError(f"{name} holds numbers that are no loss")
    if np.any(np.diff(steps, prepend=0, append=step) < 0) or np.any(steps != np.trunc(steps)):
        raise ValueError(f"{name}: its steps must be integers that rise from 0 to {step}, the checkpoint's step")
    return [(int(row[0]), *row[1:]) for row in table.tolist()]


def _others(folder: Path, name: str) -> list[Path]:
    return [path_of(folder, other) for other in checkpoints(folder) if other != name]


def _is_of_another_run(path: Path, run: str) -> bool:
    """Return whether an intact checkpoint of another run is at the path."""
    if not path.is_file():
        return False
    try:
        # The whole file is read, with its checksum, only if the run differs.
        same = json.loads(_metadata(TensorFile(path))["info"])["run"] == run
        return not same and _read(path)[0]["run"] != run
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
