"""Pretrained language models in Hugging Face folders and safetensors files, read and written; GGUF files, read."""

import contextlib
import json
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation
from polyarr.atomic import write_whole
from polyarr.core.array import Array
from polyarr.core.dlpack import view_of
from polyarr.core.spec import Spec, as_dtype, float16, float32, float64, int8, uint8
from polyarr.models.decoder import Config, LanguageModel
from polyarr.models.families import new_model
from polyarr.models.folders import CONFIG, INDEX, PICKLED, WHOLE, hint_of_others, no_such, read_index, read_json
from polyarr.models.formats import Format, format_of, written_format
from polyarr.models.formats.gguf import read_gguf
from polyarr.models.formats.mxfp4 import MXFP4Tensor
from polyarr.models.formats.packed import PackedTensor, with_packed
from polyarr.models.gpt import GPTConfig
from polyarr.models.llama import LlamaConfig
from polyarr.nn import QuantizedLinear, merge_lora, shapes_only
from polyarr.nn.quantized import quantized_layers, with_codes
from polyarr.ops.quantized import QUANTIZED_BLOCK
from polyarr.saving.gguf_file import is_gguf
from polyarr.saving.tensor_file import CODES, Source, TensorFile, finite, source_of, write_arrays
from polyarr.schema import in_one_line

KEPT = ("Q8_0", "Q4_0")  # types of GGUF that QuantizedLinear has
_ARRAYS_OF_CODES = ("codes", "scale")  # arrays of a QuantizedLinear in place of the weight
DTYPES = ("F64", "F32", "F16", "BF16")  # dtypes of stored weights that are read
_MAX_LISTED = 3  # names listed in an error


class StoredTensor(NamedTuple):
    """Array in a safetensors file: its name, shape and dtype, without its data."""

    file: TensorFile
    name: str
    shape: list[int]
    dtype: str

    @property
    def kind(self) -> str:
        """Kind of its numbers."""
        return "float"

    def read(self, dtype: np.dtype | None = None) -> np.ndarray:
        """Return the data, in a floating-point dtype if one is given; numbers that are not finite are then an error."""
        stored = self.file.array(self.name)
        return stored if dtype is None else finite(self.name, stored, dtype)


Tensors = Mapping[str, Any]  # StoredTensors and PackedTensors, or GGUFTensors, by full name


class PretrainedError(ValueError):
    """Error for model files that are damaged, or that hold a model which polyarr does not have."""


# ---- reading -----------------------------------------------------------------------------------------------------


def load_pretrained(
    path: str | os.PathLike[str], *, dtype: Any = None, keep_quantized: bool = False
) -> LanguageModel:
    """Load a language model from a Hugging Face folder, a safetensors file beside its config.json, or a GGUF file.

    The model may be a GPT-2, gpt-oss, Llama, Mistral, Mixtral, Phi, Granite, SmolLM3, Qwen, Seed-OSS, Gemma, OLMo or
    one with their settings, such as SmolLM2, in one file or in several with an index. It may also be the GPT of
    Raschka's book, whose config.json is its dict of settings. Arrays are read and converted one by one, the largest
    first, so that the host needs hardly more memory than the model has. Nothing is ever unpickled. Quantized weights,
    of a GGUF file or a folder of AWQ, GPTQ or MXFP4, are dequantized, unless `keep_quantized` is True.

    Settings may tie the output head to the embedding (tie_word_embeddings) although the file holds a head. If both have
    the same numbers the head is tied; otherwise the model keeps the head of the file, with a RuntimeWarning.

    Args:
        path: The folder, or the file.
        dtype: Dtype of the model's parameters; None: the file's, or float32 if the file has float64 or several
            dtypes. A GGUF file's is float32 if its matrices are, or else bfloat16.
        keep_quantized: Whether linear layers whose weights are all Q8_0, or all Q4_0, in a GGUF file become
            nn.QuantizedLinear, with the bytes of the file; and so those of AWQ, GPTQ and MXFP4 whose numbers fit into
            such blocks without loss, those of MXFP4 into Q8_0. Embeddings and other types are dequantized; with a
            RuntimeWarning if of AWQ, GPTQ or MXFP4 in a folder.

    Returns:
        A GPTModel or a LlamaModel in evaluation mode.

    Raises:
        OSError: A file cannot be read.
        PretrainedError: A file is damaged, or has other arrays or settings than polyarr's model, or numbers that are
            not finite in `dtype`.
        RuntimeError: The library gguf is missing.
    """
    path, dtype = Path(path), None if dtype is None else as_dtype(dtype)
    kept = KEPT if keep_quantized else ()
    if not path.exists():
        raise no_such(path)
    if is_gguf(path):
        with errors_with_path("load_pretrained", path):
            (form, config, _), tensors = read_gguf(path)
            return _loaded(form, config, tensors, dtype, kept)
    folder = path if path.is_dir() else path.parent
    if not os.path.lexists(folder / CONFIG):
        missing = f"here{hint_of_others(folder)}" if path == folder else "beside this file"
        raise FileNotFoundError(f"{path}: no {CONFIG} is {missing}")
    with errors_with_path("load_pretrained", path):
        settings = read_json(folder / CONFIG)
        form = format_of(settings)
        config, found = form.config_of(settings), with_packed(_prefixed(_tensors(path), form), settings, form)
        if isinstance(config, GPTConfig | LlamaConfig) and config.tie_embeddings and _has_own_head(form, found):
            text = "its settings tie the output head to the embedding, its file has another head: that one is kept"
            warnings.warn(f"load_pretrained: {path}: {text}", RuntimeWarning, stacklevel=2)
            config = replace(config, tie_embeddings=False)
        return _loaded(form.with_experts(config), config, found, dtype, kept)


def _loaded(
    form: Format, config: Config, tensors: Tensors, dtype: np.dtype | None, kept: Collection[str]
) -> LanguageModel:
    """Return the model of a configuration with these weights; those of the types `kept` stay quantized."""
    with shapes_only():
        model = new_model(config)
        _check(model, form, tensors)
        model = model.astype(dtype or _stored_dtype(model, form, tensors))
        if kept:
            specs = _specs_of_codes(model, form, tensors, kept)
            _warn_of_dequantized(tensors, {name for path in specs for name in form.parts(f"{path}.weight")[0]})
            model = with_codes(model, specs)
    return model.load_parameters(largest_first(model, partial(_read, form, tensors))).eval()


@contextlib.contextmanager
def errors_with_path(op: str, path: Path) -> Iterator[None]:
    """Raise errors about the content of a file as a PretrainedError of one line that names its path."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise PretrainedError(f"{op}: {path}: {in_one_line(error)}") from error


def _tensors(path: Path) -> Tensors:
    """Return the arrays of a file, or of a folder's model.safetensors, or of the files of its index."""
    whole, index = (path / WHOLE, path / INDEX) if path.is_dir() else (path, None)
    if index is None or whole.exists():
        return open_tensors(whole)
    if not index.exists():
        raise FileNotFoundError(f"{path}: neither {WHOLE} nor {INDEX} is here{hint_of_others(path)}")
    return _by_index(read_index(path), path)


def open_tensors(path: Path) -> Tensors:
    """Return the arrays of a safetensors file, without reading their data."""
    if path.suffix in PICKLED:
        raise ValueError("pickled weights are never read, they could run anything; save them as safetensors")
    try:
        file = TensorFile(path)
    except ValueError as error:
        raise ValueError(f"{path.name} is damaged or no safetensors file: {error}") from error
    return {name: StoredTensor(file, name, list(entry.shape), entry.code) for name, entry in file.entries.items()}


def _by_index(names: dict[str, str], folder: Path) -> Tensors:
    """Return the arrays that an index names, from its files."""
    held = {file: open_tensors(folder / file) for file in sorted(set(names.values()))}
    if lost := [name for name, file in names.items() if name not in held[file]]:
        raise ValueError(f"{listed(lost)}: not in the files that {INDEX} names for them")
    return {name: held[file][name] for name, file in names.items()}


def _prefixed(tensors: Tensors, form: Format) -> Tensors:
    """Return the tensors by full name, for files of models without a head that leave out the common prefix."""
    if not form.prefix or any(name.startswith(form.prefix) for name in tensors):
        return tensors
    heads = form.parts("out_head.weight")[0]
    return {name if name in heads else form.prefix + name: place for name, place in tensors.items()}


def _has_own_head(form: Format, tensors: Tensors) -> bool:
    """Return whether the files hold an output head that differs from the embedding."""
    (head,), (embedding,) = form.parts("out_head.weight")[0], form.parts("tok_emb.weight")[0]
    if head not in tensors or embedding not in tensors:
        return False
    own, tied = tensors[head], tensors[embedding]
    return own.shape != tied.shape or not np.array_equal(own.read(), tied.read())


def _check(model: LanguageModel, form: Format, tensors: Tensors) -> None:
    """Raise ValueError unless the tensors are exactly those of the model, in name, shape and dtype."""
    ignored = () if model.out_head else form.parts("out_head.weight")[0]  # a copy of what it is tied to
    check_tensors(
        tensors,
        _wanted(model, form),
        lambda name: name in ignored or form.ignores(name) or _is_zero_bias(tensors, name),
    )


def check_tensors(tensors: Tensors, wanted: Mapping[str, list[int]], is_ignored: Callable[[str], bool]) -> None:
    """Raise ValueError unless the tensors, but for ignored ones, have exactly these names and shapes, and known dtypes.
    """
    missing = [name for name in wanted if name not in tensors]
    unknown = [name for name in tensors if name not in wanted and not is_ignored(name)]
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


def _is_zero_bias(tensors: Tensors, name: str) -> bool:
    """Return whether an array is a bias of zeros, which AutoGPTQ adds to every quantized layer."""
    weight = tensors.get(f"{name.removesuffix('bias')}weight")
    return name.endswith(".bias") and isinstance(weight, PackedTensor) and not tensors[name].read().any()


def _wanted(model: LanguageModel, form: Format) -> dict[str, list[int]]:
    """Return the names and shapes of the arrays of a model in this format."""
    wanted = {}
    for own, leaf in model.named_parameters().items():
        names, transposed = form.parts(own)
        layer = form.layer(own)
        counts, row = _split(model, form, own, leaf)
        for name, rows in zip(names, counts, strict=True):
            shape = [rows, *row]
            shape[layer.stacked] *= layer.share[1]
            wanted[name] = _swapped(shape) if transposed else shape
    return wanted


def _swapped(shape: Iterable[int]) -> list[int]:
    """Return a shape with the last two axes swapped."""
    *first, rows, columns = shape
    return [*first, columns, rows]


def _split(model: LanguageModel, form: Format, own: str, leaf: Array | Spec) -> tuple[list[int], tuple[int, ...]]:
    """Return the number of rows of each of the arrays that make up a parameter, and the shape of a row.

    The weights of experts (E, n, k) are E arrays (n, k), unless the format has them in one array.
    """
    if len(leaf.shape) == 3 and not form.layer(own).stacked:
        return [leaf.shape[1]] * leaf.shape[0], leaf.shape[2:]
    return rows_of_parts(model, leaf.shape[0], len(form.parts(own)[0])), leaf.shape[1:]


def rows_of_parts(model: LanguageModel, rows: int, parts: int) -> list[int]:
    """Return the number of rows of each part of an array: one part, or queries, keys and values."""
    att = model.blocks[0].att
    heads = (att.n_heads, att.n_kv_heads, att.n_kv_heads) if parts > 1 else (1,)
    return [rows * share // sum(heads) for share in heads]


def bounds_of(counts: Iterable[int]) -> list[tuple[int, int]]:
    """Return the rows (start, stop) of parts that follow each other, for their numbers of rows."""
    return list(pairwise(accumulate(counts, initial=0)))


def _stored_dtype(model: LanguageModel, form: Format, tensors: Tensors) -> np.dtype:
    """Return the dtype of all weights in the files; float32 if it is float64, or if there are several."""
    first, *others = {tensors[name].dtype for name in _wanted(model, form)}
    return float32 if others or CODES[first] == float64 else np.dtype(CODES[first])


def largest_first(model: LanguageModel, read: Callable[[str, np.dtype], np.ndarray]) -> dict[str, Array]:
    """Return the arrays of a model by name, each of which `read(name, dtype)` returns on the host.

    The host holds an array twice while it is uploaded. The largest are uploaded first, while there is little else.
    """
    specs = sorted(model.named_parameters().items(), key=lambda item: -item[1].size)
    return {name: creation.asarray(read(name, spec.dtype).reshape(spec.shape)) for name, spec in specs}


def _read(form: Format, tensors: Tensors, own: str, dtype: np.dtype) -> np.ndarray:
    """Return the array that polyarr calls `own`, joined from the other program's arrays or a part of one."""
    path, _, last = own.rpartition(".")
    if last in _ARRAYS_OF_CODES:
        (names, _), transposed = form.parts(f"{path}.weight"), False
        parts = [getattr(tensors[name], last)() for name in names]
    else:
        names, transposed = form.parts(own)
        parts = [tensors[name].read(dtype) for name in names]
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    index, shares = form.layer(own).share
    joined = joined.swapaxes(-1, -2) if transposed else joined
    return joined[:, index::shares] if form.layer(own).stacked else np.split(joined, shares)[index]


def _specs_of_codes(
    model: LanguageModel, form: Format, tensors: Tensors, kept: Collection[str]
) -> dict[str, tuple[Spec, Spec]]:
    """Return the Specs of codes and scales of the matrices that stay quantized, by the paths of polyarr's layers."""
    found = {}
    for own, leaf in model.named_parameters().items():
        path, _, last = own.rpartition(".")
        kinds = {tensors[name].kind for name in form.parts(own)[0]}
        if last == "weight" and len(leaf.shape) > 1 and len(kinds) == 1 and kinds <= {*kept}:
            *rows, columns = leaf.shape
            codes = Spec((*rows, columns), int8) if kinds == {"Q8_0"} else Spec((*rows, columns // 2), uint8)
            found[path] = codes, Spec((*rows, columns // QUANTIZED_BLOCK), float16)
    return found


def _warn_of_dequantized(tensors: Tensors, kept: Collection[str]) -> None:
    """Warn of weights of AWQ, GPTQ and MXFP4 that do not stay quantized."""
    packed = PackedTensor | MXFP4Tensor
    if left := [name for name, a in tensors.items() if isinstance(a, packed) and name not in kept]:
        due = "those kept have 32 inputs in a row of one group, zero points that fit into int8, and scales into float16"
        warnings.warn(f"load_pretrained: {listed(left)}: dequantized; {due}", RuntimeWarning, stacklevel=4)


def listed(names: list[str]) -> str:
    """Return the first few names as text, and how many more there are."""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


# ---- writing -----------------------------------------------------------------------------------------------------


def save_pretrained(
    path: str | os.PathLike[str],
    model: LanguageModel,
    *,
    format: str = "huggingface",
    dtype: Any = None,
    shard_bytes: int = 2**31,
    special_tokens: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Write a language model into a folder: a config.json, and weights as safetensors files with adapters merged.

    Args:
        path: Folder, which is created if it does not exist.
        model: A GPTModel or a LlamaModel.
        format: "huggingface", which transformers loads, or "tutorial", the GPT of Raschka's book.
        dtype: Dtype of the written weights; None: the token embedding's.
        shard_bytes: Largest size of a file; larger weights become several files with an index.
        special_tokens: Ids of special tokens for config.json, such as eos_token_id. pad_token_id, bos_token_id and
            eos_token_id are null unless they are given.

    Raises:
        ValueError: The format has no such model, or a number is not finite in `dtype`.
        OSError: The folder holds a model already, or cannot be written to.
    """
    folder, dtype = Path(path), as_dtype(dtype or model.tok_emb.weight.dtype)
    try:
        form = written_format(model, format)
    except ValueError as error:
        raise ValueError(f"save_pretrained: {error}") from None
    complete = form.complete(merge_lora(model))
    settings = form.settings_of(complete.config)
    folder.mkdir(parents=True, exist_ok=True)
    if any((folder / name).exists() for name in (CONFIG, WHOLE, INDEX)):
        raise FileExistsError(f"{folder}: it holds a model already; give another folder")
    _write_weights(folder, complete, form, dtype, shard_bytes)
    if format == "huggingface":
        # null, because a missing setting means the family's default id, which may be another token here.
        no_tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
        settings |= {"torch_dtype": dtype.name, **no_tokens, **special_tokens}
    # Last, because a folder without it holds no model.
    write_whole(folder / CONFIG, json.dumps(settings, indent=2).encode())


def _write_weights(folder: Path, model: LanguageModel, form: Format, dtype: np.dtype, limit: int) -> None:
    found = sources(model, form, dtype)
    shards = _shards(found, limit)
    where: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        name = WHOLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_arrays(folder / name, {theirs: found[theirs] for theirs in names}, {"format": "pt"})
        where |= dict.fromkeys(names, name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(map(_bytes, found.values()))}, "weight_map": where}
        write_whole(folder / INDEX, json.dumps(index, indent=2).encode())


def _shards(sources: Mapping[str, Source], limit: int) -> list[list[str]]:
    """Group names of arrays into files of at most `limit` bytes; a larger array gets a file of its own."""
    shards: list[list[str]] = []
    room = 0
    for name, source in sources.items():
        size = _bytes(source)
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards


def _bytes(source: Source) -> int:
    return math.prod(source.spec.shape) * source.spec.dtype.itemsize


def sources(model: LanguageModel, form: Format, dtype: np.dtype) -> dict[str, Source]:
    """Return the other program's arrays by name, each of which is read from the model when it is written."""
    pieces: dict[str, list[tuple[Source, slice]]] = {}  # gate comes before up, as in files that have both in one array
    layouts: dict[str, tuple[bool, bool]] = {}  # whether an array is transposed, and whether it is stacked
    for own, leaf in _weights_of(model).items():
        names, is_transposed = form.parts(own)
        counts, row = _split(model, form, own, leaf.spec)
        rows = _in_rows(leaf, row)
        for name, part in zip(names, bounds_of(counts), strict=True):
            pieces.setdefault(name, []).append((rows, slice(*part)))
            layouts[name] = is_transposed, form.layer(own).stacked
    return {name: _source(parts, *layouts[name], dtype) for name, parts in pieces.items()}


def _weights_of(model: LanguageModel) -> dict[str, Source]:
    """Return the Sources of a model's arrays by name, with the weight of a quantized layer in place of its codes."""
    layers, found = quantized_layers(model), dict[str, Source]()
    for name, a in model.named_parameters().items():
        path, _, last = name.rpartition(".")
        if path not in layers or last not in _ARRAYS_OF_CODES:
            found[name] = source_of(a)
        elif last == "codes":
            spec = Spec(layers[path].shape, float64 if layers[path].scale.dtype == float64 else float32)
            found[f"{path}.weight"] = Source(spec, partial(_dequantized, layers[path]))
    return found


def _dequantized(layer: QuantizedLinear) -> np.ndarray:
    return view_of(layer.exact_weight)


def _in_rows(leaf: Source, row: tuple[int, ...]) -> Source:
    """Return a Source of the same numbers as rows of a shape."""
    count = math.prod(leaf.spec.shape) // math.prod(row)
    return Source(Spec((count, *row), leaf.spec.dtype), lambda: leaf.read().reshape(count, *row))


def _source(pieces: list[tuple[Source, slice]], transposed: bool, stacked: bool, dtype: np.dtype) -> Source:
    shape = [sum(rows.stop - rows.start for _, rows in pieces), *pieces[0][0].spec.shape[1:]]
    if stacked:
        shape[:2] = shape[0] // len(pieces), shape[1] * len(pieces)
    spec = Spec(tuple(_swapped(shape) if transposed else shape), dtype)
    return Source(spec, partial(_joined, pieces, transposed, stacked))


def _joined(pieces: list[tuple[Source, slice]], transposed: bool, stacked: bool) -> np.ndarray:
    parts = [leaf.read()[rows] for leaf, rows in pieces]
    if len(parts) == 1:
        joined = parts[0]
    elif stacked:  # the rows of an expert alternate
        joined = np.stack(parts, axis=2).reshape(len(parts[0]), -1, *parts[0].shape[2:])
    else:
        joined = np.concatenate(parts)
    return joined.swapaxes(-1, -2) if transposed else joined
