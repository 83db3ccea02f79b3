"""Checkpoints: arrays in safetensors, everything else in JSON beside them. Written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation, tree
from polyarr.models.gpt import GPTConfig, GPTModel
from polyarr.nn import shapes_only
from polyarr.text import CharTokenizer
from polyarr.training.extras import extra

FORMAT = 1
_MODEL, _STATE = "model.", "optimizer."


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or of another format."""


class Checkpoint(NamedTuple):
    """What is saved.

    info  whatever JSON can hold: the recipe, the seed, the step, the losses so far
    """

    model: GPTModel
    tokenizer: CharTokenizer
    state: dict[str, Any]
    info: dict[str, Any]


def paths(folder: Path, name: str) -> tuple[Path, Path]:
    """The two files of a checkpoint."""
    return folder / f"{name}.safetensors", folder / f"{name}.json"


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Save under a name, such as "best".

    Errors:  OSError if the folder cannot be written to
    """
    tensors, described = paths(folder, name)
    numpy_format = extra("safetensors.numpy")
    step, state = checkpoint.state["step"], {k: v for k, v in checkpoint.state.items() if k != "step"}
    arrays = {_MODEL + path: p.numpy() for path, p in checkpoint.model.state_dict().items()}
    arrays |= {_STATE + ".".join(map(str, path)): a.numpy() for path, a in tree.items(state)}
    info = {
        "format": FORMAT,
        "config": vars(checkpoint.model.config),
        "tokenizer": checkpoint.tokenizer.to_dict(),
        "optimizer_step": step,
        **checkpoint.info,
    }
    _write(tensors, numpy_format.save(arrays, metadata={"optimizer_step": str(step)}))
    _write(described, json.dumps(info, indent=1).encode())


def _write(path: Path, data: bytes) -> None:
    """Through a temporary file, so that a crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(folder: Path, name: str = "best") -> Checkpoint:
    """The checkpoint of a name, on the current backend.

    Errors:  OSError if it cannot be read; CheckpointError if it is damaged
    """
    tensors, described = paths(folder, name)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    for path in (tensors, described):
        if not path.is_file():
            raise FileNotFoundError(f"{folder}: no checkpoint {name!r} here ({path.name} is missing)")
    info, arrays, step = _read_json(described), *_read_arrays(tensors)
    if info.get("format") != FORMAT:
        raise CheckpointError(f"{described}: format {info.get('format')}; this polyarr reads format {FORMAT}")
    if info.get("optimizer_step") != step:
        raise CheckpointError(f"{folder}: {tensors.name} and {described.name} belong to different steps")
    try:
        return _restored(info, arrays, step)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = error.args[0] if error.args else type(error).__name__
        raise CheckpointError(f"{folder}: damaged checkpoint {name!r}: {reason}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        info = json.loads(path.read_bytes())
    except ValueError as error:  # of UTF-8 or of JSON
        raise CheckpointError(f"{path}: damaged checkpoint: {error}") from error
    if not isinstance(info, dict):
        raise CheckpointError(f"{path}: damaged checkpoint: it holds no JSON object")
    return info


def _read_arrays(path: Path) -> tuple[dict[str, np.ndarray], int]:
    safetensors = extra("safetensors")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            step = int((file.metadata() or {})["optimizer_step"])
            return {name: file.get_tensor(name) for name in file.keys()}, step
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged checkpoint: {error}") from error


def _restored(info: dict[str, Any], arrays: dict[str, np.ndarray], step: int) -> Checkpoint:
    with shapes_only():
        model = GPTModel(GPTConfig.of(info["config"]))
    model.load_parameters(_under(_MODEL, arrays))
    state: dict[str, Any] = {"step": step}
    for path, array in _under(_STATE, arrays).items():
        moment, _, parameter = path.partition(".")
        state.setdefault(moment, {})[parameter] = creation.asarray(array)
    tokenizer = CharTokenizer.from_dict(info["tokenizer"])
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ValueError(f"{tokenizer.vocab_size} characters for a vocabulary of {model.config.vocab_size}")
    return Checkpoint(model, tokenizer, state, info)


def _under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
