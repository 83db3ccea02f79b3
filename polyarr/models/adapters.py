"""Low-rank adapters (LoRA) in PEFT's files, read and written: adapter_config.json and adapter_model.safetensors."""

import errno
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from polyarr import creation
from polyarr.atomic import write_whole
from polyarr.core.spec import Spec, as_dtype
from polyarr.models.decoder import LanguageModel
from polyarr.models.folders import CONFIG as MODEL_CONFIG
from polyarr.models.folders import hint_of_others, read_json
from polyarr.models.formats import Format, Layer, fitting_formats, format_of
from polyarr.models.pretrained import DTYPES, Tensors, bounds_of, errors_with_path, listed, open_tensors, rows_of_parts
from polyarr.nn import GroupedLinear, Linear, LoRALinear, QuantizedLinear
from polyarr.nn.lora import linear_layers, replaced
from polyarr.saving.tensor_file import Source, finite, write_arrays

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_BEFORE, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"  # prefix and suffixes of a layer's name
Adaptable = Linear | GroupedLinear | QuantizedLinear
_FIXED: dict[str, tuple[Any, ...]] = {  # settings that polyarr supports; the first value is the one it writes
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": (None, []),
}


def load_adapters(path: str | os.PathLike[str], model: LanguageModel) -> LanguageModel:
    """Return a copy of a model with the LoRA adapters that PEFT saved in a folder.

    The weights of the copy are frozen and its adapters are trainable, as `nn.lora` makes them. PEFT has separate
    adapters for the queries, keys and values of a Llama, which are one layer in polyarr. The copy keeps them separate
    too, unless all three have the same first matrix, which is how adapters of the whole layer are saved. An adapter of
    two of polyarr's layers, such as the gate_up_proj of Phi-3 and of the experts of gpt-oss, becomes two adapters. PEFT
    lists adapters of those experts as target_parameters.

    Args:
        path: Folder with adapter_config.json and adapter_model.safetensors.
        model: The base model: a GPTModel or a LlamaModel without adapters. It is not changed.

    Returns:
        A model of the type of `model`.

    Raises:
        OSError: A file cannot be read.
        PretrainedError: The files are damaged, hold adapters of another kind, or belong to another model; or
            `model` has adapters already.
        ValueError: Hugging Face has no format for `model`.
    """
    path = Path(path)
    forms = _formats("load_adapters", model)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
    with errors_with_path("load_adapters", path):
        settings = read_json(path / CONFIG)
        (rank, scale, dropout), targets = _numbers(settings), _targets(settings)
        if not (path / WEIGHTS).exists():
            raise FileNotFoundError(f"{path}: {WEIGHTS} is not here{hint_of_others(path)}")
        tensors, used = open_tensors(path / WEIGHTS), set[str]()
        places = [_places(form, linear_layers(model), targets) for form in forms]
        form, names_of = next(
            (pair for pair in zip(forms, places, strict=True) if _has_all(pair[1], tensors)), (forms[0], places[0])
        )

        def adapted(own: str, layer: Adaptable | LoRALinear) -> Adaptable | LoRALinear:
            if isinstance(layer, LoRALinear):
                raise ValueError("the model has adapters already; merge_lora puts them into its weights")
            names = [_BEFORE + name for name in names_of[own]]
            given = [name for name in names if name + _A in tensors or name + _B in tensors]
            if not given:
                return layer
            used.update(name + half for name in given for half in (_A, _B))
            a, b, parts = _joined(model, layer, names, form.layer(f"{own}.weight"), rank, tensors)
            found = LoRALinear(layer, rank, scale, dropout, parts)
            found.a, found.b = (creation.asarray(part, dtype=held.dtype) for part, held in ((a, found.a), (b, found.b)))
            return found

        changed = replaced(model.copy().freeze(), adapted)
        if unknown := [name for name in tensors if name not in used]:
            raise ValueError(f"unknown {listed(unknown)}")
        if not used:
            raise ValueError(f"{WEIGHTS} holds no adapter")
    return changed


def save_adapters(
    path: str | os.PathLike[str], model: LanguageModel, *, dtype: Any = "float32", base: str | None = None
) -> None:
    """Write the adapters of a model, without its other weights, into a folder as PEFT loads them.

    Adapters of lower rank than the largest are padded with zeros, since the files have one rank for all. Those of two
    layers that are one in the base model, such as gate and up in Phi-3, become one of the sum of their ranks. Those of
    the experts of gpt-oss are among the target_parameters of the file, which needs PEFT 0.17 and has no dropout.

    Args:
        path: Folder, which is created if it does not exist.
        model: A GPTModel or a LlamaModel with adapters, such as `nn.lora` makes.
        dtype: Dtype of the arrays in the file.
        base: Path or hub name of the base model, for programs that look it up; None: it is not stated. Layers are named
            as in a folder of this path, or as `save_pretrained` names them.

    Raises:
        ValueError: `model` has no adapters, or Hugging Face has no format for it.
        OSError: The folder holds adapters already, or cannot be written to.
    """
    folder, dtype, form = Path(path), as_dtype(dtype), _format_of_base(model, base)
    found = {own: layer for own, layer in linear_layers(model).items() if type(layer) is LoRALinear}
    if not found:
        raise ValueError("save_adapters: the model has no adapters; nn.lora, or train --lora, gives it some")
    folder.mkdir(parents=True, exist_ok=True)
    if any((folder / name).exists() for name in (CONFIG, WEIGHTS)):
        raise FileExistsError(f"{folder}: it holds adapters already; give another folder")
    scale = next(iter(found.values())).scale
    parameters = [own for own in found if form.layer(f"{own}.weight").parameter]
    targets = [*dict.fromkeys(name for own in parameters for name in form.parts(f"{own}.weight")[0])]
    places = _places(form, found, targets)
    inside = {name for own in parameters for name in places[own]}
    halves = _halves(model, form, found, places, scale)
    rank = max(a.shape[-2] for a, _ in halves.values())
    arrays: dict[str, Source] = {}
    for name, (a, b) in halves.items():
        before = ((0, 0),) * (a.ndim - 1)
        a = np.pad(a, (*before[1:], (0, rank - a.shape[-2]), (0, 0)))  # (R, in) or (E, R, in)
        b = np.pad(b, (*before, (0, rank - b.shape[-1])))  # (out, R) or (E, out, R)
        a, b = a.reshape(-1, a.shape[-1]), b.transpose(1, 2, 0).reshape(b.shape[1], -1) if b.ndim > 2 else b
        for half, array in ((_A, a), (_B, b)):
            array = array.astype(dtype)
            arrays[_BEFORE + name + half] = Source(Spec(array.shape, dtype), partial(np.asarray, array))
    write_arrays(folder / WEIGHTS, arrays, {"format": "pt"})
    settings = {name: known[0] for name, known in _FIXED.items()} | {
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank * scale,
        "lora_dropout": 0.0 if parameters else next(iter(found.values())).drop.rate,
        "fan_in_fan_out": any(form.parts(f"{own}.weight")[1] for own in found if own not in parameters),
        "target_modules": [name for name in halves if name not in inside],
    }
    if targets:
        settings["target_parameters"] = targets
    write_whole(folder / CONFIG, json.dumps(settings, indent=2).encode())  # last: a folder without it is not loaded


def _halves(
    model: LanguageModel, form: Format, layers: Mapping[str, LoRALinear], places: Mapping[str, list[str]], scale: float
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return A (R, in) and B (out, R) of each adapter in PEFT's files, by name; of stacked experts with a leading axis.

    Args:
        model: The model.
        form: Format of its layers' names.
        layers: Its layers with adapters, by path.
        places: Their names in PEFT's files.
        scale: Factor of the adapters in the files.
    """
    halves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for own, layer in layers.items():
        theirs = form.layer(f"{own}.weight")
        index, shares = theirs.share
        for name, a, b in _theirs(model, places[own], layer, theirs.stacked):
            rows = np.zeros((*b.shape[:-2], shares * b.shape[-2], b.shape[-1]), b.dtype)  # those of all parts
            start, step = (index, shares) if b.ndim > 2 else (index * len(b), 1)
            rows[..., start : start + step * b.shape[-2] : step, :] = b * (layer.scale / scale)
            halves[name] = _sum(*halves[name], a, rows) if name in halves else (a, rows)
    return halves


def _formats(op: str, model: LanguageModel) -> list[Format]:
    try:
        return fitting_formats(model, "huggingface")
    except ValueError as error:
        raise ValueError(f"{op}: {error}") from None


def _format_of_base(model: LanguageModel, base: str | None) -> Format:
    """Return the format of the base model if it is in a folder and fits, or else the one that models are written in."""
    forms = _formats("save_adapters", model)
    if base is None:
        return forms[0]
    try:
        found = format_of(read_json(Path(base) / MODEL_CONFIG))
    except (OSError, ValueError):  # the base is named for other programs, and need not be here
        return forms[0]
    return found if found in forms else forms[0]


def _has_all(places: Mapping[str, list[str]], tensors: Tensors) -> bool:
    """Return whether all arrays of a file of adapters belong to layers with these names in the file."""
    return tensors.keys() <= {_BEFORE + name + half for names in places.values() for name in names for half in (_A, _B)}


def _places(form: Format, layers: Iterable[str], targets: Collection[str]) -> dict[str, list[str]]:
    """Return the names in PEFT's files of the layers that make up each of polyarr's `layers`.

    An array of experts has a place only if it is among the targets, full names or ends of them. PEFT wraps the module
    once for each of its arrays that is: all but the last are in a "base_layer".
    """
    found = {own: _names(form, own) for own in layers}
    stacked = {own: name for own, (name, *_) in found.items() if form.layer(f"{own}.weight").stacked}
    given = [*dict.fromkeys(n for n in stacked.values() if any(f".{n}".endswith(f".{target}") for target in targets))]
    for own, name in stacked.items():
        module = name.rpartition(".")[0]
        beside = [one for one in given if one.rpartition(".")[0] == module]
        inner = ".base_layer" * (len(beside) - 1 - beside.index(name)) if name in beside else ""
        found[own] = [module + inner] if name in beside else []
    return found


def _sum(a: np.ndarray, b: np.ndarray, other_a: np.ndarray, other_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices of an adapter that adds the products of two; a common first matrix is kept once."""
    if np.array_equal(a, other_a):
        return a, b + other_b
    return np.concatenate([a, other_a], axis=-2), np.concatenate([b, other_b], axis=-1)


def _names(form: Format, own: str) -> list[str]:
    """Return the names that Hugging Face has for one of polyarr's layers: one, or one for each of its parts."""
    return [name.removesuffix(".weight") for name in form.parts(f"{own}.weight")[0]]


def _numbers(settings: Mapping[str, Any]) -> tuple[int, float, float]:
    """Return the rank, the scale and the dropout rate of the adapters."""
    for name, known in _FIXED.items():
        if settings.get(name, known[0]) not in known:
            raise ValueError(f"its {name} is {settings[name]!r}; polyarr's adapters have {known[0]!r}")
    read = cast("Callable[[str], Any]", settings.get)
    rank, alpha, dropout = map(read, ("r", "lora_alpha", "lora_dropout"))
    dropout = 0.0 if dropout is None else dropout
    for name, value, fits, due in (
        ("r", rank, type(rank) is int and rank > 0, "a positive integer"),
        ("lora_alpha", alpha, type(alpha) in (int, float) and 0 < alpha < math.inf, "a positive number"),
        ("lora_dropout", dropout, type(dropout) in (int, float) and 0 <= dropout < 1, "from 0 to below 1"),
    ):
        if not fits:
            raise ValueError(f"its {name} is {value!r}; it must be {due}")
    return rank, alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank), dropout


def _targets(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the arrays of experts that have adapters, or ends of them."""
    found = settings.get("target_parameters") or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"its target_parameters is {found!r}; it must be a list of names")
    return found


def _theirs(
    model: LanguageModel, names: list[str], layer: LoRALinear, is_stacked: bool
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (name, A (R, in), B (rows, R)) for each of the layers that Hugging Face has for one of polyarr's.

    Of stacked experts it has one: A is (E, R, in) and B is (E, rows, R).
    """
    if is_stacked:
        yield names[0], layer.a.numpy(), layer.b.numpy()
        return
    if len(layer.base.shape) != 2:
        yield from zip(names, layer.a.numpy(), layer.b.numpy(), strict=True)
        return
    bounds = bounds_of(rows_of_parts(model, layer.base.shape[0], len(names)))
    a, b, rank = layer.a.numpy(), layer.b.numpy(), layer.b.shape[1]
    if layer.parts and len(names) > 1:
        done = 0
        for number, (start, stop) in enumerate(layer.parts):
            rows = b[done : done + stop - start]
            yield names[bounds.index((start, stop))], a[number * rank : (number + 1) * rank], rows
            done += stop - start
    else:
        whole = layer.whole_b().numpy()
        for name, (start, stop) in zip(names, bounds, strict=True):
            yield name, a, whole[start:stop]


def _joined(
    model: LanguageModel, layer: Adaptable, names: list[str], theirs: Layer, rank: int, tensors: Tensors
) -> tuple[np.ndarray, np.ndarray, tuple[tuple[int, int], ...]]:
    """Return A, B and parts of a LoRALinear, joined from the adapters of a layer's parts; () is one adapter for all."""
    rows, columns = layer.shape[-2:]
    index, shares = theirs.share
    if theirs.stacked:
        (name,), count = names, layer.shape[0]
        a = _checked(name + _A, [count * rank, columns], tensors).reshape(count, rank, columns)
        b = _checked(name + _B, [rows * shares, rank * count], tensors).reshape(rows, shares, rank, count)
        return a, np.ascontiguousarray(b[:, index].transpose(2, 0, 1)), ()
    if len(layer.shape) == 3:
        halves = [(_checked(n + _A, [rank, columns], tensors), _checked(n + _B, [rows, rank], tensors)) for n in names]
        return np.stack([a for a, _ in halves]), np.stack([b for _, b in halves]), ()
    found = {}
    for name, (start, stop) in zip(names, bounds_of(rows_of_parts(model, rows, len(names))), strict=True):
        if name + _A in tensors or name + _B in tensors:
            a = _checked(name + _A, [rank, columns], tensors)
            b = _checked(name + _B, [(stop - start) * shares, rank], tensors)
            found[start, stop] = a, np.split(b, shares)[index]
    matrices = [a for a, _ in found.values()]
    b = np.concatenate([b for _, b in found.values()])
    if len(found) == len(names) and all(np.array_equal(a, matrices[0]) for a in matrices):  # as save_adapters has it
        return matrices[0], b, ()
    return np.concatenate(matrices), b, tuple(found)


def _checked(name: str, shape: list[int], tensors: Tensors) -> np.ndarray:
    if name not in tensors:
        raise ValueError(f"missing {name}")
    held = tensors[name]
    if held.shape != shape:
        raise ValueError(f"{name} is {held.shape} and must be {shape}")
    if held.dtype not in DTYPES:
        raise ValueError(f"{name} is of {held.dtype} and must be of {', '.join(DTYPES)}")
    found = held.read()
    return finite(name, found, found.dtype)
