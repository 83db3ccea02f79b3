"""Models in the files of others: Hugging Face folders and safetensors files, read and written."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation
from polyarr.core.array import Array
from polyarr.core.spec import Spec, as_dtype
from polyarr.extras import extra
from polyarr.models.decoder import LanguageModel
from polyarr.models.families import new_model
from polyarr.models.folders import CONFIG, INDEX, PICKLED, WHOLE, hint_of_pickled, read_index, read_json
from polyarr.models.formats import WRITTEN, Format, format_of
from polyarr.nn import merge_lora, shapes_only
from polyarr.saving import Source, write_arrays, write_whole

DTYPES = ("F64", "F32", "F16", "BF16")  # what a weight may be stored in
_SHOWN = 3  # names listed in an error
_LONGEST = 300  # characters of a reason


class Stored(NamedTuple):
    """An array in a file, and what is known of it without reading it."""

    file: Path
    name: str
    shape: list[int]
    dtype: str

    def read(self) -> np.ndarray:
        """Its numbers. The file is open meanwhile only: as long as it is, what was read of it counts as memory."""
        with _opened(self.file) as file:
            return file.get_tensor(self.name)


Tensors = dict[str, Stored]  # by full name


class PretrainedError(ValueError):
    """Files that are damaged, or of a model that polyarr does not have."""


# ---- reading -----------------------------------------------------------------------------------------------------


def load_pretrained(path: str | os.PathLike[str], *, dtype: Any = "float32") -> LanguageModel:
    """The model in a Hugging Face folder, or in a safetensors file beside its config.json; in evaluation mode.

    It may be GPT-2, Llama, Qwen2 or what has their names, such as SmolLM2, in one file or in several with an index; or
    the tutorial's GPT, whose config.json is its dict of settings. Arrays are read and brought to dtype one by one, so
    that there is the model in memory, and the largest array a few times. Nothing is ever unpickled.

    Errors:  OSError if a file cannot be read; PretrainedError for files that are damaged, or that name other arrays or
             settings than polyarr's model has; RuntimeError without the library safetensors
    """
    path, dtype = Path(path), as_dtype(dtype)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such file or folder", str(path))
    with reasons_named("load_pretrained", path):
        settings = read_json((path if path.is_dir() else path.parent) / CONFIG)
        form = format_of(settings)
        with shapes_only():
            model = new_model(form.config_of(settings)).astype(dtype)
        tensors = _prefixed(_tensors(path), form)
        _check(model, form, tensors)
        found = {name: creation.asarray(_read(form, name, tensors), dtype=dtype) for name in model.named_parameters()}
    return model.load_parameters(found).eval()


@contextlib.contextmanager
def reasons_named(op: str, path: Path) -> Iterator[None]:
    """Errors of a file's content in one line, with its path."""
    try:
        yield
    except (ValueError, RecursionError, extra("safetensors").SafetensorError) as error:
        reason = " ".join(str(error).split())
        short = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
        raise PretrainedError(f"{op}: {path}: {short}") from error


def _tensors(path: Path) -> Tensors:
    """The arrays of a file, or of a folder's one file or those of its index."""
    if path.suffix in PICKLED:
        raise ValueError("pickled weights are never read, they could run anything; save them as safetensors")
    whole, index = (path / WHOLE, path / INDEX) if path.is_dir() else (path, None)
    if index is None or whole.exists():
        return held_by(whole)
    if not index.exists():
        raise FileNotFoundError(f"{path}: neither {WHOLE} nor {INDEX} is here{hint_of_pickled(path)}")
    return _by_index(read_index(path), path)


def held_by(path: Path) -> Tensors:
    """The arrays of a file, none of which is read."""
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}
        return {name: Stored(path, name, part.get_shape(), part.get_dtype()) for name, part in slices.items()}


def _opened(path: Path) -> Any:
    with path.open("rb"):
        pass  # the system's own error for a file that is not there, with its name
    try:
        return extra("safetensors").safe_open(path, framework="numpy")
    except (OSError, ValueError, extra("safetensors").SafetensorError) as error:
        raise ValueError(f"{path.name} is damaged or no safetensors file: {error}") from error


def _by_index(names: dict[str, str], folder: Path) -> Tensors:
    """The arrays that an index names, in its files."""
    held = {file: held_by(folder / file) for file in sorted(set(names.values()))}
    if lost := [name for name, file in names.items() if name not in held[file]]:
        raise ValueError(f"{listed(lost)}: not in the files that {INDEX} names for them")
    return {name: held[file][name] for name, file in names.items()}


def _prefixed(tensors: Tensors, form: Format) -> Tensors:
    """The tensors under their full names, where a file of a model without its head leaves out what all begin with."""
    if not form.prefix or any(name.startswith(form.prefix) for name in tensors):
        return tensors
    heads = form.parts("out_head.weight")[0]
    return {name if name in heads else form.prefix + name: place for name, place in tensors.items()}


def _check(model: LanguageModel, form: Format, tensors: Tensors) -> None:
    """Raise ValueError unless the tensors are those of a model, in name, shape and kind."""
    wanted = _wanted(model, form)
    ignored = () if model.out_head else form.parts("out_head.weight")[0]  # a copy of what it is tied to
    missing = [name for name in wanted if name not in tensors]
    unknown = [name for name in tensors if name not in wanted and name not in ignored and not form.ignores(name)]
    wrong = [f"{what} {listed(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names]
    misfits = []
    for name in (n for n in wanted if n in tensors):
        shape, dtype = tensors[name].shape, tensors[name].dtype
        if shape != wanted[name]:
            misfits.append(f"{name} is {shape} and must be {wanted[name]}")
        elif dtype not in DTYPES:
            misfits.append(f"{name} is of {dtype} and must be of {', '.join(DTYPES)}")
    if wrong := [*wrong, *([listed(misfits)] if misfits else [])]:
        raise ValueError("; ".join(wrong))


def _wanted(model: LanguageModel, form: Format) -> dict[str, list[int]]:
    """The names and shapes that files of this form have for a model."""
    wanted = {}
    for own, leaf in model.named_parameters().items():
        names, transposed = form.parts(own)
        for name, rows in zip(names, shares(model, leaf.shape[0], len(names)), strict=True):
            shape = [rows, *leaf.shape[1:]]
            wanted[name] = shape[::-1] if transposed else shape
    return wanted


def shares(model: LanguageModel, rows: int, parts: int) -> list[int]:
    """How many rows of an array belong to each of its parts: one, or queries, keys and values."""
    att = model.blocks[0].att
    heads = (att.n_heads, att.n_kv_heads, att.n_kv_heads) if parts > 1 else (1,)
    return [rows * share // sum(heads) for share in heads]


def _read(form: Format, own: str, tensors: Tensors) -> np.ndarray:
    """Our array of a name, of theirs."""
    names, transposed = form.parts(own)
    parts = [tensors[name].read() for name in names]
    for name, part in zip(names, parts, strict=True):
        if not np.isfinite(part).all():
            raise ValueError(f"{name} holds numbers that are not finite")
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return joined.T if transposed else joined


def listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


# ---- writing -----------------------------------------------------------------------------------------------------


def save_pretrained(
    path: str | os.PathLike[str],
    model: LanguageModel,
    *,
    format: str = "huggingface",
    dtype: Any = "float32",
    shard_bytes: int = 2**31,
    special_tokens: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Write a model into a folder as others read it: a config.json, and weights as safetensors, adapters merged.

    format       "huggingface", which transformers loads, or "tutorial"
    dtype        what the weights are written in
    shard_bytes  from which size on the weights are several files with an index
    special_tokens  what config.json says of them, such as eos_token_id; others are said not to be there

    Errors:  ValueError for a model that the format lacks; OSError if the folder holds a model already, or cannot be
             written to; RuntimeError without the library safetensors
    """
    folder, dtype = Path(path), as_dtype(dtype)
    form = WRITTEN.get(format, {}).get(type(model))
    if form is None:
        raise ValueError(f"save_pretrained: {type(model).__name__} as {format!r}; {_formats(model)}")
    complete = form.complete(merge_lora(model))
    settings = form.described(complete.config)
    folder.mkdir(parents=True, exist_ok=True)
    if any((folder / name).exists() for name in (CONFIG, WHOLE, INDEX)):
        raise FileExistsError(f"{folder}: it holds a model already; give another folder")
    _write_weights(folder, complete, form, dtype, shard_bytes)
    if format == "huggingface":
        # Left out, they would be the family's usual ones, which may be other tokens here, or none.
        settings |= {"torch_dtype": dtype.name, "bos_token_id": None, "eos_token_id": None, **special_tokens}
    # Last: a folder without it holds no model.
    write_whole(folder / CONFIG, json.dumps(settings, indent=2).encode())


def _formats(model: LanguageModel) -> str:
    known = ", ".join(repr(name) for name, models in WRITTEN.items() if type(model) in models)
    return f"it must be written as {known}" if known else "it must be one of polyarr's models"


def _write_weights(folder: Path, model: LanguageModel, form: Format, dtype: np.dtype, limit: int) -> None:
    shards = _shards(model, dtype, limit)
    where: dict[str, str] = {}
    for number, owns in enumerate(shards, 1):
        name = WHOLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        arrays = {theirs: source for own in owns for theirs, source in _sources(model, form, own, dtype)}
        write_arrays(folder / name, arrays, {"format": "pt"})
        where |= dict.fromkeys(arrays, name)
    if len(shards) > 1:
        total = sum(leaf.size for leaf in model.named_parameters().values()) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": where}
        write_whole(folder / INDEX, json.dumps(index, indent=2).encode())


def _shards(model: LanguageModel, dtype: np.dtype, limit: int) -> list[list[str]]:
    """Our names, in groups of at most so many bytes where no single array is larger."""
    shards: list[list[str]] = []
    room = 0
    for own, leaf in model.named_parameters().items():
        size = leaf.size * dtype.itemsize
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1].append(own)
        room -= size
    return shards


def _sources(model: LanguageModel, form: Format, own: str, dtype: np.dtype) -> Iterator[tuple[str, Source]]:
    """Their arrays, by name, that ours of a name is made of."""
    leaf, (names, transposed) = model.named_parameters()[own], form.parts(own)
    ends = np.cumsum(shares(model, leaf.shape[0], len(names)))
    for name, start, end in zip(names, [0, *ends], ends, strict=False):
        shape = (int(end - start), *leaf.shape[1:])
        read = partial(_part, leaf, slice(start, end), transposed, dtype)
        yield name, Source(Spec(shape[::-1] if transposed else shape, dtype), read)


def _part(leaf: Array, rows: slice, transposed: bool, dtype: np.dtype) -> np.ndarray:
    part = leaf.numpy()[rows].astype(dtype, copy=False)
    return part.T if transposed else part
