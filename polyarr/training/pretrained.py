"""Models from elsewhere as runs that have not begun, and runs as models for others."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from polyarr.core.current import use_backend
from polyarr.models.adapters import load_adapters, save_adapters
from polyarr.models.decoder import LanguageModel
from polyarr.models.families import settings_of
from polyarr.models.pretrained import load_pretrained, save_pretrained
from polyarr.nn import merge_lora
from polyarr.saving import alone_in, write_whole
from polyarr.text import NumberTokenizer, SubwordTokenizer, Tokenizer, load_tokenizer
from polyarr.training.checkpoint import Checkpoint, load_checkpoint, path_of, save_checkpoint
from polyarr.training.files import CHECKPOINTS, RUN_FILES
from polyarr.training.recipes import Recipe
from polyarr.training.run import Run, checkpoint_of

# How such a model is trained where nobody says otherwise: gently.
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
LORA_RATE = 2e-4  # for adapters, which take larger steps
ADAPTERS = "peft"  # a format that a run is exported in
PRESET, TUNED = "pretrained", "fine-tuning"
NO_TEXT = hashlib.sha256().hexdigest()  # the digest of a corpus without texts
_TOKENIZER, _ITS_SETTINGS = "tokenizer.json", "tokenizer_config.json"


def import_model(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    context_length: int | None = None,
    tokenizer: Tokenizer | None = None,
    adapters: str | os.PathLike | None = None,
    overwrite: bool = False,
) -> Checkpoint:
    """Save the model that load_pretrained reads at path in a folder, as a run that has not begun; on the host.

    context_length  the longest text, if it is to be shorter than the model's: training takes texts as long as that
    tokenizer       None: the one beside the model; where there is none, texts are the numbers of tokens
    adapters        a folder that load_adapters reads, whose adapters are added to the weights

    Errors:  as load_pretrained, load_adapters and load_tokenizer; ValueError if the tokenizer has tokens that the model
             lacks, or for a context that is longer than its own; OSError if the folder holds a run, unless overwrite
    """
    path, folder = Path(path), Path(folder)
    if not overwrite and any((folder / name).exists() for name in RUN_FILES):
        raise FileExistsError(f"{folder}: it holds a run already; give another folder, or overwrite it")
    with use_backend("numpy"):  # nothing is computed
        model = load_pretrained(path)
        if adapters is not None:
            model = merge_lora(load_adapters(adapters, model))
        if context_length is not None:
            model = model.with_context(context_length)
        tokenizer = tokenizer or _tokenizer_beside(path, model.config.vocab_size)
        recipe = fine_tuning(model)
        recipe.config(tokenizer.vocab_size)  # raises for one that is too large
        none = np.zeros(0, np.int32)
        run = Run(recipe, tokenizer, none, none, 0, model, {"step": 0}, PRESET, None, NO_TEXT)
        saved = checkpoint_of(run, None)
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder, "training"):
            save_checkpoint(folder, "best", saved)
    return saved


def fine_tuning(model: LanguageModel, /, **changes: Any) -> Recipe:
    """How a model is trained further where nobody says otherwise; changes as Recipe.changed takes them.

    Errors:  as Recipe.changed
    """
    recipe = Recipe(settings_of(model.config), **FINE_TUNING)
    return recipe.changed(**({"lr": LORA_RATE} if changes.get("lora") is not None else {}) | changes)


def load_model(path: str | os.PathLike[str], name: str = "best") -> tuple[LanguageModel, Tokenizer]:
    """The model at a path and its tokenizer: a run's checkpoint, its adapters merged, or what load_pretrained reads.

    Errors:  as load_checkpoint, or as load_pretrained and load_tokenizer
    """
    path = Path(path)
    if any(path_of(path, name).exists() for name in CHECKPOINTS):
        saved = load_checkpoint(path, name)
        return merge_lora(saved.model), saved.tokenizer
    model = load_pretrained(path)
    return model, _tokenizer_beside(path, model.config.vocab_size)


def _tokenizer_beside(path: Path, vocab_size: int) -> Tokenizer:
    try:
        return load_tokenizer(path if path.is_dir() else path.parent)
    except FileNotFoundError:
        return NumberTokenizer(vocab_size)


def export_model(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    name: str = "best",
    format: str = "huggingface",
    dtype: Any = "float32",
) -> Checkpoint:
    """Write the model of a run's checkpoint as save_pretrained does, with its tokenizer if others can read that.

    Adapters are merged, in what is returned as well; the format "peft" is the adapters alone, as save_adapters has it.

    Errors:  as load_checkpoint and save_pretrained, or save_adapters
    """
    with use_backend("numpy"):
        saved = load_checkpoint(Path(folder), name)
        if format == ADAPTERS:
            save_adapters(path, saved.model, dtype=dtype)
            return saved
        saved = saved._replace(model=merge_lora(saved.model))
        special = special_tokens(saved.tokenizer)
        save_pretrained(path, saved.model, format=format, dtype=dtype, special_tokens=special)
    if isinstance(saved.tokenizer, SubwordTokenizer):
        end = {"eos_token": name} if (name := saved.tokenizer.to_dict()["end"]) else {}
        chat = saved.tokenizer.chat
        written = {**chat.tokens, "chat_template": chat.source} if chat else {}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **written, **end}
        write_whole(Path(path) / _TOKENIZER, saved.tokenizer.to_json().encode())
        write_whole(Path(path) / _ITS_SETTINGS, json.dumps(settings).encode())
    return saved


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The numbers of the tokens that begin and end a text, as config.json names them."""
    if not isinstance(tokenizer, SubwordTokenizer):
        return {}
    begins = tokenizer.number(tokenizer.chat.tokens.get("bos_token", "")) if tokenizer.chat else None
    found = {"bos_token_id": begins, "eos_token_id": tokenizer.end}
    return {name: number for name, number in found.items() if number is not None}
