"""Chat templates in Jinja, as Hugging Face's tokenizers have them: they write a conversation as one text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Self

from polyarr.extras import extra
from polyarr.schema import in_one_line
from polyarr.text.special import NAMES, token_text

MAX_TEMPLATE = 1_000_000  # characters; real templates have a few thousand


@dataclass(frozen=True)
class ChatTemplate:
    """Chat template with the special tokens that it names, which is parsed when it is first used.

    Templates come with models, so they run in Jinja's sandbox.

    Args:
        source: The template in Jinja. Its variables are messages, add_generation_prompt and the special tokens.
        tokens: Texts of the special tokens, by names such as bos_token.

    Raises:
        ValueError: The template has more than a million characters.

    Examples:
        >>> from polyarr.text import ChatTemplate
        >>> template = ChatTemplate("{{ bos_token }}{{ messages[0]['content'] }}", {"bos_token": "<s>"})
        >>> template.write([{"role": "user", "content": "Hello"}])
        '<s>Hello'
    """

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.source) > MAX_TEMPLATE:
            raise ValueError(f"a chat template of {len(self.source):,} characters; there may be {MAX_TEMPLATE:,}")

    @classmethod
    def of(cls, source: Any, config: Mapping[str, Any]) -> Self | None:
        """Return the template of a file of its own, or else of a tokenizer_config.json; None if there is none."""
        found = source or config.get("chat_template")
        if isinstance(found, list):  # several named templates
            named = {one["name"]: one.get("template") for one in found if isinstance(one, dict) and "name" in one}
            found = named.get("default")
        if not isinstance(found, str) or not found:
            return None
        tokens = {name: token_text(config.get(name)) for name in NAMES}
        return cls(found, {name: token for name, token in tokens.items() if token is not None})

    def write(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a conversation, up to the start of the next answer.

        Args:
            messages: Messages, each with a "role" and a "content".

        Raises:
            ValueError: The template refuses the messages, or is damaged.
            RuntimeError: The library jinja2 is missing.
        """
        extra("jinja2", "serve")
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self.tokens)
        except Exception as error:  # a template is a program, which may fail in any way
            raise ValueError(f"chat template: {in_one_line(error) or type(error).__name__}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that JSON can hold and `from_dict` takes."""
        return {"template": self.source, "tokens": dict(self.tokens)}

    @classmethod
    def from_dict(cls, saved: Any) -> Self:
        """Return the template that `to_dict` described.

        Raises:
            ValueError: `saved` is anything else.
        """
        is_known = isinstance(saved, dict) and saved.keys() == {"template", "tokens"}
        if not is_known or not isinstance(saved["template"], str) or not isinstance(saved["tokens"], dict):
            raise ValueError("ChatTemplate: this is not a chat template's dict")
        if not all(name in NAMES and isinstance(token, str) for name, token in saved["tokens"].items()):
            raise ValueError(f"ChatTemplate: its tokens must be texts, of the names {', '.join(NAMES)}")
        return cls(saved["template"], saved["tokens"])

    @cached_property
    def _template(self) -> Any:
        """The parsed template, in a sandbox that gives untrusted code access to nothing but its variables."""
        sandbox = extra("jinja2.sandbox", "serve").ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_tag()]
        )
        # Filters and functions that Hugging Face's templates use besides Jinja's own.
        sandbox.filters["tojson"] = _to_json
        sandbox.globals["raise_exception"] = _refuse
        sandbox.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return sandbox.from_string(self.source)


def _generation_tag() -> type:
    """Return a Jinja extension for the block {% generation %}, which marks the text of assistants for training."""
    nodes = extra("jinja2.nodes", "serve")

    class Generation(extra("jinja2.ext", "serve").Extension):  # type: ignore[misc]
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            """Return the content of the block, unchanged."""
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    return Generation


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return a value as JSON; unlike json.dumps, the filter takes no functions, which it would call."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(reason: str) -> None:
    raise ValueError(reason)
