"""File formats of other programs' models: tables of layer names and of settings, used in both directions."""

from collections.abc import Mapping
from typing import Any

from polyarr.models.decoder import LanguageModel
from polyarr.models.formats.gpt import GPT2, TUTORIAL
from polyarr.models.formats.llama import FORMATS
from polyarr.models.formats.tables import Format, Layer, layer
from polyarr.models.gpt import GPTModel
from polyarr.models.llama import LlamaModel

__all__ = [
    "GPT2",
    "READ",
    "TUTORIAL",
    "WRITTEN",
    "Format",
    "Layer",
    "fitting_formats",
    "format_of",
    "layer",
    "written_format",
]

# By the "model_type" of a config.json; the tutorial's settings have none.
READ: dict[str | None, Format] = {"gpt2": GPT2, **{kind: form for kind, form in FORMATS.items()}, None: TUTORIAL}
WRITTEN: dict[str, dict[type[LanguageModel], tuple[Format, ...]]] = {
    "huggingface": {GPTModel: (GPT2,), LlamaModel: tuple(FORMATS.values())},
    "tutorial": {GPTModel: (TUTORIAL,)},
}


def format_of(given: Mapping[str, Any]) -> Format:
    """Return the format of a model whose config.json has this content.

    Raises:
        ValueError: polyarr does not have such a model.
    """
    kind = given.get("model_type")
    if not isinstance(kind, str | None) or kind not in READ or (kind is None and "emb_dim" not in given):
        known = ", ".join(repr(name) for name in READ if name)
        raise ValueError(f"its model_type is {kind!r}; polyarr reads {known}, and the tutorial's settings")
    return READ[kind]


def written_format(model: LanguageModel, name: str) -> Format:
    """Return the format, of those with this name, in which a model is written: the first that has all its settings.

    Raises:
        ValueError: No format of this name has such a model.
    """
    return fitting_formats(model, name)[0]


def fitting_formats(model: LanguageModel, name: str) -> list[Format]:
    """Return the formats, of those with this name, that have a model with all its settings.

    Raises:
        ValueError: There is none.
    """
    formats = WRITTEN.get(name, {}).get(type(model))
    if formats is None:
        known = ", ".join(repr(name) for name, models in WRITTEN.items() if type(model) in models)
        due = f"it must be written as {known}" if known else "it must be one of polyarr's models"
        raise ValueError(f"{type(model).__name__} as {name!r}; {due}")
    found = [form.with_experts(model.config) for form in formats if form.fits(model.config)]
    if not found:
        raise ValueError(f"no model of transformers has all settings of this one, {model.config}")
    return found
