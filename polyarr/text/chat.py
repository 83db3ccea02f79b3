"""Chat templates in Jinja, as Hugging Face's tokenizers have them: they write a conversation as one text."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Self

from polyarr.extras import extra
from polyarr.schema import in_one_line
from polyarr.text.special import NAMES, token_text

MAX_TEMPLATE = 1_000_000  # characters; real templates have a few thousand
# Text around each {% generation %} block in what a template renders. It is drawn for each process, so that no message
# can contain it.
_MARK = f"\x00{uuid.uuid4().hex}\x00"
_CHANNEL, _FINAL = "<|channel|>", "<|channel|>final<|message|>"  # of gpt-oss, whose answers begin with its reasoning
Part = tuple[str, bool]  # a part of a text, and whether it is learned

_CHANGES = (
    "chat template: it writes earlier messages in another way when others follow, so the answers cannot be found; a "
    "template that marks them by {% generation %} is needed"
)


@dataclass(frozen=True)
class ChatTemplate:
    """Chat template with the special tokens that it names, which is parsed when it is first used.

    Templates come with models, so they run in Jinja's sandbox.

    Args:
        source: The template in Jinja. Its variables are messages, tools, add_generation_prompt and the special tokens.
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

    @property
    def has_tools(self) -> bool:
        """True if the template writes descriptions of tools."""
        return "tools" in self.source

    def write(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """Return the text of a conversation, up to the start of the next answer.

        Of an answer in channels, as gpt-oss writes them, only the final one is in the text: its template adds the name
        of that channel, and refuses the others.

        Args:
            messages: Messages, each with a "role" and a "content".
            tools: Descriptions of the tools that the answer may call, as the OpenAI API has them; None: there are none.

        Raises:
            ValueError: The template refuses the messages, or is damaged.
            RuntimeError: The library jinja2 is missing.
        """
        if _CHANNEL in self.source:
            messages = [_final_channel(message) for message in messages]
        return self._rendered(messages, True, tools).replace(_MARK, "")

    def parts(self, messages: Sequence[Mapping[str, Any]]) -> list[Part]:
        """Return the text of a whole conversation in parts, each with whether it is learned.

        What a template marks by {% generation %} is learned; in a template without that, the text that each message of
        the assistant adds after the start of an answer. A message with "weight": 0 is not learned.

        Args:
            messages: Messages, each with a "role" and a "content".

        Raises:
            ValueError: The template refuses the messages or is damaged, or writes earlier messages in another way once
                later ones follow, so that the answers cannot be found.
            RuntimeError: The library jinja2 is missing.

        Examples:
            >>> from polyarr.text import ChatTemplate
            >>> source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
            >>> template = ChatTemplate(source + "{% if add_generation_prompt %}<assistant>{% endif %}")
            >>> template.parts([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])
            [('<user>Hi<assistant>', False), ('Hello', True)]
        """
        found = self._rendered(messages, False).split(_MARK)
        answers = [message.get("weight", 1) != 0 for message in messages if message["role"] == "assistant"]
        if len(found) == 1:
            return self._parts_by_turns(messages, found[0])
        if not all(answers) and len(found) != 2 * len(answers) + 1:
            raise ValueError("chat template: a message has the weight 0, and the template does not mark each answer")
        learned = answers if not all(answers) else [True] * (len(found) // 2)
        marks = [False, *(mark for answer in learned for mark in (answer, False))]
        return [(text, mark) for text, mark in zip(found, marks, strict=True) if text]

    def parts_after(self, prompt: Sequence[Mapping[str, Any]], completion: Sequence[Mapping[str, Any]]) -> list[Part]:
        """Return the text of a conversation in two parts: a prompt up to the start of the answer, and what is learned.

        Raises:
            ValueError: As in `parts`.
            RuntimeError: The library jinja2 is missing.
        """
        text, before = self._rendered([*prompt, *completion], False).replace(_MARK, ""), self.write(prompt)
        if not text.startswith(before):
            raise ValueError(_CHANGES)
        return [(before, False), (text[len(before) :], True)]

    def _parts_by_turns(self, messages: Sequence[Mapping[str, Any]], text: str) -> list[Part]:
        """Return the parts of a text whose template has no {% generation %}, by rendering the beginnings of it."""
        found, done = [], 0
        for n, message in enumerate(messages):
            if message["role"] != "assistant" or message.get("weight", 1) == 0:
                continue
            before, after = self.write(messages[:n]), self._rendered(messages[: n + 1], False)
            if not (after.startswith(before) and text.startswith(after) and len(before) >= done):
                raise ValueError(_CHANGES)
            found += [(text[done : len(before)], False), (after[len(before) :], True)]
            done = len(after)
        return [part for part in (*found, (text[done:], False)) if part[0]]

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return the text of a conversation with a mark at both ends of each {% generation %} block."""
        extra("jinja2", "serve")
        try:
            return self._template.render(
                messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **self.tokens
            )
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


def _final_channel(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message; of an answer in channels, only the text of the final channel is left, which may be empty."""
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, str) or _CHANNEL not in content:
        return message
    return {**message, "content": content.partition(_FINAL)[2]}


def _generation_tag() -> type:
    """Return a Jinja extension for the block {% generation %}, which marks the text of assistants for training."""
    nodes = extra("jinja2.nodes", "serve")

    class Generation(extra("jinja2.ext", "serve").Extension):  # type: ignore[misc]
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            """Return the content of the block between two marks."""
            line = next(parser.stream).lineno
            mark = nodes.Output([nodes.TemplateData(_MARK)], lineno=line)
            content = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope([mark, *content, mark], lineno=line)

    return Generation


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return a value as JSON; unlike json.dumps, the filter takes no functions, which it would call."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(reason: str) -> None:
    raise ValueError(reason)
