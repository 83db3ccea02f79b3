"""Responses of `polyarr serve`, in process: completions, conversations and streams."""

# ruff: noqa: F401, F811  fixtures are imported

import asyncio

import pytest

from tests.helpers.serving import (
    ASK,
    COMPLETION,
    LENGTH,
    SAY,
    TALK,
    Client,
    ask_directly,
    client,
    error_of,
    runner,
    tiny,
)

# isort: split

from polyarr.serving.server import server_of
from polyarr.text import byte_tokenizer


def test_a_completion_is_what_the_model_writes(client):
    writer = client.service.worker.writer
    wanted = writer.complete(["the"], 3, temperature=0.0)[0]
    found = client(COMPLETION, ASK).json()
    assert found["object"] == "text_completion" and found["model"] == "tiny" and found["id"].startswith("cmpl-")
    assert found["choices"] == [{"text": wanted.text, "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    tokens = byte_tokenizer().encode("the").tolist()
    assert client(COMPLETION, {**ASK, "prompt": tokens}).json()["choices"] == found["choices"]
    assert client(COMPLETION, {**ASK, "prompt": ""}).json()["usage"]["prompt_tokens"] == 1  # the end of another
    assert client(COMPLETION, {**ASK, "max_tokens": None}).json()["usage"]["completion_tokens"] == 16


def test_the_same_seed_gives_the_same_texts_and_several_are_different(client):
    drawn = {**ASK, "temperature": 1.5, "seed": 5, "n": 4, "max_tokens": 8, "top_p": 0.95, "top_k": 200, "min_p": 0.001}
    first, again, other = (client(COMPLETION, {**drawn, "seed": seed}).json()["choices"] for seed in (5, 5, -6))
    assert first == again != other and [one["index"] for one in first] == [0, 1, 2, 3]
    assert len({one["text"] for one in first}) > 1
    several = client(COMPLETION, {**ASK, "prompt": ["the", "a lazy", [33]], "n": 2}).json()
    assert len(several["choices"]) == 6 and several["usage"]["prompt_tokens"] == 3 + 6 + 1
    alone = [client(COMPLETION, {**ASK, "prompt": prompt}).json()["choices"][0]["text"] for prompt in ("the", "a lazy")]
    assert [one["text"] for one in several["choices"][:4]] == [alone[0], alone[0], alone[1], alone[1]]


def test_a_conversation_is_written_with_the_template(client):
    found = client(TALK, SAY).json()
    wanted = client(COMPLETION, {**ASK, "prompt": "u:é?\na:"}).json()
    assert found["object"] == "chat.completion" and found["id"].startswith("chatcmpl-")
    message = {"role": "assistant", "content": wanted["choices"][0]["text"]}
    assert found["choices"] == [{"message": message, "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert found["usage"] == wanted["usage"]
    parts = [{"type": "text", "text": "é"}, {"type": "text", "text": "?"}]
    echoed = [{"role": "user", "content": parts, "name": None, "tool_calls": None}]
    assert client(TALK, {**SAY, "messages": echoed}).json()["choices"] == found["choices"]
    for harmless in ({"tool_choice": "none", "parallel_tool_calls": True}, {"parallel_tool_calls": False}):
        assert client(TALK, {**SAY, **harmless}).json()["choices"] == found["choices"]
    silent = [{"role": "assistant", "content": None, "tool_calls": None}, *SAY["messages"]]
    used = client(TALK, {**SAY, "messages": silent}).json()["usage"]
    assert used["prompt_tokens"] == found["usage"]["prompt_tokens"] + len("a:\n")
    rest = client(TALK, {**SAY, "max_tokens": None}).json()["usage"]
    assert 3 < rest["completion_tokens"] <= LENGTH - rest["prompt_tokens"]
    assert client(TALK, {**SAY, "max_tokens": 9, "max_completion_tokens": 2}).json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_is_the_whole_in_parts(client, seed):
    """Tokens are bytes, so most characters need several."""
    drawn = {"temperature": 2.0, "seed": seed, "max_tokens": 20, "n": 2, "stream_options": {"include_usage": True}}
    whole, *events = client(COMPLETION, {**ASK, **drawn}).json(), *client.events(COMPLETION, {**ASK, **drawn})
    assert events[-1]["usage"] == whole["usage"] and events[-1]["choices"] == []
    assert all(event["usage"] is None for event in events[:-1])
    for index, choice in enumerate(whole["choices"]):
        mine = [c for event in events for c in event["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in mine) == choice["text"] and all(c["text"] for c in mine[:-1])
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
    whole, *events = client(TALK, {**SAY, **drawn}).json(), *client.events(TALK, {**SAY, **drawn, "stream_options": {}})
    assert all("usage" not in event and event["object"] == "chat.completion.chunk" for event in events)
    assert len({event["id"] for event in events}) == 1
    for index, choice in enumerate(whole["choices"]):
        first, *mine = [c for event in events for c in event["choices"] if c["index"] == index]
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]


def test_a_stop_string_ends_a_text_before_it(client):
    text = client(COMPLETION, {**ASK, "max_tokens": 20, "temperature": 1.5, "seed": 1}).json()["choices"][0]["text"]
    stop = text[6:8]
    for given_ in (stop, [stop, "\x00never"]):
        asked = {**ASK, "max_tokens": 20, "temperature": 1.5, "seed": 1, "stop": given_}
        (found,) = client(COMPLETION, asked).json()["choices"]
        assert found["text"] == text[: text.index(stop)] and found["finish_reason"] == "stop"
        assert "".join(e["choices"][0]["text"] for e in client.events(COMPLETION, asked)) == found["text"]


def test_end_tokens_end_a_text_unless_they_are_ignored(client):
    (end,) = byte_tokenizer().ends
    asked = {**ASK, "max_tokens": 6, "logit_bias": {str(end): 100}}
    for ignores, tokens, finish in ((None, 1, "stop"), (False, 1, "stop"), (True, 6, "length")):
        found = client(COMPLETION, {**asked, "ignore_eos": ignores}).json()
        assert found["usage"]["completion_tokens"] == tokens and found["choices"][0]["finish_reason"] == finish


def test_models_and_health(client):
    (found,) = client("/v1/models", b"", "GET").json()["data"]
    assert found["id"] == "tiny" and found == client("/v1/models/tiny", b"", "GET").json()
    assert client("/health", b"", "GET").json() == {"status": "ok", "model": "tiny", "requests": 0}
    assert client("/v1/models/other/one", b"", "GET").status_code == 404


def test_a_model_without_a_template_says_so(tiny, runner):
    service = server_of(tiny[0], byte_tokenizer(), "tiny").service
    refused = Client(service, runner)(TALK, SAY)
    assert refused.status_code == 400 and "no chat template; use /v1/completions" in error_of(refused)
    service.worker.close()


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_slot_is_free_before_the_response_ends(client, is_stream):
    """A client that sends one request after the other is never blocked by its own previous one."""
    sent = []

    async def send(message):
        sent.append((message["type"], message.get("more_body"), client.service.worker.requests))

    client.runner.run(ask_directly(client.service, {**ASK, "stream": is_stream}, send, asyncio.Event()))
    *before, last = sent
    assert last[0] == "http.response.body" and not last[1] and last[2] == 0
    assert is_stream == any(count for _, _, count in before)
