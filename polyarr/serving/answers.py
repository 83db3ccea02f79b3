"""Answers in the format of the OpenAI API's completions and chat completions, whole ones and streams of events."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from polyarr.models.completion import Completion, Part
from polyarr.serving.protocol import CompletionRequest

DONE = "[DONE]"  # the last event of a stream


def whole(request: CompletionRequest, texts: Sequence[Completion]) -> dict[str, Any]:
    """Return the answer to a request without a stream."""
    made = [{**_content(request, "message", text.text), **_end(n, text.finish)} for n, text in enumerate(texts)]
    usage = _usage(request, [text.tokens for text in texts])
    return {**_head(request, is_stream=False), "choices": made, "usage": usage}


class Events:
    """Events of a stream, made from the parts of its texts."""

    def __init__(self, request: CompletionRequest) -> None:
        self._request, self._tokens = request, [0] * len(request.prompts)
        self._is_begun = [not request.is_chat] * len(request.prompts)

    def of(self, part: Part) -> Iterator[str]:
        """Yield the events of a part."""
        self._tokens[part.row] = part.tokens
        if not self._is_begun[part.row]:
            self._is_begun[part.row] = True
            yield self._event({"delta": {"role": "assistant", "content": ""}, **_end(part.row, None)})
        if part.text or part.finish:
            has_content = part.text or not self._request.is_chat
            delta = _content(self._request, "delta", part.text) if has_content else {"delta": {}}
            yield self._event({**delta, **_end(part.row, part.finish)})

    def last(self) -> Iterator[str]:
        """Yield the events at the end of the stream."""
        if self._request.has_usage:
            yield self._dumped([], _usage(self._request, self._tokens))
        yield DONE

    def _event(self, choice: dict[str, Any]) -> str:
        return self._dumped([choice], None)

    def _dumped(self, choices: list, usage: dict | None) -> str:
        optional = {"usage": usage} if self._request.has_usage else {}
        return json.dumps({**_head(self._request, is_stream=True), "choices": choices, **optional})


def _head(request: CompletionRequest, is_stream: bool) -> dict[str, Any]:
    kind = "text_completion"
    if request.is_chat:
        kind = "chat.completion.chunk" if is_stream else "chat.completion"
    name = f"{'chatcmpl' if request.is_chat else 'cmpl'}-{request.id}"
    return {"id": name, "object": kind, "created": request.created, "model": request.model}


def _content(request: CompletionRequest, where: str, text: str) -> dict[str, Any]:
    if not request.is_chat:
        return {"text": text}
    role = {"role": "assistant"} if where == "message" else {}
    return {where: {**role, "content": text}}


def _end(index: int, finish: str | None) -> dict[str, Any]:
    return {"index": index, "logprobs": None, "finish_reason": finish}


def _usage(request: CompletionRequest, written: Sequence[int]) -> dict[str, int]:
    count = sum(written)
    return {
        "prompt_tokens": request.distinct,
        "completion_tokens": count,
        "total_tokens": request.distinct + count,
    }
