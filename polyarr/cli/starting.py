"""What commands begin with: a run, or a model from elsewhere; and the options of `polyarr train --from`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from polyarr.models.decoder import LanguageModel
from polyarr.models.folders import CONFIG
from polyarr.text import Tokenizer
from polyarr.training import Recipe, load_checkpoint
from polyarr.training.pretrained import TUNED, fine_tuning, load_model


class Beginning(NamedTuple):
    """What a run is called, how it is trained, and what it begins with, if that is not new."""

    preset: str
    recipe: Recipe
    model: LanguageModel | None = None
    tokenizer: Tokenizer | None = None


F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    click.option(
        "--from", "source", type=click.Path(path_type=Path),
        help="Begin with the weights and the tokenizer of a run, a Hugging Face folder or a safetensors file, which "
        "stays as it is.",
    ),
    click.option(
        "--lora", "rank", metavar="RANK", type=click.IntRange(min=1),
        help="Train low-rank adapters beside some layers, and nothing else.",
    ),
    click.option("--lora-match", "match", metavar="PATTERN", help="Beside which layers.  [default: att.*]"),
    click.option("--lora-alpha", "alpha", type=float, help="They count ALPHA / RANK times.  [default: RANK]"),
)


def starting_options(command: F) -> F:
    """The options of a run that begins with given weights."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def with_adapters(changes: dict[str, Any], rank: int | None, match: str | None, alpha: float | None) -> dict[str, Any]:
    """The changes of a recipe with what these options say of adapters."""
    named = {"rank": rank, "match": match, "alpha": alpha}
    given, own = {name: value for name, value in named.items() if value is not None}, changes.get("lora")
    return {**changes, "lora": {**(own if isinstance(own, dict) else {}), **given}} if given else changes


def start(source: Path, changes: dict[str, Any]) -> Beginning:
    """A run that begins with the model at a path, on the current backend."""
    model, tokenizer = load_model(source)
    return Beginning(TUNED, fine_tuning(model, **changes), model, tokenizer)


def loaded(path: Path, checkpoint: str) -> tuple[LanguageModel, Tokenizer]:
    """The model and the tokenizer of a run, or of what has a config.json: a model from elsewhere, as it lies there."""
    if ((path if path.is_dir() else path.parent) / CONFIG).is_file():
        return load_model(path, checkpoint)
    model, tokenizer, *_ = load_checkpoint(path, checkpoint)
    return model, tokenizer
