"""What is asked and answered: the shapes of the OpenAI API's completions and chat completions."""

import json
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyarr.models.writing import Completion, Part
from polyarr.schema import check_json, loaded_json
from polyarr.text import Tokenizer

SCHEMA = Path(__file__).with_name("requests.schema.json")
MAX_ROWS = 16  # texts that one request may ask for
MAX_TOKENS = 16  # of a completion for which nobody says how many, as in the OpenAI API
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
DONE = "[DONE]"  # the last event of a stream


class RefusedError(Exception):
    """An answer that is an error.

    status  of HTTP
    param   which key of what was asked is wrong
    code    the OpenAI API's word for it, if it has one
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def to_dict(self) -> dict[str, Any]:
        """As clients of the OpenAI API read it."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Asked:
    """A request that can be answered.

    prompts   the tokens of each text that is to be written on, each as often as it is asked for
    distinct  how many tokens its prompts have, each counted once
    """

    is_chat: bool
    model: str
    prompts: list[list[int]]
    distinct: int
    max_tokens: int
    stop: tuple[str, ...]
    seed: int | None
    sampling: dict[str, Any]
    is_stream: bool
    has_usage: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))


def read(body: bytes, is_chat: bool, model: str, tokenizer: Tokenizer, longest: int) -> Asked:
    """What the body of a request asks of a model.

    longest  how many tokens a prompt and what follows it may have

    Errors:  RefusedError in one line for anything that cannot be answered
    """
    asked = _checked(body, is_chat)
    if asked["model"] != model:
        text = f"model: {asked['model'][:100]!r} is not here; there is {model!r}"
        raise RefusedError(404, text, "model", "model_not_found")
    name, count = "messages" if is_chat else "prompt", asked.get("n", 1)
    try:
        given = [_conversation(asked["messages"], tokenizer)] if is_chat else _each(asked["prompt"])
        if count * len(given) > MAX_ROWS:
            text = f"n: {count} texts for each of {len(given)} prompts; there may be {MAX_ROWS} together"
            raise RefusedError(400, text, "n")
        prompts = [_encoded(one, tokenizer) for one in given]
    except ValueError as error:
        raise RefusedError(400, f"{name}: {error}", name) from error
    room = longest - max(map(len, prompts))
    wanted = asked.get("max_completion_tokens", asked.get("max_tokens", max(room, 1) if is_chat else MAX_TOKENS))
    if wanted > room:
        text = f"{longest - room} tokens, and {wanted} are to follow; together there may be {longest}"
        raise RefusedError(400, f"{name}: {text}", name, "context_length_exceeded")
    stop = asked.get("stop", ())
    return Asked(
        is_chat,
        model,
        [prompt for prompt in prompts for _ in range(count)],
        sum(map(len, prompts)),
        wanted,
        (stop,) if isinstance(stop, str) else tuple(stop),
        asked.get("seed"),
        {name: asked[name] for name in SAMPLING if name in asked},
        asked.get("stream", False),
        asked.get("stream_options", {}).get("include_usage", False),
    )


def _checked(body: bytes, is_chat: bool) -> dict[str, Any]:
    try:
        asked = _given(loaded_json(body))
        check_json(asked, SCHEMA, part="chat" if is_chat else "completion")
        return asked
    except ValueError as error:
        reason = str(error).removeprefix("$: ")
        known = re.match(r"([a-z_]+)[:.[]", reason)
        raise RefusedError(400, reason, known[1] if known else None) from error


def _given(body: Any) -> Any:
    """Without what is null: to these APIs it is as if it was not said."""
    if not isinstance(body, dict):
        return body
    found = {name: value for name, value in body.items() if value is not None}
    if isinstance(found.get("messages"), list):  # clients send the assistant's back as they got them
        found["messages"] = [_given(message) for message in found["messages"]]
    return found


def _each(prompt: str | list) -> list[str | list[int]]:
    """Each prompt, a text or tokens. A schema would take seconds for what this takes milliseconds."""
    found = [prompt] if isinstance(prompt, str) or _is_tokens(prompt) else prompt
    if not all(isinstance(one, str) or _is_tokens(one) for one in found):
        raise ValueError("it must be a text, the numbers of tokens, or a list of these")
    return found


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and {int} == set(map(type, value))


def _encoded(prompt: str | list[int], tokenizer: Tokenizer) -> list[int]:
    if isinstance(prompt, list):
        wrong = [token for token in prompt if not 0 <= token < tokenizer.vocab_size]
        if wrong:
            raise ValueError(f"{wrong[0]} is no token; they are from 0 to {tokenizer.vocab_size - 1}")
        return prompt
    if not prompt and tokenizer.end is not None:  # what follows the end of another text
        return [tokenizer.end]
    found: list[int] = tokenizer.encode(prompt).tolist()
    if not found:
        raise ValueError("it is empty; this model needs a text to go on with")
    return found


def _conversation(messages: list[dict[str, Any]], tokenizer: Tokenizer) -> str:
    """The text of a conversation, up to where the answer begins."""
    if tokenizer.chat is None:
        raise ValueError("this model has no chat template; use /v1/completions, or import it with one")
    return tokenizer.chat.write([{**message, "content": _text(message["content"])} for message in messages])


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


# ---- answers ---------------------------------------------------------------------------------------------------------


def whole(asked: Asked, texts: Sequence[Completion]) -> dict[str, Any]:
    """The answer to who does not ask for a stream."""
    made = [{**_content(asked, "message", text.text), **_end(n, text.finish)} for n, text in enumerate(texts)]
    return {**_head(asked, is_stream=False), "choices": made, "usage": _usage(asked, [text.tokens for text in texts])}


class Events:
    """The events of a stream, of the parts of its texts."""

    def __init__(self, asked: Asked) -> None:
        self._asked, self._tokens = asked, [0] * len(asked.prompts)
        self._is_begun = [not asked.is_chat] * len(asked.prompts)

    def of(self, part: Part) -> Iterator[str]:
        """What a part of a text adds."""
        self._tokens[part.row] = part.tokens
        if not self._is_begun[part.row]:
            self._is_begun[part.row] = True
            yield self._event({"delta": {"role": "assistant", "content": ""}, **_end(part.row, None)})
        if part.text or part.finish:
            delta = _content(self._asked, "delta", part.text) if part.text or not self._asked.is_chat else {"delta": {}}
            yield self._event({**delta, **_end(part.row, part.finish)})

    def last(self) -> Iterator[str]:
        """What ends the stream."""
        if self._asked.has_usage:
            yield self._dumped([], _usage(self._asked, self._tokens))
        yield DONE

    def _event(self, choice: dict[str, Any]) -> str:
        return self._dumped([choice], None)

    def _dumped(self, choices: list, usage: dict | None) -> str:
        told = {"usage": usage} if self._asked.has_usage else {}
        return json.dumps({**_head(self._asked, is_stream=True), "choices": choices, **told})


def _head(asked: Asked, is_stream: bool) -> dict[str, Any]:
    kind = "text_completion"
    if asked.is_chat:
        kind = "chat.completion.chunk" if is_stream else "chat.completion"
    name = f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{asked.id}"
    return {"id": name, "object": kind, "created": asked.created, "model": asked.model}


def _content(asked: Asked, where: str, text: str) -> dict[str, Any]:
    if not asked.is_chat:
        return {"text": text}
    role = {"role": "assistant"} if where == "message" else {}
    return {where: {**role, "content": text}}


def _end(index: int, finish: str | None) -> dict[str, Any]:
    return {"index": index, "logprobs": None, "finish_reason": finish}


def _usage(asked: Asked, written: Sequence[int]) -> dict[str, int]:
    count = sum(written)
    return {
        "prompt_tokens": asked.distinct,
        "completion_tokens": count,
        "total_tokens": asked.distinct + count,
    }
