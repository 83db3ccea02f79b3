"""Requests that `polyarr serve` refuses, in process: no request breaks the server or keeps a slot."""

# ruff: noqa: F401, F811  fixtures are imported

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.serving import ASK, COMPLETION, JSON, SAY, TALK, client, error_of, runner, tiny

# isort: split

from polyarr.models import completion as completion_module
from polyarr.serving.protocol import MAX_ROWS

TOOL = {"type": "function", "function": {"name": "now"}}
CALLING = {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": "[1]"}}]}
BAD = {
    "no JSON": (COMPLETION, b"{", 400, "the body must be JSON: "),
    "nothing": (COMPLETION, b"", 400, "the body must be JSON: "),
    "no object": (COMPLETION, [], 400, "[] was given; it must be an object"),
    "null": (COMPLETION, None, 400, "null was given; it must be an object"),
    "no UTF-8": (COMPLETION, b'{"model": "\xff"}', 400, "can't decode byte 0xff"),
    "deep": (COMPLETION, b'{"prompt":' + b"[" * 100_000, 400, "nested too deeply"),
    "digits": (COMPLETION, b'{"seed":' + b"9" * 10_000 + b"}", 400, "4300 digits"),
    "surrogate": (COMPLETION, {**ASK, "prompt": "\ud800"}, 400, "not in the vocabulary"),
    "name of a surrogate": (COMPLETION, {**ASK, "model": "\ud800"}, 404, "is not here; there is 'tiny'"),
    "no model": (COMPLETION, {"prompt": "a"}, 400, "model is missing; it is required"),
    "model": (COMPLETION, {**ASK, "model": "gpt-4"}, 404, "model: 'gpt-4' is not here; there is 'tiny'"),
    "no prompt": (COMPLETION, {"model": "tiny"}, 400, "prompt is missing; it is required"),
    "prompt": (COMPLETION, {**ASK, "prompt": 5}, 400, "prompt: 5 was given; it must be a text or a list"),
    "no prompts": (COMPLETION, {**ASK, "prompt": []}, 400, "prompt: [] was given; it must be a list with 1"),
    "empty tokens": (COMPLETION, {**ASK, "prompt": [[]]}, 400, "prompt: it must be a text, the numbers of tokens"),
    "mixed": (COMPLETION, {**ASK, "prompt": ["a", 1]}, 400, "prompt: it must be a text, the numbers of tokens"),
    "token": (COMPLETION, {**ASK, "prompt": [257]}, 400, "prompt: 257 is no token; they are from 0 to 256"),
    "no number": (COMPLETION, {**ASK, "prompt": [True]}, 400, "prompt: it must be a text, the numbers of tokens"),
    "huge token": (COMPLETION, {**ASK, "prompt": [10**300]}, 400, "is no token"),
    "too long": (COMPLETION, {**ASK, "prompt": "a" * 38}, 400, "prompt: 38 tokens, and 3 are to follow; together"),
    "much too long": (COMPLETION, {**ASK, "prompt": "ab " * 100_000}, 400, "prompt: it has more than 40 tokens"),
    "long answer": (COMPLETION, {**ASK, "max_tokens": 38}, 400, "there may be 40"),
    "long conversation": (TALK, {**SAY, "messages": [{"role": "user", "content": "a" * 36}]}, 400, "messages: it"),
    "nan": (COMPLETION, {**ASK, "temperature": float("nan")}, 400, "temperature: NaN was given; it must be a number"),
    "infinite": (COMPLETION, {**ASK, "temperature": float("inf")}, 400, "temperature: Infinity was given"),
    "hot": (COMPLETION, {**ASK, "temperature": 3}, 400, "temperature: 3 was given; it must be at most 2"),
    "cold": (COMPLETION, {**ASK, "temperature": -1}, 400, "temperature: -1 was given; it must be at least 0"),
    "temperature": (COMPLETION, {**ASK, "temperature": "1"}, 400, "temperature: \"1\" was given; it must be a num"),
    "flag": (COMPLETION, {**ASK, "temperature": True}, 400, "temperature: true was given; it must be a num"),
    "top_p": (COMPLETION, {**ASK, "top_p": 0}, 400, "top_p: 0 was given; it must be above 0"),
    "half a token": (COMPLETION, {**ASK, "max_tokens": 1.5}, 400, "max_tokens: 1.5 was given; it must be an integer"),
    "no tokens": (COMPLETION, {**ASK, "max_tokens": 0}, 400, "max_tokens: 0 was given; it must be at least 1 without"),
    "no tokens of a chat": (TALK, {**SAY, "max_tokens": 0}, 400, "max_tokens: 0 was given; it must be at least 1"),
    "n": (COMPLETION, {**ASK, "n": 10**9}, 400, "n: 1000000000 texts for each of 1 prompts; there may be 16"),
    "prompts": (COMPLETION, {**ASK, "prompt": ["a"] * (MAX_ROWS + 1)}, 400, "n: 1 texts for each of 17 prompts"),
    "seed": (COMPLETION, {**ASK, "seed": 2**64}, 400, "seed: 18446744073709551616 was given; it must be"),
    "stop": (COMPLETION, {**ASK, "stop": ""}, 400, "a text with 1 or more characters"),
    "stops": (COMPLETION, {**ASK, "stop": ["a"] * 17}, 400, "it must be a list with 16 or fewer elements"),
    "stream": (COMPLETION, {**ASK, "stream": 1}, 400, "stream: 1 was given; it must be true or false"),
    "logprobs": (COMPLETION, {**ASK, "logprobs": 6}, 400, "logprobs: 6 was given; it must be at most 5"),
    "logprobs of a chat": (COMPLETION, {**ASK, "logprobs": True}, 400, "logprobs: true was given; it must be an int"),
    "a number for a chat": (TALK, {**SAY, "logprobs": 3}, 400, "logprobs: 3 was given; it must be true or false"),
    "top_logprobs": (TALK, {**SAY, "logprobs": True, "top_logprobs": 21}, 400, "it must be at most 20"),
    "top alone": (TALK, {**SAY, "top_logprobs": 2}, 400, "top_logprobs: 2 was given; then logprobs must be true"),
    "effort": (TALK, {**SAY, "reasoning_effort": "low"}, 400, "reasoning_effort is not supported; leave it out"),
    "top of text": (COMPLETION, {**ASK, "top_logprobs": 2}, 400, "top_logprobs is not supported; there may be"),
    "echo": (COMPLETION, {**ASK, "echo": 1}, 400, "echo: 1 was given; it must be true or false"),
    "echo of a chat": (TALK, {**SAY, "echo": True}, 400, "echo is not supported; leave it out"),
    "penalty": (COMPLETION, {**ASK, "presence_penalty": 2.5}, 400, "presence_penalty: 2.5 was given; it must be"),
    "reward": (TALK, {**SAY, "frequency_penalty": -3}, 400, "frequency_penalty: -3 was given; it must be at least -2"),
    "bias": (COMPLETION, {**ASK, "logit_bias": {"5": 101}}, 400, "101 was given; it must be at most 100"),
    "biases": (COMPLETION, {**ASK, "logit_bias": {str(n): 1 for n in range(1025)}}, 400, "an object with 1024"),
    "list of biases": (COMPLETION, {**ASK, "logit_bias": [5]}, 400, "logit_bias: [5] was given; it must be an object"),
    "bias of a word": (COMPLETION, {**ASK, "logit_bias": {"the": 1}}, 400, "logit_bias: 'the' is no token; they are"),
    "bias beyond": (COMPLETION, {**ASK, "logit_bias": {"257": 1}}, 400, "logit_bias: '257' is no token; they are from"),
    "long bias": (COMPLETION, {**ASK, "logit_bias": {"9" * 5000: 1}}, 400, "is no token; they are from 0 to 256"),
    "lines of a bias": (TALK, {**SAY, "logit_bias": {"\n'" * 5000: 500}}, 400, "500 was given; it must be"),
    "best_of": (COMPLETION, {**ASK, "best_of": 2, "n": 3}, 400, "best_of: 2 was given; it must be at least n"),
    "many": (COMPLETION, {**ASK, "best_of": 17}, 400, "best_of: 17 texts for each of 1 prompts; there may be 16"),
    "best stream": (COMPLETION, {**ASK, "best_of": 3, "stream": True}, 400, "best_of: 3 was given; it must be n"),
    "no end": (TALK, {**SAY, "ignore_eos": True, "response_format": {"type": "json_object"}}, 400, "ignore_eos: true"),
    "tools": (TALK, {**SAY, "tools": [{}]}, 400, "tools[0].type is missing; it is required"),
    "function": (TALK, {**SAY, "tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "of the form"),
    "place for tools": (TALK, {**SAY, "tools": [TOOL]}, 400, "tools: this model's chat template has no place for"),
    "tools of a text": (COMPLETION, {**ASK, "tools": [TOOL]}, 400, "tools is not supported"),
    "arguments": (TALK, {**SAY, "messages": [CALLING]}, 400, "messages: the arguments of a call are [1]; they must be"),
    "messages": (TALK, {**SAY, "messages": "a"}, 400, "messages: \"a\" was given; it must be a list"),
    "no messages": (TALK, {**SAY, "messages": []}, 400, "messages: [] was given; it must be a list with 1"),
    "role": (TALK, {**SAY, "messages": [{"role": "king", "content": "a"}]}, 400, "\"king\" was given; it"),
    "content": (TALK, {**SAY, "messages": [{"role": "user"}]}, 400, "messages[0].content is missing"),
    "picture": (TALK, {**SAY, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "it must be \"te"),
    "prompt of a chat": (TALK, {**SAY, "prompt": "a"}, 400, "prompt is not supported; leave it out"),
    "large": (COMPLETION, b" " * (2**20 + 1), 413, "the body has more than 1,048,576 bytes"),
    "misspelled": (COMPLETION, {**ASK, "max_token": 5}, 400, "max_token is not supported; there may be max_tokens"),
    "choice": (TALK, {**SAY, "tool_choice": "any"}, 400, "tool_choice: \"any\" was given; it must be"),
    "no tool": (TALK, {**SAY, "tool_choice": "required"}, 400, "tools: there is none; tool_choice requires a call"),
    "null content": (TALK, {**SAY, "messages": [{"role": "user", "content": None}]}, 400, "messages[0].content"),
    "path": ("/v1/embeddings", {}, 404, "POST /v1/embeddings: Not Found; there are GET /v1/models"),
    "slash": ("/v1/completions/", ASK, 404, "Not Found"),
    "method": ("/v1/models", {}, 405, "POST /v1/models: Method Not Allowed; it must be GET"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "reason"), BAD.values(), ids=BAD)
def test_bad_requests(client, path, body, status, reason):
    found = client(path, body)
    assert found.status_code == status and reason in error_of(found)
    assert not re.search(r"\bNone\b|\bTrue\b|\bFalse\b|required property|properties|schema|evaluated", error_of(found))
    assert client(COMPLETION, ASK).status_code == 200


def test_a_body_that_is_too_large_is_refused_before_and_while_it_comes(client):
    async def parts():
        for _ in range(3):
            yield b" " * 2**19

    async def ask(headers, content=None):
        return await client.client.post(COMPLETION, headers={**JSON, **headers}, content=content)

    for found in (
        client.runner.run(ask({"content-length": "9" * 30})),
        client.runner.run(ask({"transfer-encoding": "chunked"}, parts())),
    ):
        assert found.status_code == 413 and "more than 1,048,576 bytes" in error_of(found)
        assert found.headers["connection"] == "close"


def test_what_a_web_page_could_send_is_refused(client):
    """A page may post text to any address without permission, and may bind its own name to this machine's address."""
    found = client(COMPLETION, ASK, headers={"content-type": "text/plain"})
    assert found.status_code == 415 and "it must be application/json" in error_of(found)
    for host in ("evil.example", "evil.example:80", "[::1", "localhost.evil.example", "127.0.0.1.nip.io"):
        found = client("/v1/models", b"", "GET", {"host": host})
        assert found.status_code == 403 and "is not this server's name" in error_of(found)
    for host in ("localhost:8000", "127.0.0.1", "[::1]:9", "LOCALHOST"):
        assert client("/v1/models", b"", "GET", {"host": host}).status_code == 200
    assert "access-control-allow-origin" not in client(COMPLETION, ASK, headers={**JSON, "origin": "http://a"}).headers


_words = st.text(st.characters(), max_size=4) | st.sampled_from(["tiny", "a", "user", "text", "content", "role"])
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | _words
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3), max_leaves=6
)
_keys = st.sampled_from(
    ["model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p",
     "repetition_penalty", "seed", "n", "stop", "stream", "stream_options", "frequency_penalty", "logit_bias", "user",
     "response_format", "echo", "logprobs", "top_logprobs", "presence_penalty", "best_of",
     "ignore_eos"]
)  # fmt: skip
_bodies = st.builds(
    lambda base, changes: {**base, **changes}, st.sampled_from([ASK, SAY]), st.dictionaries(_keys, _values)
)


@given(path=st.sampled_from([COMPLETION, TALK]), body=_values | _bodies | st.binary(max_size=20))
@example(path=COMPLETION, body={**ASK, "prompt": [[[]]]})
@example(path=COMPLETION, body={**ASK, "temperature": 5e-324, "top_p": 5e-324, "min_p": 1.0, "top_k": 1})
@example(path=COMPLETION, body={**ASK, "logprobs": 5, "echo": True, "max_tokens": 0, "best_of": 3, "n": 2})
@example(path=COMPLETION, body={**ASK, "logit_bias": {"a": [[[]]]}})
@example(path=COMPLETION, body={**ASK, "temperature": 2, "repetition_penalty": 0.01, "seed": -1, "n": 16})
def test_no_body_is_a_fault_of_the_server(client, path, body):
    found = client(path, body)
    if found.status_code == 200:
        assert "choices" in found.text
    else:
        assert found.status_code in (400, 404)
        error_of(found)
    assert client.service.worker.requests == 0


@pytest.mark.parametrize("depth", [900, 950, 980, 990, 1000, 5000])
def test_no_depth_is_a_fault_of_the_server(client, depth):
    """JSON deep enough to be parsed, and too deep to be printed."""
    for deep in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        for key in (b"prompt", b"messages", b"user", b"logit_bias"):
            found = client(COMPLETION, b'{"model": "tiny", "%s": %s}' % (key, deep))
            assert found.status_code == 400 and error_of(found)


def test_texts_of_ever_other_kinds_do_not_fill_the_memory(client, monkeypatch):
    monkeypatch.setattr(completion_module, "MAX_PROGRAMS", 4)
    for top_k in range(1, 12):
        assert client(COMPLETION, {**ASK, "max_tokens": 2, "temperature": 1, "top_k": top_k}).status_code == 200
        assert len(client.service.worker.writer._step.programs()) <= 4
