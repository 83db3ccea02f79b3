"""Families of language models by name, and their configurations as JSON settings."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from polyarr.models.decoder import Config, LanguageModel
from polyarr.models.gpt import GPTConfig, GPTModel
from polyarr.models.llama import LlamaConfig, LlamaModel

GPT = "gpt"  # the family of settings that name none
FAMILIES: dict[str, tuple[type[Config], Callable[[Any], LanguageModel]]] = {
    GPT: (GPTConfig, GPTModel),
    "llama": (LlamaConfig, LlamaModel),
}


def config_of(settings: Mapping[str, Any]) -> Config:
    """Return the configuration that settings describe: its fields, and "family", which is "gpt" if it is left out.

    Raises:
        ValueError: The family is unknown, or the fields are invalid.
    """
    family = settings.get("family", GPT)
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(f"config_of: family is {family!r}; it must be one of {', '.join(FAMILIES)}")
    return FAMILIES[family][0].of({name: value for name, value in settings.items() if name != "family"})


def settings_of(config: Config) -> dict[str, Any]:
    """Return the settings of a configuration, which JSON can hold and `config_of` takes."""
    (family,) = (name for name, (kind, _) in FAMILIES.items() if type(config) is kind)
    return {"family": family, **asdict(config)}


def new_model(config: Config) -> LanguageModel:
    """Return a model with the given configuration and newly initialized weights."""
    (model,) = (model for kind, model in FAMILIES.values() if type(config) is kind)
    return model(config)
