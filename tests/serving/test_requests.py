"""Requests of `polyarr serve` in turn, in process: waiting, errors of the model, time limits, and disconnects."""

# ruff: noqa: F401, F811  fixtures are imported

import asyncio
import logging
import math
from types import SimpleNamespace

import pytest

from tests.helpers.serving import (
    ASK,
    COMPLETION,
    Client,
    Scripted,
    ask_directly,
    asked,
    error_of,
    programs,
    runner,
    scripted,
    serving,
    tiny,
    until,
)

# isort: split

from polyarr.serving.app import Service
from polyarr.serving.protocol import Limits
from polyarr.serving.server import server_of
from polyarr.serving.worker import HELD, Worker, _Job


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


def test_requests_without_a_row_survive_an_error_of_the_driver(scripted, runner):
    service, writer = scripted
    client = Client(service, runner)

    def recover():
        for call in writer.calls[:]:
            writer.end(call)
        writer.fault = None

    async def scenario():
        post = asyncio.create_task(client.client.post(COMPLETION, json=ASK))
        await until(lambda: writer.calls)
        writer.calls[0].has_begun, writer.fault, writer.reset = False, RuntimeError("driver"), recover
        writer.go.release(4)
        assert (await post).status_code == 200 and len(writer.begun) == 2

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


def test_a_device_that_does_not_recover_leaves_the_server_answering(scripted, runner, caplog, monkeypatch):
    """Each request gets an error; none waits for a thread that has ended."""
    service, writer = scripted
    client = Client(service, runner)
    writer.fault = RuntimeError("lost device")
    forget = writer.reset
    monkeypatch.setattr(writer, "reset", lambda: forget() or 1 / 0)
    for _ in range(3):
        writer.go.release(1)
        assert "the model failed: lost device" in error_of(client(COMPLETION, ASK))
    assert caplog.text.count("the model does not recover") >= 2  # the last one may be written after the answer


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


def test_parts_of_a_stream_are_given_at_once_and_those_of_a_whole_answer_together():
    for is_stream, sizes in ((True, [1, 1, 1]), (False, [1, HELD, HELD])):
        job, found = _Job(SimpleNamespace(is_stream=is_stream), "", None, None), []
        for _ in range(sum(sizes)):
            job.held.append(None)
            found += [len(job.taken())] if job.is_due else []
        assert found == sizes


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_that_takes_too_long_is_ended(tiny, programs, runner, is_stream, monkeypatch):
    limits, timeout = [], asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda seconds: limits.append(seconds) or timeout(seconds))
    writer = Scripted(tiny[1])
    service = Service(Worker(writer, programs, waiting=1), "tiny", Limits(1000, seconds=0.5))
    client = Client(service, runner)
    found = client(COMPLETION, {**ASK, "stream": is_stream})
    assert found.status_code == 504 and "it takes longer than 0.5 s" in error_of(found) and 0.5 in limits
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


def test_a_time_limit_is_a_number_above_0(tiny):
    for seconds in (0, math.nan):
        with pytest.raises(ValueError, match=rf"^server_of: seconds is {seconds}; it must be above 0$"):
            server_of(*tiny, "tiny", seconds=seconds)
