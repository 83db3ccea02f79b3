"""Responses and errors of `polyarr serve`, in process: no request breaks the server or keeps a slot."""

import asyncio
import itertools
import json
import logging
import re
import signal
import socket
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import polyarr as pa
from polyarr.models import LlamaModel
from polyarr.text import ChatTemplate, SubwordTokenizer, byte_tokenizer

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("jinja2")

from polyarr.models import completion as completion_module  # noqa: E402
from polyarr.models.completion import Part  # noqa: E402
from polyarr.serving import app as app_module  # noqa: E402
from polyarr.serving import server as server_module  # noqa: E402
from polyarr.serving import worker as worker_module  # noqa: E402
from polyarr.serving.app import Service  # noqa: E402
from polyarr.serving.protocol import MAX_ROWS, Limits, RefusedError  # noqa: E402
from polyarr.serving.server import Server, listen, server_of  # noqa: E402
from polyarr.serving.worker import Worker  # noqa: E402
from polyarr.text.sandbox import SandboxedTokenizer  # noqa: E402

LENGTH = 40
LLAMA = {
    "vocab_size": 260, "context_length": LENGTH, "emb_dim": 8, "n_heads": 2, "n_layers": 1, "n_kv_heads": 1,
    "hidden_dim": 12, "head_size": 4, "tie_embeddings": True,
}  # fmt: skip
CHAT = ChatTemplate("{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:")
COMPLETION, TALK = "/v1/completions", "/v1/chat/completions"
ASK = {"model": "tiny", "prompt": "the", "max_tokens": 3, "temperature": 0}
SAY = {"model": "tiny", "messages": [{"role": "user", "content": "é?"}], "max_tokens": 3, "temperature": 0}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def tiny():
    """A model whose tokens are bytes, and its tokenizer."""
    with pa.use_backend("numpy"):
        pa.random.seed(0)
        model = pa.tree.map(lambda p: p * 4, LlamaModel(LLAMA))
        yield model, SubwordTokenizer(byte_tokenizer().to_json(), None, CHAT)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as found:
        yield found


class Client:
    """A client of an application that must not raise."""

    def __init__(self, service, runner):
        self.service, self.runner = service, runner
        transport = httpx.ASGITransport(service.app(), raise_app_exceptions=True)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def __call__(self, path, body, method="POST", headers=JSON):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.runner.run(self.client.request(method, path, content=content, headers=headers))

    def events(self, path, body):
        """Return the events of a stream without the final [DONE]."""
        found = self(path, {**body, "stream": True})
        assert found.status_code == 200 and found.headers["content-type"] == "text/event-stream; charset=utf-8"
        *parts, nothing = found.text.split("\n\n")
        assert nothing == "" and all(part.startswith("data: ") and "\n" not in part for part in parts)
        *events, last = (part.removeprefix("data: ") for part in parts)
        assert last == "[DONE]"
        return [json.loads(event) for event in events]


@pytest.fixture(scope="module")
def client(tiny, runner):
    service = server_of(*tiny, "tiny").service
    yield Client(service, runner)
    assert service.worker.requests == 0
    service.worker.close()


def error_of(answer):
    """Return the content of an error response, after checking its format."""
    ((kind, found),) = answer.json().items()
    assert kind == "error" and found.keys() == {"message", "type", "param", "code"}
    assert found["message"] and "\n" not in found["message"] and len(found["message"]) < 500
    return found["message"]


# ---- what is answered ------------------------------------------------------------------------------------------------


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


async def ask_directly(service, body, send, gone):
    """A completion without a client between; `gone` is set when that goes away."""
    scope = {"type": "http", "method": "POST", "path": COMPLETION, "headers": [(b"content-type", b"application/json")]}
    given = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive():
        return given.pop() if given else await gone.wait() and {"type": "http.disconnect"}

    await service.app()({**scope, "query_string": b"", "root_path": ""}, receive, send)


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


# ---- what is refused -------------------------------------------------------------------------------------------------

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
    "no tokens": (COMPLETION, {**ASK, "max_tokens": 0}, 400, "max_tokens: 0 was given; it must be at least 1"),
    "n": (COMPLETION, {**ASK, "n": 10**9}, 400, "n: 1000000000 texts for each of 1 prompts; there may be 16"),
    "prompts": (COMPLETION, {**ASK, "prompt": ["a"] * (MAX_ROWS + 1)}, 400, "n: 1 texts for each of 17 prompts"),
    "seed": (COMPLETION, {**ASK, "seed": 2**64}, 400, "seed: 18446744073709551616 was given; it must be"),
    "stop": (COMPLETION, {**ASK, "stop": ""}, 400, "a text with 1 or more characters"),
    "stops": (COMPLETION, {**ASK, "stop": ["a"] * 17}, 400, "it must be a list with 16 or fewer elements"),
    "stream": (COMPLETION, {**ASK, "stream": 1}, 400, "stream: 1 was given; it must be true or false"),
    "logprobs": (COMPLETION, {**ASK, "logprobs": 1}, 400, "logprobs is not supported; leave it out"),
    "echo": (COMPLETION, {**ASK, "echo": True}, 400, "echo: true was given; it must be false"),
    "penalty": (COMPLETION, {**ASK, "presence_penalty": 0.5}, 400, "presence_penalty: 0.5 was given; it must be 0"),
    "tools": (TALK, {**SAY, "tools": []}, 400, "tools is not supported; leave it out"),
    "messages": (TALK, {**SAY, "messages": "a"}, 400, "messages: \"a\" was given; it must be a list"),
    "no messages": (TALK, {**SAY, "messages": []}, 400, "messages: [] was given; it must be a list with 1"),
    "role": (TALK, {**SAY, "messages": [{"role": "king", "content": "a"}]}, 400, "\"king\" was given; it"),
    "content": (TALK, {**SAY, "messages": [{"role": "user"}]}, 400, "messages[0].content is missing"),
    "picture": (TALK, {**SAY, "messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "it must be \"te"),
    "prompt of a chat": (TALK, {**SAY, "prompt": "a"}, 400, "prompt is not supported; leave it out"),
    "large": (COMPLETION, b" " * (2**20 + 1), 413, "the body has more than 1,048,576 bytes"),
    "misspelled": (COMPLETION, {**ASK, "max_token": 5}, 400, "max_token is not supported; there may be max_tokens"),
    "tool": (TALK, {**SAY, "tool_choice": "auto"}, 400, "tool_choice: \"auto\" was given; it must be \"none\""),
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
     "response_format", "echo"]
)  # fmt: skip
_bodies = st.builds(
    lambda base, changes: {**base, **changes}, st.sampled_from([ASK, SAY]), st.dictionaries(_keys, _values)
)


@given(path=st.sampled_from([COMPLETION, TALK]), body=_values | _bodies | st.binary(max_size=20))
@example(path=COMPLETION, body={**ASK, "prompt": [[[]]]})
@example(path=COMPLETION, body={**ASK, "temperature": 5e-324, "top_p": 5e-324, "min_p": 1.0, "top_k": 1})
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
        for key in (b"prompt", b"messages", b"user"):
            found = client(COMPLETION, b'{"model": "tiny", "%s": %s}' % (key, deep))
            assert found.status_code == 400 and error_of(found)


def test_texts_of_ever_other_kinds_do_not_fill_the_memory(client, monkeypatch):
    monkeypatch.setattr(completion_module, "MAX_PROGRAMS", 4)
    for top_k in range(1, 12):
        assert client(COMPLETION, {**ASK, "max_tokens": 2, "temperature": 1, "top_k": top_k}).status_code == 200
        assert len(client.service.worker.writer._step.programs()) <= 4


# ---- places, time, and who leaves ------------------------------------------------------------------------------------


class Scripted:
    """A fake writer that yields a part whenever `go` is released, and records which requests began and ended."""

    def __init__(self, tokenizer):
        self.tokenizer, self.go, self.begun, self.ended = tokenizer, threading.Semaphore(0), [], threading.Semaphore(0)
        self.fault = None

    def write(self, prompts, max_new_tokens, **_):
        self.begun.append(self.tokenizer.decode(prompts[0]))
        try:
            for count in itertools.count(1):
                self.go.acquire()
                if self.fault:
                    raise self.fault
                yield Part(0, "x", count, "length" if count == max_new_tokens else None)
                if count == max_new_tokens:
                    return
        finally:
            self.ended.release()


class Kept(SandboxedTokenizer):
    """Workers shared by many services, none of which stops them."""

    def close(self):
        pass


@pytest.fixture(scope="module")
def programs(tiny):
    found = Kept(tiny[1])
    found.wait()
    yield found
    SandboxedTokenizer.close(found)


@pytest.fixture
def scripted(tiny, programs):
    """A service with one waiting slot whose model is scripted."""
    found = Scripted(tiny[1])
    service = Service(Worker(found, programs, waiting=1), "tiny", Limits(1000, 60.0))
    yield service, found
    found.fault = SystemExit("the test has ended")
    found.go.release(100)
    service.worker.close()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_requests_have_their_turn_and_beyond_the_places_they_are_refused(scripted, runner):
    service, writer = scripted
    client = Client(service, runner)

    async def scenario():
        posts = []
        for number in range(2):
            posts.append(asyncio.create_task(client.client.post(COMPLETION, json={**ASK, "prompt": f"{number}"})))
            await until(lambda: service.worker.requests == len(posts) and writer.begun == ["0"])
        refused = await client.client.post(COMPLETION, json=ASK)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert error_of(refused) == "2 requests are here already; try again later"
        assert (await client.client.get("/health")).json()["requests"] == 2
        writer.go.release(6)
        assert [(await post).status_code for post in posts] == [200, 200]
        assert writer.begun == ["0", "1"] and service.worker.requests == 0

    runner.run(scenario())


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("fault", [RuntimeError("CL_OUT_OF_RESOURCES\nlog"), MemoryError(), SystemExit("driver")])
def test_an_error_of_the_driver_is_that_requests_alone(scripted, runner, caplog, fault, is_stream):
    service, writer = scripted
    client = Client(service, runner)
    writer.fault = fault
    writer.go.release(1)
    with caplog.at_level(logging.ERROR):
        found = client(COMPLETION, {**ASK, "stream": is_stream})
    assert found.status_code == 500 and "the model failed: " in error_of(found) and "a request failed" in caplog.text
    writer.fault = None
    writer.go.release(3)
    assert client(COMPLETION, ASK).json()["choices"][0]["text"] == "xxx"


def test_an_error_within_a_stream_is_its_last_event(scripted, runner):
    service, writer = scripted

    async def scenario(client):
        async with serving(service) as port:
            reader, closing = await asked(port, {**ASK, "max_tokens": 900, "stream": True})
            writer.go.release(1)
            await reader.readuntil(b'"text": "x"')
            writer.fault = RuntimeError("lost\ndevice")
            writer.go.release(1)
            rest = (await reader.readuntil(b"0\r\n\r\n")).decode()  # the end of the body
            closing.close()
        assert '"the model failed: lost device"' in rest and "[DONE]" not in rest and "data: {" in rest

    runner.run(scenario(Client(service, runner)))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_that_takes_too_long_is_ended(tiny, programs, runner, is_stream):
    writer = Scripted(tiny[1])
    service = Service(Worker(writer, programs, waiting=1), "tiny", Limits(1000, seconds=0.5))
    client = Client(service, runner)
    found = client(COMPLETION, {**ASK, "stream": is_stream})
    assert found.status_code == 504 and "it takes longer than 0.5 s" in error_of(found)
    assert service.worker.requests == 0
    writer.go.release(1)
    assert writer.ended.acquire(timeout=60)
    service.worker.close()


def test_a_disconnect_is_noticed_among_many_events(scripted, runner):
    service, writer = scripted
    sent, gone = [], asyncio.Event()
    writer.go.release(900)

    async def send(message):
        sent.append(message)
        if len(sent) == 2:  # the first event: by the time it is sent, all others are ready
            await asyncio.to_thread(writer.ended.acquire)
            gone.set()

    runner.run(ask_directly(service, {**ASK, "max_tokens": 900, "stream": True}, send, gone))
    assert len(sent) < 20


# ---- over sockets ----------------------------------------------------------------------------------------------------


class serving:  # noqa: N801  reads as a verb
    """Run a server of a service in this process; the block gets its port."""

    def __init__(self, service):
        self.server, self.socket = Server(service), listen("127.0.0.1", 0)

    async def __aenter__(self):
        self.task = asyncio.create_task(self.server.serve([self.socket]))
        await until(lambda: self.server.started)
        return self.socket.getsockname()[1]

    async def __aexit__(self, *_):
        self.server.should_exit = True
        self.server.service.end()
        await self.task


async def connected(port, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def asked(port, body):
    """A connection on which a completion was asked for."""
    text = json.dumps(body).encode()
    head = f"POST {COMPLETION} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    return await connected(port, head.encode() + b"\r\n\r\n" + text)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_disconnect_frees_the_slot_and_the_thread(scripted, runner, is_stream):
    """After the current token; a waiting client that disconnects never gets its turn."""
    service, writer = scripted

    async def scenario():
        async with serving(service) as port:
            reader, first = await asked(port, {**ASK, "prompt": "1", "max_tokens": 900, "stream": is_stream})
            await until(lambda: writer.begun == ["1"])
            if is_stream:
                writer.go.release(1)
                await reader.readuntil(b'"text": "x"')
            _, second = await asked(port, {**ASK, "prompt": "2", "stream": is_stream})
            await until(lambda: service.worker.requests == 2)
            second.close()
            await until(lambda: service.worker.requests == 1)
            first.close()
            await until(lambda: service.worker.requests == 0)
            writer.go.release(1)  # the token in progress
            assert await asyncio.to_thread(writer.ended.acquire, timeout=60)
            third, closing = await asked(port, {**ASK, "prompt": "3"})
            writer.go.release(3)
            await third.readuntil(b'"text": "xxx"')
            closing.close()
        assert writer.begun == ["1", "3"]

    runner.run(scenario())


def test_the_slot_of_a_client_that_left_is_taken_until_its_text_is_read(scripted, runner, monkeypatch):
    """Otherwise a client that asks and leaves, again and again, makes all others wait; what is not begun never is."""
    service, _ = scripted
    begun, go = [], threading.Event()

    def reads(body, *rest):
        begun.append(body)
        go.wait()
        raise RefusedError(400, "read")

    monkeypatch.setattr(worker_module, "read", reads)

    async def scenario():
        async with serving(service) as port:
            for count in (1, 2):
                _, closing = await asked(port, ASK)
                await until(lambda: len(begun) == count)  # noqa: B023
                closing.close()
            reader, third = await asked(port, ASK)
            assert b" 429 " in await reader.readline() and service.worker.requests == 2
            third.close()
            go.set()
            await until(lambda: service.worker.requests == 0)

    runner.run(scenario())
    assert len(begun) == 2


def test_slow_clients_are_disconnected(scripted, runner, monkeypatch):
    """No bytes, half a head, half a body, or endless partial requests; no other client waits."""
    service, writer = scripted
    monkeypatch.setattr(app_module, "CLIENT_TIMEOUT", 0.1)
    monkeypatch.setattr(server_module, "CLIENT_TIMEOUT", 0.1)
    body = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"
    well = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"

    async def scenario():
        async with serving(service) as port:
            slow = [await connected(port, data) for data in (b"", b"POST /v1/comp", body, well + b"GET /he")]
            writer.go.release(3)
            reader, closing = await asked(port, ASK)
            await reader.readuntil(b'"text": "xxx"')
            nothing, half, late, again = [await reader.read() for reader, _ in slow]
            assert nothing == half == b"" and b'"status": "ok"' in again
            assert late.startswith(b"HTTP/1.1 408 ") and b"the body did not come within 0.1 s" in late
            for one in (closing, *(writer for _, writer in slow)):
                one.close()

    runner.run(scenario())


def test_clients_that_do_not_read_are_disconnected(tiny, programs, runner, monkeypatch):
    """The response waits in the socket; the slot is free after the timeout."""
    monkeypatch.setattr(server_module, "CLIENT_TIMEOUT", 0.1)
    writer = Scripted(tiny[1])
    writer.go.release(50_000)
    service = Service(Worker(writer, programs, waiting=1), "tiny", Limits(60_000, seconds=1.0))

    async def scenario():
        async with serving(service) as port:
            with socket.create_connection(("127.0.0.1", port)) as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                text = json.dumps({**ASK, "max_tokens": 50_000, "stream": True}).encode()
                head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                deaf.sendall(head + b"Content-Length: %d\r\n\r\n" % len(text) + text)
                await until(lambda: service.worker.requests == 1)
                await until(lambda: service.worker.requests == 0)

    runner.run(scenario())
    service.worker.close()


def test_signals_before_and_after_the_loop_are_taken(tiny, programs):
    """No signal is lost, and none raises an exception."""
    server = Server(Service(Worker(Scripted(tiny[1]), programs, waiting=1), "tiny", Limits(9)))
    with server._taken_signals(), listen("127.0.0.1", 0) as listening:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        server.run([listening])
        signal.raise_signal(signal.SIGINT)
    assert server.stopped_by == signal.SIGTERM


def test_too_many_connections_have_an_error_of_the_same_format(scripted, runner, monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS", 2)
    service, _ = scripted

    async def scenario():
        async with serving(service) as port:
            idle = [await connected(port, b"") for _ in range(2)]
            reader, closing = await connected(port, b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in head
            assert json.loads(body)["error"]["message"] == "there are 2 connections already; try again later"
            for one in (closing, *(writer for _, writer in idle)):
                one.close()

    runner.run(scenario())


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01\x02\x00", b"GET / HTTP\r\n\r\n", b"\x00" * 70_000, b"GET /" + b"a" * 70_000, b"\r\n" * 9]
)
def test_what_is_no_http_ends_its_connection_alone(scripted, runner, monkeypatch, junk):
    monkeypatch.setattr(server_module, "CLIENT_TIMEOUT", 0.1)
    service, writer = scripted

    async def scenario():
        async with serving(service) as port:
            reader, closing = await connected(port, junk)
            try:
                said = await reader.read()
            except ConnectionError:
                said = b""
            head, _, body = said.partition(b"\r\n\r\n")
            assert said == b"" or head.startswith(b"HTTP/1.1 400 ")
            assert said == b"" or json.loads(body)["error"]["message"] == "Invalid HTTP request received."
            closing.close()
            writer.go.release(3)
            reader, closing = await asked(port, ASK)
            await reader.readuntil(b'"text": "xxx"')
            closing.close()

    runner.run(scenario())
