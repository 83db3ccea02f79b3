"""Tools of a chat: the grammar of their calls, and the calls in a text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyarr.text import ChatTemplate
from polyarr.text.grammar import json_rule

_TAG = "<tool_call>"
_MORE = r' ("\n" call)*'


class Format(NamedTuple):
    """Format of a call in a text: JSON between two tags, or a text that is nothing but JSON.

    Attributes:
        begin: Text before the JSON, "" if there is none.
        end: Text after it.
        arguments: Key of the arguments.
    """

    begin: str
    end: str
    arguments: str

    @classmethod
    def of(cls, template: ChatTemplate) -> "Format":
        """Return the format that a template describes: the one of Hermes and Qwen, of Llama 3, or plain JSON."""
        if _TAG in template.source:
            return cls(f"{_TAG}\n", f"\n{_TAG.replace('<', '</')}", "arguments")
        return cls("", "", "parameters" if '"parameters"' in template.source else "arguments")


class ToolCall(NamedTuple):
    """Call of a function.

    Attributes:
        name: Name of the function.
        arguments: Its arguments, an object in JSON.
    """

    name: str
    arguments: str


@dataclass(frozen=True)
class Tools:
    """Tools that an answer may call.

    Attributes:
        names: Names of the functions.
        format: Format of a call.
        most: Largest number of calls in the answer; None: any number.
        is_named: True if the request named the one function to call.
    """

    names: tuple[str, ...]
    format: Format
    most: int | None = None
    is_named: bool = False

    def grammar(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the grammar of a text of at least one call, and of nothing else.

        Args:
            tools: Descriptions of the functions with these names, as the OpenAI API has them.
        """
        functions = [one["function"] for one in tools if one["function"]["name"] in self.names]
        begin, end = json.dumps(self.format.begin), json.dumps(self.format.end)
        lines = [f"start: call{'' if self.most == 1 or not self.format.begin else _MORE}"]
        rules = " | ".join(f"f{number}" for number in range(len(functions)))
        lines += [f"call: {begin} function {end}", f"function: {rules}"]
        for number, function in enumerate(functions):
            head = f'{{"name": "{function["name"]}", "{self.format.arguments}": '
            schema = {**function.get("parameters", {"properties": {}, "additionalProperties": False}), "type": "object"}
            lines.append(f'f{number}: {json.dumps(head)} {json_rule(schema)} "}}"')
        return "\n".join(lines)


class CallReader:
    """Reader of an answer that comes in pieces: it separates calls from other text.

    A call of an unknown function, or with arguments that are no object, is text. Blanks around calls are left out.

    Args:
        tools: The tools.

    Examples:
        >>> from polyarr.serving.tools import CallReader, Format, Tools
        >>> reader = CallReader(Tools(("now",), Format("<tool_call>", "</tool_call>", "arguments")))
        >>> reader.add('Wait. <tool_call>{"name": "now", "arg')
        ('Wait.', [])
        >>> reader.add('uments": {}}</tool_call>')
        ('', [ToolCall(name='now', arguments='{}')])
    """

    def __init__(self, tools: Tools) -> None:
        self._tools, self._held, self._is_text, self.count = tools, "", False, 0
        self._begin, self._end = tools.format.begin.strip(), tools.format.end.strip()

    def add(self, text: str, is_end: bool = False) -> tuple[str, list[ToolCall]]:
        """Add a piece; return the text that certainly is not part of a call, and the calls that are complete."""
        self._held += text
        pieces = [*(self._tagged(is_end) if self._begin else self._bare(is_end))]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        return content, [piece for piece in pieces if isinstance(piece, ToolCall)]

    def _bare(self, is_end: bool) -> Iterator[str | ToolCall]:
        """Yield a text that may be one call as a whole."""
        self._is_text = self._is_text or not "{".startswith(self._held.lstrip()[:1])
        if self._is_text:
            yield self._taken(len(self._held))
        elif is_end:
            yield self._call(self._held) or self._held

    def _tagged(self, is_end: bool) -> Iterator[str | ToolCall]:
        """Yield the text and the calls between tags."""
        while (at := self._held.find(self._begin)) >= 0:
            stop = self._held.find(self._end, at)
            if stop < 0 and not is_end:
                break
            after = len(self._held) if stop < 0 else stop + len(self._end)
            call = self._call(self._held[at + len(self._begin) : stop if stop >= 0 else None])
            if call is None:
                yield self._taken(after)
                continue
            yield self._taken(at).rstrip()
            self._taken(after - at)
            if self._tools.most is None or self.count <= self._tools.most:
                yield call
        if is_end:
            yield self._held if self._held.strip() or not self.count else ""
            return
        size = len(self._held) - self._begun_size() if at < 0 else at
        yield self._taken(len(self._held[:size].rstrip()))

    def _begun_size(self) -> int:
        """Return the number of characters at the end that may be the beginning of a tag."""
        return next((n for n in range(len(self._begin) - 1, 0, -1) if self._held.endswith(self._begin[:n])), 0)

    def _taken(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        return text

    def _call(self, text: str) -> ToolCall | None:
        """Return the call that a text is, or None."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.get("name") not in self._tools.names:
            return None
        arguments = found.get("arguments", found.get("parameters"))
        if not isinstance(arguments, dict):
            return None
        self.count += 1
        return ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False))
