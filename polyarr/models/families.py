"""The families of language models by name, and configurations of them as what JSON can hold."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from polyarr.models.decoder import Config, LanguageModel
from polyarr.models.gpt import GPTConfig, GPTModel
from polyarr.models.llama import LlamaConfig, LlamaModel

FAMILIES: dict[str, tuple[type[Config], type[LanguageModel]]] = {
    "gpt": (GPTConfig, GPTModel),
    "llama": (LlamaConfig, LlamaModel),
}


def config_of(settings: Mapping[str, Any]) -> Config:
    """The configuration that settings describe: its fields, and its "family", without which it is GPT's.

    Errors:  ValueError for a family that there is not, and as the configuration
    """
    family = settings.get("family", "gpt")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(f"config_of: family is {family!r}; it must be one of {', '.join(FAMILIES)}")
    return FAMILIES[family][0].of({name: value for name, value in settings.items() if name != "family"})


def settings_of(config: Config) -> dict[str, Any]:
    """What config_of takes, and JSON can hold."""
    (family,) = (name for name, (kind, _) in FAMILIES.items() if type(config) is kind)
    return {"family": family, **asdict(config)}


def new_model(config: Config) -> LanguageModel:
    """A model of a configuration, with new weights."""
    (model,) = (model for kind, model in FAMILIES.values() if type(config) is kind)
    return model(config)
