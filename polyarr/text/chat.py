"""Chat templates: how a conversation is written as one text, in Jinja, as Hugging Face's tokenizers have it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Self

from polyarr.extras import extra
from polyarr.schema import in_one_line

MAX_TEMPLATE = 1_000_000  # characters; those of models have a few thousand
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and the special tokens that it names. It is only parsed where a conversation is written.

    source  the template: it gets messages, add_generation_prompt and the tokens
    tokens  how the special tokens are written, by names such as bos_token

    Errors:  ValueError for a template of a million characters
    """

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.source) > MAX_TEMPLATE:
            raise ValueError(f"a chat template of {len(self.source):,} characters; there may be {MAX_TEMPLATE:,}")

    @classmethod
    def of(cls, source: Any, config: Mapping[str, Any]) -> Self | None:
        """The template, if there is one, that a file of its own, or else a tokenizer_config.json has."""
        found = source or config.get("chat_template")
        if isinstance(found, list):  # several with names
            named = {one["name"]: one.get("template") for one in found if isinstance(one, dict) and "name" in one}
            found = named.get("default")
        if not isinstance(found, str) or not found:
            return None
        tokens = {name: written(config.get(name)) for name in _TOKENS}
        return cls(found, {name: token for name, token in tokens.items() if token is not None})

    def write(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a conversation up to where the next answer begins.

        Errors:  ValueError for what the template refuses, or if it is damaged; RuntimeError without the library jinja2
        """
        extra("jinja2", "serve")
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self.tokens)
        except Exception as error:  # it is a program, which may fail in any way
            raise ValueError(f"chat template: {in_one_line(error) or type(error).__name__}") from error

    def to_dict(self) -> dict[str, Any]:
        """What from_dict takes, and JSON can hold."""
        return {"template": self.source, "tokens": dict(self.tokens)}

    @classmethod
    def from_dict(cls, saved: Any) -> Self:
        """The template that to_dict described.

        Errors:  ValueError for anything else
        """
        is_known = isinstance(saved, dict) and saved.keys() == {"template", "tokens"}
        if not is_known or not isinstance(saved["template"], str) or not isinstance(saved["tokens"], dict):
            raise ValueError("ChatTemplate: this is not a chat template's dict")
        if not all(name in _TOKENS and isinstance(token, str) for name, token in saved["tokens"].items()):
            raise ValueError(f"ChatTemplate: its tokens must be texts, of the names {', '.join(_TOKENS)}")
        return cls(saved["template"], saved["tokens"])

    @cached_property
    def _template(self) -> Any:
        """It came with a model, so it is a stranger's program: it reaches nothing but what it is given."""
        sandbox = extra("jinja2.sandbox", "serve").ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        # What templates of Hugging Face may use besides Jinja's own.
        sandbox.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
        sandbox.globals["raise_exception"] = _refuse
        sandbox.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return sandbox.from_string(self.source)


def written(token: Any) -> str | None:
    """How a token of a tokenizer_config.json is written: there it is a text, or a dict with one."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _refuse(reason: str) -> None:
    raise ValueError(reason)
