"""A server of a tiny model, or of a scripted one, and clients of it, for tests of `polyarr serve`.

Importing this module skips the tests of a file if a library of the server is not installed.
"""

import asyncio
import json
import threading

import pytest

import polyarr as pa
from polyarr.models import LlamaModel
from polyarr.text import ChatTemplate, SubwordTokenizer, byte_tokenizer

httpx = pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("jinja2")

from polyarr.models.completion import Part  # noqa: E402
from polyarr.serving.app import Service  # noqa: E402
from polyarr.serving.protocol import Limits  # noqa: E402
from polyarr.serving.server import Server, listen, server_of  # noqa: E402
from polyarr.serving.worker import Worker  # noqa: E402
from polyarr.text.constraints import Constraints  # noqa: E402
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


async def ask_directly(service, body, send, gone):
    """A completion without a client between; `gone` is set when that goes away."""
    scope = {"type": "http", "method": "POST", "path": COMPLETION, "headers": [(b"content-type", b"application/json")]}
    given = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive():
        return given.pop() if given else await gone.wait() and {"type": "http.disconnect"}

    await service.app()({**scope, "query_string": b"", "root_path": ""}, receive, send)


class ScriptedCall:
    """A call of a Scripted writer."""

    error, has_begun = None, True

    def __init__(self, most):
        self.count, self.most, self.is_done = 0, most, False


class Scripted:
    """A fake writer that writes a token whenever `go` is released, and records which calls began and ended."""

    reused, waiting = 0, {"row": 0, "prompt": 0}

    def __init__(self, tokenizer):
        self.tokenizer, self.go, self.begun, self.ended = tokenizer, threading.Semaphore(0), [], threading.Semaphore(0)
        self.fault, self.calls, self.constraints = None, [], Constraints(tokenizer)

    def begin(self, prompts, max_new_tokens, **_):
        self.begun.append(self.tokenizer.decode(prompts[0]))
        self.calls.append(ScriptedCall(max_new_tokens))
        return self.calls[-1]

    def step(self):
        self.go.acquire()
        if self.fault:
            raise self.fault
        return [(call, self._part(call)) for call in self.calls[:]]

    def end(self, call):
        self.calls.remove(call)
        self.ended.release()

    def reset(self):
        for call in self.calls[:]:
            self.end(call)

    def _part(self, call):
        call.count += 1
        call.is_done = call.count == call.most
        if call.is_done:
            self.end(call)
        return Part(0, "x", call.count, "length" if call.is_done else None)


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
