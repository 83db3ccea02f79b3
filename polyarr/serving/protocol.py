"""Requests in the format of the OpenAI API's completions and chat completions."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyarr.schema import SchemaError, check_json, in_one_line, loaded_json
from polyarr.serving.tools import Format, Tools
from polyarr.text import start_of
from polyarr.text.constraints import Constraints
from polyarr.text.grammar import json_rule
from polyarr.text.sandbox import SandboxedTokenizer

SCHEMA = Path(__file__).with_name("requests.schema.json")
MAX_ROWS = 16  # texts that one request may ask for
_DIGITS = 11  # more than a token has
MAX_TOKENS = 16  # default max_tokens of a completion, as in the OpenAI API
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
)  # fmt: skip


class RefusedError(Exception):
    """Error that a client gets as an answer.

    Args:
        status: HTTP status.
        message: Text of the error.
        param: Key of the request that is wrong, if it is one.
        code: The OpenAI API's code for the error, if it has one.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def to_dict(self) -> dict[str, Any]:
        """Return the error in the format of the OpenAI API."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes:
        tokens: Largest number of tokens of a prompt and its completion together.
        seconds: Time limit from when the body was read, including the time in the queue.
        body: Largest size of a body, in bytes.
        is_trusted: Whether messages of a conversation may contain control tokens.
    """

    tokens: int
    seconds: float = 300.0
    body: int = 2**20
    is_trusted: bool = False


@dataclass(frozen=True)
class CompletionRequest:
    """Valid request.

    Attributes:
        is_chat: Whether it asks for a chat completion.
        model: Name of the model.
        prompts: Tokens of the prompts, one for each text to write: each prompt best_of times.
        distinct: Number of tokens of the prompts, each counted once.
        n: Number of texts per prompt in the answer.
        best_of: Number of texts per prompt to write; the n most likely ones are the answer.
        max_tokens: Largest number of new tokens per prompt.
        stop: Stop strings.
        seed: Seed of the sampling, or None.
        sampling: Parameters of Sampling that the request sets.
        is_stream: Whether the answer is a stream of events.
        has_usage: Whether a stream ends with the number of tokens.
        logprobs: Number of the most likely tokens at each position whose log-probabilities the answer has, besides
            those of the tokens themselves; None: it has none.
        echo: Texts of the tokens of `prompts`, if the answer begins with them; else None.
        grammar: Grammar of the texts, or None.
        tools: Tools that the answer may call, or None.
        ignores_ends: Whether end tokens end no text.
        id: Id of the answer.
        created: Unix time of the request.
    """

    is_chat: bool
    model: str
    prompts: list[list[int]]
    distinct: int
    n: int
    best_of: int
    max_tokens: int
    stop: tuple[str, ...]
    seed: int | None
    sampling: dict[str, Any]
    is_stream: bool
    has_usage: bool
    logprobs: int | None = None
    echo: list[list[str]] | None = None
    grammar: str | None = None
    tools: Tools | None = None
    ignores_ends: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def tokens(self) -> int:
        """Largest number of tokens of the texts with their prompts: those that they take in caches."""
        return sum(map(len, self.prompts)) + len(self.prompts) * self.max_tokens

    @property
    def is_ranked(self) -> bool:
        """True if only the most likely texts are the answer."""
        return self.best_of > self.n


def read(
    body: bytes, is_chat: bool, model: str, tokenizer: SandboxedTokenizer, constraints: Constraints, limits: Limits
) -> CompletionRequest:
    """Return the request in a body, whose grammar is checked by `constraints`.

    Raises:
        RefusedError: The request cannot be answered.
    """
    fields = _checked(body, is_chat)
    if fields["model"] != model:
        text = f"model: {fields['model'][:100]!r} is not here; there is {model!r}"
        raise RefusedError(404, text, "model", "model_not_found")
    tools = _refusing("tools", _tools, fields, tokenizer)
    grammar = _grammar(fields, tools, constraints)
    longest, name = limits.tokens, "messages" if is_chat else "prompt"
    given = [fields["messages"]] if is_chat else _refusing(name, _each, fields["prompt"])
    count = _count(fields, len(given))
    if is_chat:
        prompts = [_refusing(name, _conversation, fields, tokenizer, limits)]
    else:
        prompts = [_refusing(name, _encoded, one, tokenizer, longest) for one in given]
    wanted = _max_tokens(fields, max(map(len, prompts)), is_chat, longest)
    pairs = zip(given, prompts, strict=True) if fields.get("echo") else ()
    echo = [pieces for pair in pairs for pieces in [_refusing(name, _echoed, *pair, tokenizer)] * count]
    bias = _refusing("logit_bias", _bias, fields.get("logit_bias", {}), tokenizer.vocab_size)
    stop = fields.get("stop", ())
    return CompletionRequest(
        is_chat,
        model,
        [prompt for prompt in prompts for _ in range(count)],
        sum(map(len, prompts)),
        fields.get("n", 1),
        count,
        wanted,
        (stop,) if isinstance(stop, str) else tuple(stop),
        fields.get("seed"),
        {name: fields[name] for name in SAMPLING if name in fields} | {"logit_bias": bias},
        fields.get("stream", False),
        fields.get("stream_options", {}).get("include_usage", False),
        _logprobs(fields, is_chat),
        echo or None,
        grammar,
        tools,
        _ignores_ends(fields, grammar),
    )


def _refusing(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, with its errors as answers about a key of the request."""
    try:
        return work(*arguments)
    except ValueError as error:
        raise RefusedError(400, f"{name}: {error}", name) from error
    except RecursionError as error:
        raise RefusedError(400, f"{name}: its JSON is nested too deeply", name) from error
    except OSError as error:
        raise RefusedError(503, f"no process can be started to encode it: {error.strerror}") from error
    except RuntimeError as error:  # a library is missing
        raise RefusedError(501, f"{name}: {error}", name) from error


def _tools(fields: dict[str, Any], tokenizer: SandboxedTokenizer) -> Tools | None:
    """Return the tools that an answer may call, or None."""
    given, choice = fields.get("tools"), fields.get("tool_choice", "auto")
    names = tuple(one["function"]["name"] for one in given or ())
    is_named = isinstance(choice, dict)
    if (is_named or choice == "required") and not given:
        raise ValueError("there is none; tool_choice requires a call of one")
    if not given or choice == "none":
        return None
    if len(set(names)) < len(names):
        raise ValueError("two functions have the same name; each must have its own")
    if is_named and choice["function"]["name"] not in names:
        raise ValueError(f"there is no {choice['function']['name'][:100]!r}, which tool_choice names")
    if tokenizer.chat is None or not tokenizer.chat.has_tools:
        raise ValueError("this model's chat template has no place for them; leave them out")
    if is_named:
        names = (choice["function"]["name"],)
    most = 1 if is_named or fields.get("parallel_tool_calls") is False else None
    return Tools(names, Format.of(tokenizer.chat), most, is_named)


def _grammar(fields: dict[str, Any], tools: Tools | None, constraints: Constraints) -> str | None:
    """Return the grammar of the texts, which is checked, or None."""
    format = fields.get("response_format", {"type": "text"})
    if tools and fields.get("tool_choice", "auto") != "auto":
        name, make = "tools", lambda: tools.grammar(fields["tools"])
    elif format["type"] != "text" and tools:
        text = "it was given with tools; then it must be text, or tool_choice must be none or required"
        raise RefusedError(400, f"response_format: {text}", "response_format")
    elif format["type"] != "text":
        schema = format["json_schema"].get("schema", {}) if format["type"] == "json_schema" else {"type": "object"}
        name, make = "response_format", lambda: f"start: {json_rule(schema)}"
    else:
        return None

    def checked() -> str:
        constraints.check(grammar := make())
        return grammar

    return _refusing(name, checked)


def _count(fields: dict[str, Any], prompts: int) -> int:
    """Return the number of texts to write for each prompt."""
    n = fields.get("n", 1)
    best_of = fields.get("best_of", n)
    name = "n" if best_of == n else "best_of"
    if best_of < n:
        raise RefusedError(400, f"best_of: {best_of} was given; it must be at least n, which is {n}", name)
    if best_of > n and fields.get("stream"):
        raise RefusedError(400, f"best_of: {best_of} was given; it must be n, which is {n}, in a stream", name)
    if best_of * prompts > MAX_ROWS:
        text = f"{name}: {best_of} texts for each of {prompts} prompts; there may be {MAX_ROWS} together"
        raise RefusedError(400, text, name)
    return best_of


def _max_tokens(fields: dict[str, Any], length: int, is_chat: bool, longest: int) -> int:
    """Return the number of tokens that may follow the longest prompt, of `length` tokens."""
    name, code = "messages" if is_chat else "prompt", "context_length_exceeded"
    room = longest - length
    if room < 0:  # the exact number of tokens is unknown: only the beginning of a long text is encoded
        text = f"it has more than {longest} tokens, which are all that there may be together with those that follow"
        raise RefusedError(400, f"{name}: {text}", name, code)
    default = max(room, 1) if is_chat else MAX_TOKENS
    wanted = fields.get("max_completion_tokens", fields.get("max_tokens", default))
    if not wanted and not fields.get("echo"):
        raise RefusedError(400, "max_tokens: 0 was given; it must be at least 1 without echo", "max_tokens")
    if wanted > room:
        text = f"{length} tokens, and {wanted} are to follow; together there may be {longest}"
        raise RefusedError(400, f"{name}: {text}", name, code)
    return wanted


def _ignores_ends(fields: dict[str, Any], grammar: str | None) -> bool:
    """Return whether end tokens end no text; one with a grammar ends with them."""
    found = fields.get("ignore_eos", False)
    if found and grammar is not None:
        text = "ignore_eos: true was given; with response_format or tools it must be false"
        raise RefusedError(400, text, "ignore_eos")
    return found


def _logprobs(fields: dict[str, Any], is_chat: bool) -> int | None:
    """Return the number of log-probabilities at each position, or None."""
    if not is_chat:
        return fields.get("logprobs")
    if not fields.get("logprobs") and "top_logprobs" in fields:
        text = f"top_logprobs: {fields['top_logprobs']} was given; then logprobs must be true"
        raise RefusedError(400, text, "top_logprobs")
    return fields.get("top_logprobs", 0) if fields.get("logprobs") else None


def _checked(body: bytes, is_chat: bool) -> dict[str, Any]:
    try:
        fields = loaded_json(body)
    except ValueError as error:
        raise RefusedError(400, f"the body must be JSON: {in_one_line(error)}") from error
    try:
        fields = _given(fields)
        if isinstance(fields.get("messages") if isinstance(fields, dict) else None, list):
            fields["messages"] = [_message(message) for message in fields["messages"]]
        check_json(fields, SCHEMA, part="chat" if is_chat else "completion")
        return fields
    except ValueError as error:
        reason = str(error).removeprefix("it: ")
        raise RefusedError(400, reason, error.key if isinstance(error, SchemaError) else None) from error


def _given(value: Any) -> Any:
    """Return an object without keys that are null, which the API treats as missing."""
    return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value


def _message(message: Any) -> Any:
    """Return a message without keys that are null; an assistant's content of null, or beside calls, becomes ""."""
    found = _given(message)
    if isinstance(found, dict) and found.get("role") == "assistant":
        if "tool_calls" in found or message.get("content", "") is None:
            found.setdefault("content", "")
    return found


def _each(prompt: str | list) -> list[str | list[int]]:
    """Return the prompts, each a text or tokens, checked here because a JSON schema takes seconds for long lists."""
    found = [prompt] if isinstance(prompt, str) or _is_tokens(prompt) else prompt
    if not all(isinstance(one, str) or _is_tokens(one) for one in found):
        raise ValueError("it must be a text, the numbers of tokens, or a list of these")
    return found


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and {int} == set(map(type, value))


def _encoded(prompt: str | list[int], tokenizer: SandboxedTokenizer, longest: int) -> list[int]:
    if isinstance(prompt, list):
        wrong = [token for token in prompt if not 0 <= token < tokenizer.vocab_size]
        if wrong:
            raise ValueError(f"{wrong[0]} is no token; they are from 0 to {tokenizer.vocab_size - 1}")
        return prompt
    if not prompt and (start := start_of(tokenizer)):  # pyright: ignore[reportArgumentType]  # __getattr__ has the rest
        return start
    return _some(tokenizer.encode_within(prompt, longest))


def _echoed(given: str | list[int], tokens: list[int], tokenizer: SandboxedTokenizer) -> list[str]:
    """Return the text of each token of a prompt; those that the tokenizer put before a text have none."""
    begin = 0 if isinstance(given, list) else len(tokenizer.begin)
    own = tokens[begin:]
    if not given or not own:
        return [""] * len(tokens)
    pieces = list(tokenizer.stream(own, after=tokens[:begin]))
    if len(pieces) > len(own):  # the last character is incomplete
        pieces[-2:] = ["".join(pieces[-2:])]
    return [""] * begin + pieces


def _bias(given: dict[str, float], vocab_size: int) -> dict[int, float]:
    """Return the biases of logits by token, which are texts in JSON."""
    wrong = [token for token in given if not (token.isascii() and token.isdecimal() and len(token) < _DIGITS)]
    wrong = wrong or [token for token in given if int(token) >= vocab_size]
    if wrong:
        raise ValueError(f"{in_one_line(wrong[0])!r} is no token; they are from 0 to {vocab_size - 1}")
    return {int(token): bias for token, bias in given.items()}


def _conversation(fields: dict[str, Any], tokenizer: SandboxedTokenizer, limits: Limits) -> list[int]:
    """Return the tokens of a conversation, up to the start of the answer."""
    if tokenizer.chat is None:
        raise ValueError("this model has no chat template; use /v1/completions, or import it with one")
    messages = [_rendered(message) for message in fields["messages"]]
    tools = fields.get("tools") if fields.get("tool_choice") != "none" else None
    return _some(tokenizer.encode_messages(messages, limits.tokens, limits.is_trusted, tools or None))


def _rendered(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates take it: content is a text, arguments of calls are objects."""
    found = {**message, "content": _text(message["content"])}
    if "tool_calls" in message:
        found["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return found


def _arguments(given: str) -> dict[str, Any]:
    found = loaded_json(given)
    if not isinstance(found, dict):
        raise ValueError(f"the arguments of a call are {in_one_line(given)}; they must be an object in JSON")
    return found


def _some(tokens: list[int]) -> list[int]:
    if not tokens:
        raise ValueError("it is empty; this model needs a text to go on with")
    return tokens


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
