"""Connections to `polyarr serve` over sockets: slow, silent and broken clients keep no slot."""

# ruff: noqa: F401, F811  fixtures are imported

import asyncio
import json
import signal
import socket
import threading

import pytest

from tests.helpers.serving import ASK, Scripted, asked, connected, programs, runner, scripted, serving, tiny, until

# isort: split

from polyarr.serving import app as app_module
from polyarr.serving import server as server_module
from polyarr.serving import worker as worker_module
from polyarr.serving.app import Service
from polyarr.serving.protocol import Limits, RefusedError
from polyarr.serving.server import Server, listen
from polyarr.serving.worker import Worker


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
