"""Import of pretrained models as runs without steps, and export of runs to other programs."""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from polyarr.atomic import alone_in, write_whole
from polyarr.core.current import use_backend
from polyarr.core.spec import shown
from polyarr.models.adapters import load_adapters, save_adapters
from polyarr.models.decoder import LanguageModel
from polyarr.models.families import settings_of
from polyarr.models.gguf import save_gguf
from polyarr.models.pretrained import load_pretrained, save_pretrained
from polyarr.nn import merge_lora
from polyarr.saving.gguf_file import is_gguf
from polyarr.text import NumberTokenizer, SubwordTokenizer, Tokenizer, load_tokenizer
from polyarr.text.special import special_tokens_of
from polyarr.text.tokenizer import has_tokenizer
from polyarr.training.checkpoint import Checkpoint, load_checkpoint, path_of, read_info, save_checkpoint
from polyarr.training.files import CHECKPOINTS, check_free, remove_left_overs
from polyarr.training.recipes import Recipe
from polyarr.training.run import Run, checkpoint_of, with_shorter_context

# Defaults for fine-tuning, with a small learning rate.
FINE_TUNING: Mapping[str, Any] = MappingProxyType(
    {
        "batch_size": 4,
        "steps": 1000,
        "lr": 5e-5,
        "min_lr": 5e-6,
        "warmup": 100,
        "eval_every": 250,
        "betas": (0.9, 0.95),
        "eval_windows": 64,
    }
)
LORA_RATE = 2e-4  # learning rate of adapters, which tolerate larger steps
ADAPTERS, GGUF = "peft", "gguf"  # formats of an export: adapters alone, and a file for llama.cpp
PRESET, TUNED = "pretrained", "fine-tuning"
NO_TEXT = hashlib.sha256().hexdigest()  # digest of a corpus without texts
_TOKENIZER, _ITS_SETTINGS, _GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
_SENTENCEPIECE = "tokenizer.model"


def import_model(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    context_length: int | None = None,
    tokenizer: Tokenizer | None = None,
    adapters: str | os.PathLike[str] | None = None,
    dtype: Any = None,
    keep_quantized: bool = False,
    overwrite: bool = False,
) -> Checkpoint:
    """Save a pretrained model into a folder as a run without steps; computed on the host.

    Args:
        path: Folder or file that `load_pretrained` reads.
        folder: Folder of the run.
        context_length: New, shorter context of the model; a RuntimeWarning says what is lost. None: the model's own.
        tokenizer: The tokenizer; None: the one beside the model, or, without one, texts are the numbers of tokens.
        adapters: Folder of adapters that `load_adapters` reads, to be merged into the weights; None: none.
        dtype: Dtype of the parameters; None: the file's, as in `load_pretrained`.
        keep_quantized: Whether quantized matrices of a GGUF file, AWQ, GPTQ or MXFP4 stay so, as in `load_pretrained`.
        overwrite: Whether to replace a run in the folder.

    Returns:
        The checkpoint that was saved.

    Raises:
        OSError: A file cannot be read or written, or the folder holds a run and `overwrite` is False.
        PretrainedError: The files of the model or the adapters are damaged or not supported.
        ValueError: The tokenizer is damaged or has tokens that the model lacks, or the context is longer than the
            model's.
    """
    path, folder = Path(path), Path(folder)
    if not overwrite:
        check_free(folder)
    with use_backend("numpy"):  # arrays are only copied, so they need no device
        model = load_pretrained(path, dtype=dtype, keep_quantized=keep_quantized)
        if adapters is not None:
            model = merge_lora(load_adapters(adapters, model))
        if context_length is not None:
            model = with_shorter_context(model, context_length)
        tokenizer = _tokenizer_of(path, model.config.vocab_size, tokenizer)
        recipe = fine_tuning(model)
        recipe.config(tokenizer.vocab_size)  # raises if the tokenizer has more tokens than the model
        none = np.zeros(0, np.int32)
        base = _folder_of(path) if adapters is None else None  # merged weights exist in no other folder
        run = Run(recipe, tokenizer, none, none, 0, model, {"step": 0}, PRESET, None, NO_TEXT, base)
        saved = checkpoint_of(run, None)
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder, "training"):
            if not overwrite:  # again: another process may have written one since
                check_free(folder)
            remove_left_overs(folder)
            save_checkpoint(folder, "best", saved)
    return saved


def fine_tuning(model: LanguageModel, /, **changes: Any) -> Recipe:
    """Return the default recipe for fine-tuning a model, with changes as in Recipe.changed, and with its errors."""
    recipe = Recipe(settings_of(model.config), **FINE_TUNING)
    return recipe.changed(**({"lr": LORA_RATE} if changes.get("lora") is not None else {}) | changes)


def load_model(
    path: str | os.PathLike[str], name: str = "best", *, dtype: Any = None
) -> tuple[LanguageModel, Tokenizer]:
    """Return a model in evaluation mode, and its tokenizer: a run's, with merged adapters, or a pretrained one.

    Args:
        path: Folder of a run, or folder or file that `load_pretrained` reads.
        name: Name of the checkpoint.
        dtype: Dtype of the parameters; None: the file's, as in `load_pretrained`.

    Raises:
        OSError: A file cannot be read.
        CheckpointError: The checkpoint is damaged.
        PretrainedError: The pretrained model is damaged or not supported.
        ValueError: The tokenizer is damaged.
    """
    path = Path(path)
    if any(path_of(path, name).exists() for name in CHECKPOINTS):
        saved = load_checkpoint(path, name, dtype=dtype)
        return merge_lora(saved.model).eval(), saved.tokenizer
    model = load_pretrained(path, dtype=dtype)
    return model, _tokenizer_of(path, model.config.vocab_size)


def base_of(path: str | os.PathLike[str], name: str = "best") -> str:
    """Return the folder of the weights that `load_model` loads; for an imported run without steps, its origin.

    Raises:
        OSError: The checkpoint cannot be read.
        ValueError: The checkpoint is damaged.
    """
    path = Path(path)
    if path_of(path, name).is_file():
        info = read_info(path_of(path, name))
        if info["step"] == 0 and info.get("base"):
            return info["base"]
    return _folder_of(path)


def _folder_of(path: Path) -> str:
    return str((path if path.is_dir() or is_gguf(path) else path.parent).resolve())


def _tokenizer_of(path: Path, vocab_size: int, given: Tokenizer | None = None) -> Tokenizer:
    """Return the given tokenizer, or the one beside a model, with the end tokens that the model's own settings name."""
    if is_gguf(path):
        return given or _gguf_tokenizer(path, vocab_size)
    folder = path if path.is_dir() else path.parent
    try:
        return (given or load_tokenizer(folder)).with_special(special_tokens_of(folder))
    except FileNotFoundError as error:
        if has_tokenizer(folder):
            raise
        if (folder / _SENTENCEPIECE).exists():
            warnings.warn(f"{error}; until then texts are the numbers of tokens", stacklevel=2)
        return NumberTokenizer(vocab_size, special_tokens_of(folder))


def _gguf_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """Return the tokenizer in a GGUF file, or the numbers of tokens if it has none."""
    try:
        return load_tokenizer(path)
    except FileNotFoundError:
        return NumberTokenizer(vocab_size)


def export_model(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    name: str = "best",
    format: str = "huggingface",
    dtype: Any = None,
    base: str | None = None,
    gguf_type: str | None = None,
) -> Checkpoint:
    """Write the model of a run's checkpoint and its tokenizer for other programs.

    Args:
        folder: Folder of the run.
        path: Folder for the model, which must not hold one; for "gguf", the file, which must not exist.
        name: Name of the checkpoint.
        format: "huggingface" or "tutorial" as in `save_pretrained`, or "gguf" as in `save_gguf`, with adapters merged;
            "peft" for adapters alone, as in `save_adapters`.
        dtype: Dtype of the written weights; None: the run's, and float32 for "peft".
        base: For "peft", path or hub name of the base model; None: the one that the run states.
        gguf_type: For "gguf", type of the written matrices; None: the run's dtype.

    Returns:
        The checkpoint; its adapters are merged if they are in the file.

    Raises:
        OSError: The checkpoint cannot be read, or the folder holds a model or cannot be written to.
        CheckpointError: The checkpoint is damaged.
        ValueError: The format has no such model or tokenizer, or no such option, or a number is not finite in `dtype`.
    """
    options = {"dtype": (dtype, format != GGUF), "base": (base, format == ADAPTERS)}
    for option, (value, is_used) in {**options, "gguf_type": (gguf_type, format == GGUF)}.items():
        if value is not None and not is_used:
            raise ValueError(f"export_model: {option} is {shown(value)}, which the format {format!r} does not have")
    with use_backend("numpy"):
        saved = load_checkpoint(Path(folder), name)
        if format == ADAPTERS:
            save_adapters(path, saved.model, dtype=dtype or "float32", base=base or saved.info.get("base"))
            return saved
        saved = saved._replace(model=merge_lora(saved.model))
        if format == GGUF:
            save_gguf(path, saved.model, type=gguf_type, tokenizer=saved.tokenizer)
            return saved
        special = special_tokens(saved.tokenizer)
        save_pretrained(path, saved.model, format=format, dtype=dtype, special_tokens=special)
    _write_tokenizer(Path(path), saved.tokenizer, special)
    return saved


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, special: dict[str, Any]) -> None:
    """Write a tokenizer and the special tokens of its model in Hugging Face's files; a NumberTokenizer has no file."""
    if special:
        write_whole(folder / _GENERATION, json.dumps(special).encode())
    if isinstance(tokenizer, NumberTokenizer):
        return
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if tokenizer.chat:
        settings |= {**tokenizer.chat.tokens, "chat_template": tokenizer.chat.source}
    settings |= tokenizer.special.names
    if tokenizer.end is not None:
        settings["eos_token"] = tokenizer.token(tokenizer.end)
    write_whole(folder / _TOKENIZER, tokenizer.to_json().encode())
    write_whole(folder / _ITS_SETTINGS, json.dumps(settings).encode())


def special_tokens(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the ids of the tokens that begin and end a text, as config.json and generation_config.json name them."""
    bos, ends = tokenizer.special.bos, tokenizer.ends
    if bos is None and isinstance(tokenizer, SubwordTokenizer):
        named = {**(tokenizer.chat.tokens if tokenizer.chat else {}), **tokenizer.special.names}
        bos = tokenizer.number(named.get("bos_token", ""))
    found = {"bos_token_id": bos, "eos_token_id": list(ends) if len(ends) > 1 else next(iter(ends), None)}
    return {name: number for name, number in found.items() if number is not None}
