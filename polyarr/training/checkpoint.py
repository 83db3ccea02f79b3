"""Checkpoints: one safetensors file each, with everything that is no array as JSON in its metadata, and a checksum."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation, tree
from polyarr.core.array import Array
from polyarr.core.spec import Spec
from polyarr.distributed import World
from polyarr.extras import extra
from polyarr.models.decoder import LanguageModel
from polyarr.models.families import new_model
from polyarr.nn import shapes_only
from polyarr.optim import AdamW, LossScale
from polyarr.saving import Source, source_of, sync_folder, write_arrays
from polyarr.schema import check_json, in_one_line, parsed_json
from polyarr.text import Tokenizer, tokenizer_from_dict
from polyarr.training.files import checkpoints, kept_steps, name_at, path_of
from polyarr.training.ranks import ALONE, Content, given
from polyarr.training.recipes import Recipe

FORMAT = "2"
MAX_INFO = 45_000_000  # bytes: safetensors reads headers of 100 MB, in which quotes and backslashes take two
SCHEMA = Path(__file__).with_name("checkpoint.schema.json")
# What grows with the run is kept in tables of float64, which are checked at once however long they are.
TABLES = {"history": ("step", "train", "val", "seconds"), "curve": ("step", "loss")}
_MODEL, _STATE = "model.", "optimizer."
_LARGEST = 3.5e38  # a loss is a float32
_MOST_ROWS = 10_000_000  # of a table that is looked at by itself


class CheckpointError(ValueError):
    """A checkpoint that is damaged, of another format, or beside one of another run."""


class NotFiniteError(ValueError):
    """A checkpoint that would hold nan or inf, and so could not be loaded."""


class Checkpoint(NamedTuple):
    """What is saved.

    state  the optimiser's; of a model that was not trained yet, the step alone, 0
    info  what checkpoint.schema.json describes but for the tokenizer: the run, its recipe, the seed, the step; and
          history, a list of dicts, and curve, a list of tuples, both as TABLES has them
    """

    model: LanguageModel
    tokenizer: Tokenizer
    state: dict[str, Any]
    info: dict[str, Any]


# ---- saving --------------------------------------------------------------------------------------------------


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Save as "best", "last" or name_at of a step. A crash at any moment leaves the one before, or this one.

    A checkpoint of another run that lies beside it is removed, so that a folder never holds parts of two.

    Errors:  OSError if the folder cannot be written to; ValueError if info is not as the schema has it; NotFiniteError
    """
    info = check(checkpoint)
    text, arrays = json.dumps(info), _arrays(checkpoint)
    metadata = {"format": FORMAT, "info": text, "checksum": _checksum(text, arrays)}
    target, others = path_of(folder, name), lambda: _remove_others(folder, name, info["run"])
    write_arrays(target, arrays, metadata, first=others)


def remove_ahead(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps, of a run that went back to this one."""
    for found in kept_steps(folder):
        if found > step:
            path_of(folder, name_at(found)).unlink()


def remove_old(folder: Path, keep: int) -> None:
    """Remove the checkpoints of steps but for the newest; "last" is the only one of a run that keeps one."""
    steps = kept_steps(folder)
    for found in steps[: max(len(steps) - keep, 0)] if keep > 1 else steps:
        path_of(folder, name_at(found)).unlink()


def check(checkpoint: Checkpoint) -> dict[str, Any]:
    """The info that is saved as JSON, with lists for tuples.

    Errors:  ValueError if it is not as the schema, or the recipe, has it
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
    """What to write of an array, which raises NotFiniteError when it is read and holds what could not be loaded."""

    def read() -> np.ndarray:
        host = a.numpy()
        if not np.isfinite(host).all():
            raise NotFiniteError(f"{name} holds nan or inf")
        return host

    return Source(a.spec, read)


def _remove_others(folder: Path, name: str, run: str) -> None:
    for path in _others(folder, name):
        if _is_of_another_run(path, run):
            path.unlink()
            sync_folder(folder)


def _checksum(text: str, arrays: Mapping[str, Source | np.ndarray]) -> str:
    """SHA-256 of the JSON text, then of each array's name, dtype, shape and bytes in the order of the names."""
    found = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        source = source_of(array)
        found.update(f"\n{name} {source.spec.dtype} {source.spec.shape}\n".encode())
        found.update(source.data())
    return found.hexdigest()


# ---- loading -------------------------------------------------------------------------------------------------


def load_checkpoint(folder: Path, name: str = "best", world: World = ALONE) -> Checkpoint:
    """The checkpoint of a name, on the current backend.

    world  the processes that all want it; the first one reads it

    Errors:  OSError if it cannot be read; CheckpointError if it is damaged, or beside one of another run
    """
    path = path_of(folder, name)
    info, arrays = given(world, partial(_content, folder, name))
    with _damage(path):
        return _restored(info, arrays)


def _content(folder: Path, name: str) -> Content:
    """The info and the arrays of a checkpoint that is whole, and not beside one of another run."""
    path = path_of(folder, name)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    if not path.is_file():
        others = f"; there is {', '.join(checkpoints(folder))}" if checkpoints(folder) else ""
        raise FileNotFoundError(f"{folder}: no checkpoint {name!r} here ({path.name} is missing{others})")
    with _damage(path):
        found = _read(path)
    for other in _others(folder, name):
        if _is_of_another_run(other, found[0]["run"]):
            raise CheckpointError(
                f"{folder}: {path.name} and {other.name} belong to two runs; remove the one that is not wanted"
            )
    return found


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Names the file in errors of what is in it."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (ValueError, extra("safetensors").SafetensorError) as error:
        raise CheckpointError(f"{path}: damaged checkpoint: {in_one_line(error)}") from error


def _read(path: Path) -> Content:
    """The info and the arrays of a file whose checksum agrees."""
    with extra("safetensors").safe_open(path, framework="numpy") as file:
        metadata = _metadata(file)
        for name in file.keys():
            found, wanted = file.get_slice(name).get_dtype(), "F64" if name in TABLES else "F32"
            if found != wanted:
                raise ValueError(f"{name} is of dtype {found}; it must be {wanted}")
        arrays = {name: file.get_tensor(name) for name in file.keys()}
    if _checksum(metadata["info"], arrays) != metadata["checksum"]:
        raise ValueError("its checksum does not agree with its content")
    info = parsed_json(metadata["info"], SCHEMA)
    _check_steps(info)
    return info, arrays


def read_info(path: Path) -> dict[str, Any]:
    """What a checkpoint's file says of its run: info and tokenizer, without its weights or a look at the checksum.

    Errors:  OSError if it cannot be read; ValueError if it is damaged, or no checkpoint
    """
    try:
        with extra("safetensors").safe_open(path, framework="numpy") as file:
            info = parsed_json(_metadata(file)["info"], SCHEMA)
            tables = {name: _table(file, name) for name in TABLES}
    except extra("safetensors").SafetensorError as error:
        raise ValueError(in_one_line(error)) from error
    history, curve = (_rows(name, tables[name], info["step"]) for name in TABLES)
    return info | {"history": [dict(zip(TABLES["history"], row, strict=True)) for row in history], "curve": curve}


def _table(file: Any, name: str) -> np.ndarray:
    found = file.get_slice(name)
    shape, dtype = found.get_shape(), found.get_dtype()
    if len(shape) != 2 or shape[1] != len(TABLES[name]) or dtype != "F64" or shape[0] > _MOST_ROWS:
        raise ValueError(f"{name} is {dtype}{shape}; it must be F64[N, {len(TABLES[name])}]")
    return file.get_tensor(name)


def _metadata(file: Any) -> dict[str, str]:
    found = file.metadata() or {}
    if "optimizer_step" in found:
        raise CheckpointError("a checkpoint of an earlier polyarr, in two files; train again, with --overwrite")
    if found.keys() != {"format", "info", "checksum"}:
        raise CheckpointError("no checkpoint: its metadata is not the format, info and checksum of one")
    if found["format"] != FORMAT:
        raise CheckpointError(f"a checkpoint of format {in_one_line(found['format'])}; this polyarr reads {FORMAT}")
    return found


def _check_steps(info: dict[str, Any]) -> None:
    steps = Recipe.from_dict(info["recipe"]).steps
    if info["step"] > steps:
        raise ValueError(f"step: {info['step']} is more than the {steps} steps of the recipe")


def _restored(info: dict[str, Any], arrays: dict[str, np.ndarray]) -> Checkpoint:
    tokenizer = tokenizer_from_dict(info.pop("tokenizer"))
    recipe = Recipe.from_dict(info["recipe"])
    with shapes_only():
        model = recipe.adapted(new_model(recipe.config(tokenizer.vocab_size)))
    parameters, trained = model.named_parameters(), model.named_parameters(only_trainable=True)
    names = _kept(recipe, trained) if info["step"] or any(n.startswith(_STATE) for n in arrays) else {}
    _check_arrays(parameters, names, arrays)
    # Each goes when it is where it belongs, so that there is one at a time that is there twice.
    model.load_parameters({name: creation.asarray(arrays.pop(_MODEL + name)) for name in parameters})
    state = {
        kept: {name: creation.asarray(arrays.pop(f"{_STATE}{kept}.{name}")) for name in members}
        for kept, members in names.items()
    }
    history, curve = (_rows(name, arrays[name], info["step"]) for name in TABLES)
    info["history"] = [dict(zip(TABLES["history"], row, strict=True)) for row in history]
    info["curve"] = curve
    return Checkpoint(model, tokenizer, {"step": info["step"], **state}, info)


def _kept(recipe: Recipe, parameters: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the optimiser keeps, as Specs by name: moments of what is trained, and what a loss scale is made of."""
    scale = dict.fromkeys(LossScale.kept, Spec((), np.float32)) if recipe.optimizer().loss_scale else {}
    return {**dict.fromkeys(AdamW.moments, parameters), **({"loss_scale": scale} if scale else {})}


def _check_arrays(
    parameters: dict[str, Any], kept: dict[str, dict[str, Any]], arrays: dict[str, np.ndarray]
) -> None:
    """Raise ValueError unless parameters, what the optimiser keeps, and tables are there, and are right.

    That is, in shape, and with finite numbers.
    """
    groups = {_MODEL: parameters, **{f"{_STATE}{moment}.": specs for moment, specs in kept.items()}}
    shapes = {prefix + name: spec.shape for prefix, specs in groups.items() for name, spec in specs.items()}
    shapes |= {name: (*arrays[name].shape[:1], len(TABLES[name])) for name in TABLES if name in arrays}
    wanted = {*shapes, *TABLES}
    for wrong, names in (("missing", wanted - arrays.keys()), ("unknown", arrays.keys() - wanted)):
        if names:
            raise ValueError(f"{len(names)} arrays are {wrong}, {min(names)} among them")
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape:
            raise ValueError(f"{name} is {Spec(array.shape, array.dtype)}; its shape must be {list(shape)}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds numbers that are not finite")


def _rows(name: str, table: np.ndarray, step: int) -> list[tuple]:
    """The rows of a table, whose first column is a step."""
    steps = table[:, 0]
    if np.any(np.abs(table) > _LARGEST):
        raise ValueError(f"{name} holds numbers that are no loss")
    if np.any(np.diff(steps, prepend=0, append=step) < 0) or np.any(steps != np.trunc(steps)):
        raise ValueError(f"{name}: its steps must be integers that rise from 0 to {step}, the checkpoint's step")
    return [(int(row[0]), *row[1:]) for row in table.tolist()]


def _others(folder: Path, name: str) -> list[Path]:
    return [path_of(folder, other) for other in checkpoints(folder) if other != name]


def _is_of_another_run(path: Path, run: str) -> bool:
    """Whether a whole checkpoint of another run is there; one that is missing or damaged is of none."""
    if not path.is_file():
        return False
    try:
        with extra("safetensors").safe_open(path, framework="numpy") as file:
            same = json.loads(_metadata(file)["info"])["run"] == run  # the rest is read only if it differs
        return not same and _read(path)[0]["run"] != run
    except (OSError, ValueError, TypeError, KeyError, RecursionError, extra("safetensors").SafetensorError):
        return False
