"""Options and functions of commands that load a run or a pretrained model."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from polyarr.cli.values import FileName
from polyarr.models.decoder import LanguageModel
from polyarr.models.folders import CONFIG, no_such
from polyarr.nn import merge_lora
from polyarr.nn.quantized_linear import KINDS
from polyarr.saving.gguf_file import is_gguf
from polyarr.text import Tokenizer
from polyarr.training import Recipe, load_checkpoint
from polyarr.training.files import CHECKPOINTS
from polyarr.training.pretrained import TUNED, base_of, fine_tuning, load_model
from polyarr.training.recipes import COMPUTED


class RunStart(NamedTuple):
    """Start of a run: its name and recipe, and the model, tokenizer and base that it begins with, if it is not new."""

    preset: str
    recipe: Recipe
    model: LanguageModel | None = None
    tokenizer: Tokenizer | None = None
    base: str | None = None


F = TypeVar("F", bound=Callable[..., Any])


def adding(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds options to a command."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


# Options of a run that begins with given weights.
starting_options = adding(
    click.option(
        "--from", "source", type=FileName(),
        help="Begin with the weights and the tokenizer of a run, a Hugging Face folder, a safetensors file or a GGUF "
        "file, which is not changed.",
    ),
    click.option(
        "--lora", "rank", metavar="RANK", type=click.IntRange(min=1),
        help="Train only low-rank adapters (LoRA) of some layers.",
    ),
    click.option(
        "--lora-match", "match", metavar="PATTERN",
        help="Layers with adapters, such as ff.* or att.[qv].  [default: att.*]",
    ),
    click.option("--lora-alpha", "alpha", type=float, help="Scale adapters by ALPHA / RANK.  [default: RANK]"),
)
dtype_option = click.option(
    "--dtype", type=click.Choice(COMPUTED),
    help="Convert the weights to this dtype, and compute in it.  [default: the dtype of the weights]",
)
# Options of a model that is loaded.
model_options = adding(
    click.option(
        "--weights", type=click.Choice(KINDS),
        help="Quantize the weights: faster if memory bandwidth is the limit.  [default: as they are]",
    ),
    dtype_option,
    click.option("--backend", help="Backend, such as opencl:0.  [default: $POLYARR_BACKEND, or opencl]"),
    click.option(
        "--checkpoint", type=click.Choice(CHECKPOINTS), default="best", show_default=True, help="Checkpoint to load."
    ),
)


def with_adapters(changes: dict[str, Any], rank: int | None, match: str | None, alpha: float | None) -> dict[str, Any]:
    """Return the changes of a recipe, with those of the options for adapters."""
    named = {"rank": rank, "match": match, "alpha": alpha}
    given, own = {name: value for name, value in named.items() if value is not None}, changes.get("lora")
    return {**changes, "lora": {**(own if isinstance(own, dict) else {}), **given}} if given else changes


def start(source: Path, changes: dict[str, Any]) -> RunStart:
    """Return the start of a run with the model at a path, on the current backend."""
    model, tokenizer = load_model(source)
    return RunStart(TUNED, fine_tuning(model, **changes), model, tokenizer, base_of(source))


def check_exists(*paths: Path | None) -> None:
    """Raise FileNotFoundError for the first path of a model that is not there, before a backend starts."""
    for path in paths:
        if path is not None and not path.exists():
            raise no_such(path)


def loaded(
    path: Path, checkpoint: str, dtype: str | None, weights: str | None = None
) -> tuple[LanguageModel, Tokenizer]:
    """Return the model and the tokenizer of a run, a folder with a config.json or a GGUF file.

    Args:
        path: The run, folder or file.
        checkpoint: Checkpoint of a run.
        dtype: Dtype of the weights; None: their own.
        weights: How linear layers are quantized; None: as they are. Adapters are merged.
    """
    if is_gguf(path) or os.path.lexists((path if path.is_dir() else path.parent) / CONFIG):
        model, tokenizer = load_model(path, checkpoint, dtype=dtype)
    else:
        model, tokenizer, *_ = load_checkpoint(path, checkpoint, dtype=dtype)
    model = model.quantized(weights) if weights else merge_lora(model)  # frees what was loaded
    return model, tokenizer
