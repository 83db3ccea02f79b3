"""GGUF files of language models, written for llama.cpp and others."""

import errno
import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.atomic import written_whole
from polyarr.core.dlpack import view_of
from polyarr.core.spec import Spec, float16, float32, int8
from polyarr.extras import extra
from polyarr.models.decoder import Config, LanguageModel
from polyarr.models.formats import Format, written_format
from polyarr.models.formats.gguf import (
    EXPERTS,
    GGUFModel,
    Planned,
    architecture_of,
    is_always_float32,
    metadata_of,
    model_of,
    read_model,
    tensors_of,
)
from polyarr.models.gpt import GPTConfig
from polyarr.models.llama import LlamaConfig
from polyarr.models.pretrained import bounds_of, rows_of_parts, sources
from polyarr.nn import QuantizedLinear, merge_lora
from polyarr.nn.quantized import quantized_layers
from polyarr.saving.gguf_file import GGUFEntry
from polyarr.saving.tensor_file import Source, finite
from polyarr.text import SubwordTokenizer, Tokenizer
from polyarr.text.gguf import gguf_metadata

# Types of written matrices, and the numbers that "general.file_type" has for them.
TYPES = {"F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "MXFP4": 38}
_BESIDE_MXFP4 = "Q8_0"  # type of the matrices that are not of experts
_CHECKED = {"F16": float16}  # whose range is smaller than that of float32
_TYPE_OF = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def save_gguf(
    path: str | os.PathLike[str],
    model: LanguageModel,
    *,
    type: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> None:
    """Write a language model, with adapters merged, as a GGUF file.

    Vectors, such as the weights of norms, are float32, and a matrix whose rows do not consist of whole blocks of a
    quantized type is float16, as in llama.cpp's own files.

    Args:
        path: The file, which must not exist.
        model: A GPTModel or a LlamaModel.
        type: Type of the matrices, "F32", "F16", "BF16", "Q8_0", "Q4_0" or, of experts with all other matrices in Q8_0,
            "MXFP4"; None: the token embedding's. Quantized layers of Q8_0 or Q4_0 are written with their own bytes if
            the type is None or theirs.
        tokenizer: Tokenizer of the model. None, or one without subwords: the file has none.

    Raises:
        ValueError: llama.cpp has no such model or tokenizer, the type is unknown, or a number is not finite in it.
        OSError: The file exists, or cannot be written.
        RuntimeError: The library gguf is missing.
    """
    path = Path(path)
    if type is not None and type not in TYPES:
        raise ValueError(f"save_gguf: type is {type!r}; it must be one of {', '.join(TYPES)}")
    if path.exists():
        raise FileExistsError(f"{path}: it exists; give another name")
    library = extra("gguf", "gguf")
    try:
        form = written_format(model, "huggingface")
        complete = form.complete(merge_lora(model))
        planned, found = _planned(library, complete, form.settings_of(complete.config), type)
        words = {"tokenizer.ggml.model": "none"}
        if isinstance(tokenizer, SubwordTokenizer):
            words = gguf_metadata(tokenizer, model.config.vocab_size)
    except ValueError as error:
        raise ValueError(f"save_gguf: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        # The library opens the file again by its name.
        _write(library, Path(file.name), planned._replace(metadata=planned.metadata | words), found)


def _planned(
    library: Any, model: LanguageModel, settings: dict[str, Any], type: str | None
) -> tuple[Planned, GGUFModel]:
    """Return what is written for a model of transformers; reading it must give the same model."""
    architecture = architecture_of(settings["model_type"])
    found = model_of(architecture, model.config)
    if type == "MXFP4" and not getattr(model.config, "n_experts", 0):
        raise ValueError("type is 'MXFP4', which is of experts, and the model has none; it must be another")
    default = _TYPE_OF[model.tok_emb.weight.dtype.name]
    blocks = _blocks(model, found.format)
    if type is not None:
        blocks = {key: held for key, held in blocks.items() if _type(key, type) == _type_of(held[0])}
    given = {key: Source(Spec(a.shape, a.dtype), partial(np.asarray, a)) for key, a in tensors_of(settings).items()}
    given |= sources(model, found.format, float32)
    types = {key: _type_of(layer) for key, (layer, _) in blocks.items()}
    number = TYPES[type or next(iter(types.values()), default)]
    shapes = {key: found.shape(key, source.spec.shape) for key, source in given.items()}
    types = {key: types.get(key, _type(key, type or default)) for key in given}
    kinds = {key: _kind(library, shape, types[key]) for key, shape in shapes.items()}
    entries = {key: GGUFEntry(kinds[key], shape, 0) for key, shape in shapes.items()}
    metadata = {**metadata_of(architecture, settings), "general.file_type": number, "general.quantization_version": 2}
    planned = Planned(metadata, entries, given, blocks)
    if (due := _without_training(model.config)) != read_model(planned).config:
        raise ValueError(f"models of llama.cpp's {architecture.name!r} do not have all settings of this one, {due}")
    return planned, found


def _blocks(model: LanguageModel, form: Format) -> dict[str, tuple[QuantizedLinear, slice]]:
    """Return the quantized layers that have scales of blocks, and their rows, by the names of GGUF's tensors."""
    found: dict[str, tuple[QuantizedLinear, slice]] = {}
    for path, layer in quantized_layers(model).items():
        names, _ = form.parts(f"{path}.weight")
        if layer.has_blocks:
            rows = bounds_of(rows_of_parts(model, layer.shape[0], len(names)))
            found |= {name: (layer, slice(*part)) for name, part in zip(names, rows, strict=True)}
    return found


def _type(name: str, type: str) -> str:
    """Return the type of a matrix in a file of a type."""
    if is_always_float32(name):
        return "F32"
    return _BESIDE_MXFP4 if type == "MXFP4" and not name.endswith(EXPERTS) else type


def _type_of(layer: QuantizedLinear) -> str:
    return "Q8_0" if layer.codes.dtype == int8 else "Q4_0"


def _bytes_of(layer: QuantizedLinear, rows: slice, name: str, model: GGUFModel) -> np.ndarray:
    """Return the bytes (..., n, bytes of a row) of rows of a quantized layer, in the order of llama.cpp's tensor."""
    parts = [model.written(name, view_of(a)[rows]) for a in (layer.scale, layer.codes)]
    shape = parts[0].shape  # a block is its scale and then its codes
    blocks = [np.ascontiguousarray(part).view(np.uint8).reshape(*shape, -1) for part in parts]
    return np.concatenate(blocks, axis=-1).reshape(*shape[:-1], -1)


def _without_training(config: Config) -> Config:
    """Return a configuration without the settings that only training has, which are not in GGUF."""
    if isinstance(config, GPTConfig):
        return replace(config, drop_rate=0.0)
    return replace(config, router_loss=0.0) if isinstance(config, LlamaConfig) else config


def _kind(library: Any, shape: tuple[int, ...], type: str) -> Any:
    """Return the type, of the library, in which a tensor is written."""
    kinds = library.GGMLQuantizationType
    if len(shape) == 1:
        return kinds.F32
    return kinds.F16 if shape[-1] % library.GGML_QUANT_SIZES[kinds[type]][0] else kinds[type]


def _write(library: Any, path: Path, planned: Planned, model: GGUFModel) -> None:
    """Write a file with the library, one tensor after the other."""
    writer = library.GGUFWriter(path, planned.metadata["general.architecture"])
    for key, value in planned.metadata.items():
        _add(library, writer, key, value)
    for name, (kind, shape, _) in planned.entries.items():
        block, size = library.GGML_QUANT_SIZES[kind]
        writer.add_tensor_info(name, shape, float32, math.prod(shape) // block * size, kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, (kind, _, _) in planned.entries.items():
            if name in planned.blocks:
                writer.write_tensor_data(_bytes_of(*planned.blocks[name], name, model))
                continue
            a = np.ascontiguousarray(model.written(name, planned.array(name, float32)))
            writer.write_tensor_data(library.quants.quantize(finite(name, a, _CHECKED.get(kind.name, float32)), kind))
    except OSError as error:
        if error.errno is None:  # NumPy's, which has only counts of the elements
            reason = f"not all of it could be written; is the disk full? ({error})"
            raise OSError(errno.ENOSPC, reason, str(path)) from error
        raise
    finally:
        writer.close()


def _add(library: Any, writer: Any, key: str, value: Any) -> None:
    """Add a setting to a writer; whole numbers are uint32, as llama.cpp requires."""
    kinds = library.GGUFValueType
    if key != "general.architecture" and value != []:  # the writer has added the one, and refuses the other
        writer.add_key_value(key, value, kinds.UINT32 if type(value) is int else kinds.get_type(value))
