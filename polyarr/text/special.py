"""Special tokens that the files of a model name: the token that begins a text, and those that end one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from polyarr.files import read_regular
from polyarr.schema import in_one_line

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MODEL_FILES = ("generation_config.json", "config.json")  # bos_token_id is taken from the first that has it
_MAX_JSON = 2**27  # bytes
_MAX_IDS = 1000  # of bos and eos


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens that tokenizer_config.json, generation_config.json and config.json name.

    Args:
        names: Texts of special tokens, by names such as bos_token.
        bos: Id of the token that begins a text (bos_token_id), or None.
        eos: Ids of all tokens that end a text (eos_token_id); repetitions are dropped.

    Raises:
        ValueError: A name is unknown, its token is not text, or an id is not an int of at least 0.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    bos: int | None = None
    eos: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(name in NAMES and isinstance(token, str) for name, token in self.names.items()):
            raise ValueError(f"SpecialTokens: names must be texts, by {', '.join(NAMES)}")
        ids = [*self.eos, *([] if self.bos is None else [self.bos])]
        if not all(type(number) is int and 0 <= number < 2**31 for number in ids) or len({*ids}) > _MAX_IDS:
            raise ValueError(f"SpecialTokens: bos and eos must be ids of tokens, at most {_MAX_IDS:,} different ones")
        object.__setattr__(self, "eos", tuple(dict.fromkeys(self.eos)))

    @classmethod
    def of(cls, tokenizer_config: Mapping[str, Any], *model_configs: Mapping[str, Any]) -> Self:
        """Return the special tokens of a tokenizer_config.json, a generation_config.json and a config.json.

        Raises:
            ValueError: An eos_token_id or bos_token_id is neither an int, a list of ints nor null.
        """
        names = {name: token for name in NAMES if (token := token_text(tokenizer_config.get(name))) is not None}
        bos = [number for config in model_configs for number in _numbers(config, "bos_token_id")]
        eos = [number for config in model_configs for number in _numbers(config, "eos_token_id")]
        return cls(names, bos[0] if bos else None, tuple(eos))

    def union(self, other: "SpecialTokens") -> "SpecialTokens":
        """Return these special tokens, completed by those of `other`; eos has the ids of both."""
        bos = other.bos if self.bos is None else self.bos
        return SpecialTokens({**other.names, **self.names}, bos, self.eos + other.eos)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold and `from_dict` takes; empty if no special token is known."""
        found = {"names": dict(self.names), "bos": self.bos, "eos": list(self.eos)}
        return {name: value for name, value in found.items() if value not in ({}, None, [])}

    @classmethod
    def from_dict(cls, saved: Any) -> Self:
        """Return the special tokens that `to_dict` described.

        Raises:
            ValueError: `saved` is anything else.
        """
        if not isinstance(saved, dict) or saved.keys() - {"names", "bos", "eos"}:
            raise ValueError("SpecialTokens: this is not a dict of special tokens")
        names, bos, eos = saved.get("names", {}), saved.get("bos"), saved.get("eos", [])
        if not isinstance(names, dict) or not isinstance(eos, list):
            raise ValueError("SpecialTokens: names must be a dict, eos a list")
        return cls(names, bos, tuple(eos))


def special_tokens_of(folder: Path) -> SpecialTokens:
    """Return the bos and eos that generation_config.json and config.json in a folder name, as far as they exist.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is damaged.
    """
    return SpecialTokens.of({}, *(read_settings(folder / name) for name in _MODEL_FILES))


def read_settings(path: Path) -> dict[str, Any]:
    """Return the dict in a JSON file beside a model or tokenizer; an empty one if the file is missing or has no dict.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is damaged.
    """
    try:
        found = json.loads(read_regular(path, _MAX_JSON))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} beside it is damaged: {in_one_line(error)}") from error
    return found if isinstance(found, dict) else {}


def token_text(token: Any) -> str | None:
    """Return the text of a token in a tokenizer_config.json, where it is a text or a dict with one, or None."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _numbers(config: Mapping[str, Any], name: str) -> list[int]:
    """Return the ids in a setting: an int, a list of ints, or null. Negative ids, which some files have, mean none."""
    found = config.get(name)
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(number) is int for number in ids):
        raise ValueError(f"its {name} is {in_one_line(repr(found))[:100]}; it must be an int or a list of ints")
    return [number for number in ids if 0 <= number < 2**31]
