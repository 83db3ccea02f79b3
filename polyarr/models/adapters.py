"""Low-rank adapters in the files of PEFT, read and written: adapter_config.json and adapter_model.safetensors."""

import errno
import json
import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyarr import creation
from polyarr.core.spec import Spec, as_dtype
from polyarr.models.decoder import LanguageModel
from polyarr.models.folders import hint_of_pickled, read_json
from polyarr.models.formats import WRITTEN, Format
from polyarr.models.pretrained import DTYPES, Tensors, held_by, listed, reasons_named, shares
from polyarr.nn import Linear, LoRALinear
from polyarr.nn.lora import replaced
from polyarr.saving import Source, write_arrays, write_whole

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BEFORE, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"  # around the name of a layer
_FIXED: dict[str, tuple[Any, ...]] = {  # what polyarr's adapters are; first what is written
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": (None, []),
}


def load_adapters(path: str | os.PathLike, model: LanguageModel) -> LanguageModel:
    """A model like the given one, with the adapters that PEFT saved in a folder for it: as nn.lora makes one.

    PEFT has three adapters where a Llama's queries, keys and values are one layer here: they become one of their ranks'
    sum, which computes the same.

    Errors:  OSError if a file cannot be read; PretrainedError for files that are damaged, of adapters of another kind,
             or of another model; ValueError for a model that has adapters, or that Hugging Face's formats lack
    """
    path = Path(path)
    form = _format("load_adapters", model)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
    with reasons_named("load_adapters", path):
        settings = read_json(path / CONFIG)
        rank, scale, dropout = _numbers(settings)
        if not (path / WEIGHTS).exists():
            raise FileNotFoundError(f"{path}: {WEIGHTS} is not here{hint_of_pickled(path)}")
        tensors, used = held_by(path / WEIGHTS), set[str]()

        def adapted(own: str, layer: Linear) -> Linear | LoRALinear:
            if type(layer) is LoRALinear:
                raise ValueError("the model has adapters already; merge_lora puts them into its weights")
            names = [_BEFORE + name for name in _names(form, own)]
            given = [name for name in names if name + _A in tensors or name + _B in tensors]
            if not given:
                return layer
            used.update(name + half for name in given for half in (_A, _B))
            a, b = _joined(model, layer, names, rank, tensors)
            found = LoRALinear(layer, a.shape[0], scale, dropout)
            found.a, found.b = (creation.asarray(part, dtype=held.dtype) for part, held in ((a, found.a), (b, found.b)))
            return found

        changed = replaced(model.copy().freeze(), adapted)
        if unknown := [name for name in tensors if name not in used]:
            raise ValueError(f"unknown {listed(unknown)}")
        if not used:
            raise ValueError(f"{WEIGHTS} holds no adapter")
    return changed


def save_adapters(path: str | os.PathLike, model: LanguageModel, *, dtype: Any = "float32") -> None:
    """Write the adapters of a model, and nothing else, into a folder as PEFT loads them.

    Those of lower rank are filled up with zeros, so that all have one.

    Errors:  ValueError for a model without adapters, or that Hugging Face's formats lack; OSError if the folder holds
             adapters already, or cannot be written to; RuntimeError without the library safetensors
    """
    folder, dtype, form = Path(path), as_dtype(dtype), _format("save_adapters", model)
    layers: dict[str, Any] = {}
    replaced(model, layers.setdefault)
    found = {own: layer for own, layer in layers.items() if type(layer) is LoRALinear}
    if not found:
        raise ValueError("save_adapters: the model has no adapters; nn.lora gives it some")
    folder.mkdir(parents=True, exist_ok=True)
    if any((folder / name).exists() for name in (CONFIG, WEIGHTS)):
        raise FileExistsError(f"{folder}: it holds adapters already; give another folder")
    rank, scale = max(layer.a.shape[0] for layer in found.values()), next(iter(found.values())).scale
    arrays: dict[str, Source] = {}
    for own, layer in found.items():
        a, b = layer.a.numpy(), layer.b.numpy() * (layer.scale / scale)
        a = np.pad(a, ((0, rank - a.shape[0]), (0, 0)))  # (R, in)
        b = np.pad(b, ((0, 0), (0, rank - b.shape[1])))  # (out, R)
        names = _names(form, own)
        cuts = np.cumsum(shares(model, b.shape[0], len(names)))[:-1]
        for name, part in zip(names, np.split(b, cuts), strict=True):
            for half, array in ((_A, a), (_B, part)):
                array = array.astype(dtype)
                arrays[_BEFORE + name + half] = Source(Spec(array.shape, dtype), partial(np.asarray, array))
    write_arrays(folder / WEIGHTS, arrays, {"format": "pt"})
    settings = {name: known[0] for name, known in _FIXED.items()} | {
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank * scale,
        "lora_dropout": next(iter(found.values())).drop.rate,
        "fan_in_fan_out": any(form.parts(f"{own}.weight")[1] for own in found),
        "target_modules": [name for own in found for name in _names(form, own)],
    }
    write_whole(folder / CONFIG, json.dumps(settings, indent=2).encode())  # last: without it nothing is loaded


def _format(op: str, model: LanguageModel) -> Format:
    form = WRITTEN["huggingface"].get(type(model))
    if form is None:
        raise ValueError(f"{op}: model is {type(model).__name__}; it must be a GPTModel or a LlamaModel")
    return form


def _names(form: Format, own: str) -> list[str]:
    """What one of our layers is called, or its parts are."""
    return [name.removesuffix(".weight") for name in form.parts(f"{own}.weight")[0]]


def _numbers(settings: Mapping[str, Any]) -> tuple[int, float, float]:
    """The rank, how often adapters count, and their rate of dropout."""
    for name, known in _FIXED.items():
        if settings.get(name, known[0]) not in known:
            raise ValueError(f"its {name} is {settings[name]!r}; polyarr's adapters have {known[0]!r}")
    rank, alpha, dropout = (settings.get(name) for name in ("r", "lora_alpha", "lora_dropout"))
    dropout = 0.0 if dropout is None else dropout
    for name, value, fits, due in (
        ("r", rank, type(rank) is int and rank > 0, "a positive integer"),
        ("lora_alpha", alpha, type(alpha) in (int, float) and 0 < alpha < math.inf, "a positive number"),
        ("lora_dropout", dropout, type(dropout) in (int, float) and 0 <= dropout < 1, "from 0 to below 1"),
    ):
        if not fits:
            raise ValueError(f"its {name} is {value!r}; it must be {due}")
    return rank, alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank), dropout


def _joined(
    model: LanguageModel, layer: Linear, names: list[str], rank: int, tensors: Tensors
) -> tuple[np.ndarray, np.ndarray]:
    """One adapter (R, in), (out, R) that does what those of a layer's parts do; of one part its own."""
    rows, columns = layer.weight.shape
    found = []
    for number, (name, size) in enumerate(zip(names, shares(model, rows, len(names)), strict=True)):
        if name + _A not in tensors and name + _B not in tensors:
            continue
        a, b = _checked(name + _A, [rank, columns], tensors), _checked(name + _B, [size, rank], tensors)
        found.append((number, a, b))
    if all(np.array_equal(a, found[0][1]) for _, a, _ in found):  # as we write them
        a = found[0][1]
        places = {number: b for number, _, b in found}
    else:
        a = np.concatenate([a for _, a, _ in found])
        last = len(found) - 1
        places = {n: np.pad(b, ((0, 0), (rank * i, rank * (last - i)))) for i, (n, _, b) in enumerate(found)}
    empty = (np.zeros((size, a.shape[0]), a.dtype) for size in shares(model, rows, len(names)))
    return a, np.concatenate([places.get(number, none) for number, none in enumerate(empty)])


def _checked(name: str, shape: list[int], tensors: Tensors) -> np.ndarray:
    if name not in tensors:
        raise ValueError(f"missing {name}")
    held = tensors[name]
    if held.shape != shape:
        raise ValueError(f"{name} is {held.shape} and must be {shape}")
    if held.dtype not in DTYPES:
        raise ValueError(f"{name} is of {held.dtype} and must be of {', '.join(DTYPES)}")
    found = held.read()
    if not np.isfinite(found).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return found
