"""Answers in the format of the OpenAI API's completions and chat completions, whole ones and streams of events."""

import json
import uuid
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from polyarr.models.completion import Completion, Part, TokenLogprob
from polyarr.serving.protocol import CompletionRequest
from polyarr.serving.tools import CallReader, ToolCall

DONE = "[DONE]"  # the last event of a stream
LEAST = -9999.0  # the API's log-probability of a token of probability 0; JSON has no infinity


def whole(request: CompletionRequest, texts: Sequence[Completion]) -> dict[str, Any]:
    """Return the answer to a request without a stream; `texts` has one text for each of the request's prompts."""
    rows = _answered(request, texts)
    readers = [CallReader(request.tools) if request.tools else None for _ in rows]
    choices = [_choice(request, n, row, texts[row], "message", readers[n]) for n, row in enumerate(rows)]
    usage = _usage(request, [text.tokens for text in texts])
    return {**_head(request, is_stream=False), "choices": choices, "usage": usage}


class Events:
    """Events of a stream, made from the parts of its texts."""

    def __init__(self, request: CompletionRequest) -> None:
        self._request, self._tokens = request, [0] * len(request.prompts)
        self._is_begun = [not request.is_chat] * len(request.prompts)
        self._readers = [CallReader(request.tools) for _ in request.prompts] if request.tools else None
        self._head = json.dumps(_head(request, is_stream=True))[:-1]  # which all events begin with

    def of(self, part: Part) -> Iterator[str]:
        """Yield the events of a part."""
        self._tokens[part.row] = part.tokens
        if not self._is_begun[part.row]:
            self._is_begun[part.row] = True
            yield self._event({"delta": {"role": "assistant", "content": ""}, **_end(part.row, None, None)})
        reader = self._readers[part.row] if self._readers else None
        choice = _choice(self._request, part.row, part.row, part, "delta", reader)
        if choice["logprobs"] or choice["finish_reason"] or choice.get("text") or choice.get("delta"):
            yield self._event(choice)

    def last(self) -> Iterator[str]:
        """Yield the events at the end of the stream."""
        if self._request.has_usage:
            yield self._dumped([], _usage(self._request, self._tokens))
        yield DONE

    def _event(self, choice: dict[str, Any]) -> str:
        return self._dumped([choice], None)

    def _dumped(self, choices: list, usage: dict | None) -> str:
        optional = {"usage": usage} if self._request.has_usage else {}
        return f"{self._head}, {json.dumps({'choices': choices, **optional})[1:]}"


def _answered(request: CompletionRequest, texts: Sequence[Completion]) -> list[int]:
    """Return the rows whose texts are in the answer: of each prompt, the n with the most likely tokens on average."""
    rows = range(len(texts))
    if not request.is_ranked:
        return list(rows)

    def mean(row: int) -> float:
        count = texts[row].tokens
        return sum(_finite(one.logprob) or 0.0 for one in texts[row].logprobs[-count:]) / count if count else 0.0

    groups = [rows[first : first + request.best_of] for first in rows[:: request.best_of]]
    return [row for group in groups for row in sorted(group, key=mean, reverse=True)[: request.n]]


def _head(request: CompletionRequest, is_stream: bool) -> dict[str, Any]:
    kind = "text_completion"
    if request.is_chat:
        kind = "chat.completion.chunk" if is_stream else "chat.completion"
    name = f"{'chatcmpl' if request.is_chat else 'cmpl'}-{request.id}"
    return {"id": name, "object": kind, "created": request.created, "model": request.model}


def _choice(
    request: CompletionRequest, index: int, row: int, part: Part | Completion, where: str, reader: CallReader | None
) -> dict[str, Any]:
    """Return a text of the answer, or a part of it, with its log-probabilities; `reader` finds its calls."""
    prompt, finish, logprobs = request.echo[row] if request.echo else [], part.finish, None
    has_logprobs = request.logprobs is not None and part.logprobs
    if request.is_chat:
        message: dict[str, Any] = {"role": "assistant"} if where == "message" else {}
        text, calls = reader.add(part.text, finish is not None) if reader else (part.text, [])
        if message or text:
            message["content"] = text or (None if calls else "")
        if reader and calls:
            message["tool_calls"] = _tool_calls(calls, reader.count - len(calls), where == "delta")
        if reader and reader.count and finish == "stop" and not (request.tools and request.tools.is_named):
            finish = "tool_calls"
        content: dict[str, Any] = {where: message}
        if has_logprobs:
            logprobs = {"content": [_chat_logprob(one) for one in part.logprobs], "refusal": None}
    else:
        is_begin = isinstance(part, Completion) or not part.tokens
        content = {"text": "".join(prompt) + part.text if is_begin else part.text}
        if has_logprobs:
            logprobs = _logprobs(part.logprobs, prompt, is_begin)
    return {**content, **_end(index, finish, logprobs)}


def _tool_calls(calls: Sequence[ToolCall], first: int, is_delta: bool) -> list[dict[str, Any]]:
    """Return calls, of which one is the `first` of its answer; in a stream each is one delta."""
    return [
        {
            **({"index": index} if is_delta else {}),
            "id": f"call_{uuid.uuid4().hex}",
            "type": "function",
            "function": call._asdict(),
        }
        for index, call in enumerate(calls, first)
    ]


def _logprobs(tokens: Sequence[TokenLogprob], prompt: Sequence[str], is_begin: bool) -> dict[str, Any]:
    """Return log-probabilities in the format of completions; `prompt` has the texts of the echoed tokens.

    Of several tokens with the same text, such as U+FFFD, the most likely one is shown.
    """
    starts = list(accumulate(map(len, prompt), initial=0))
    echoed = starts[:-1] if is_begin else []
    return {
        "tokens": [one.text for one in tokens],
        "token_logprobs": [_finite(one.logprob) for one in tokens],
        "top_logprobs": [None if one.logprob is None else _top(one) for one in tokens],
        "text_offset": echoed + [starts[-1] + one.offset for one in tokens[len(echoed) :]],
    }


def _top(token: TokenLogprob) -> dict[str, float | None]:
    """Return the most likely tokens at a position, and the token that is there."""
    found: dict[str, float | None] = {}
    for text, logprob in (*token.top, (token.text, token.logprob)):
        found.setdefault(text, _finite(logprob))
    return found


def _chat_logprob(token: TokenLogprob) -> dict[str, Any]:
    top = [_described(*one) for one in token.top]
    return {**_described(token.text, token.logprob), "top_logprobs": top}


def _described(text: str, logprob: float | None) -> dict[str, Any]:
    """Return a token in the format of chats; the bytes of an incomplete character are unknown."""
    return {"token": text, "logprob": _finite(logprob), "bytes": None if "\ufffd" in text else list(text.encode())}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(LEAST, logprob)  # LEAST also for nan


def _end(index: int, finish: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, "logprobs": logprobs, "finish_reason": finish}


def _usage(request: CompletionRequest, written: Sequence[int]) -> dict[str, int]:
    count = sum(written)
    return {
        "prompt_tokens": request.distinct,
        "completion_tokens": count,
        "total_tokens": request.distinct + count,
    }
