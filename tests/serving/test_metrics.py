"""Metrics of `polyarr serve` in Prometheus' text format, in process."""

# ruff: noqa: F401, F811  fixtures are imported

import asyncio
import math
import re
from types import SimpleNamespace

import pytest

from tests.helpers.serving import (
    ASK,
    COMPLETION,
    Client,
    error_of,
    programs,
    runner,
    scripted,
    tiny,
    until,
)

# isort: split

from polyarr.models.completion import Part
from polyarr.serving.access import Access
from polyarr.serving.app import Service
from polyarr.serving.metrics import Metrics
from polyarr.serving.server import server_of

LINE = re.compile(r'(polyarr_[a-z_]+(?:\{[a-z]+="[^"]+"\})?) ([0-9.e+-]+)')


def numbers(client):
    """Return the metrics by name and label, after checking their format."""
    found = client("/metrics", b"", "GET")
    assert found.status_code == 200 and found.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert found.text.endswith("\n")
    values, kinds = {}, {}
    for line in found.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            name, value = LINE.fullmatch(line).groups()
            assert re.sub(r"\{.*|_(bucket|sum|count)(?=$|\{)", "", name) in kinds
            values[name.removeprefix("polyarr_")] = float(value)
    assert {name for name, kind in kinds.items() if kind == "counter"} == {n for n in kinds if n.endswith("_total")}
    return values


@pytest.fixture
def client(tiny, runner):
    service = server_of(*tiny, "tiny").service
    yield Client(service, runner)
    service.worker.close()


def test_requests_and_tokens_are_counted(client):
    before = numbers(client)
    assert before["reused_prompt_tokens_total"] == 0
    assert before["generated_tokens_total"] == before["first_token_seconds_count"] == before["tokens_per_second"] == 0
    client(COMPLETION, {**ASK, "prompt": ["the", "a"], "n": 2})
    client.events(COMPLETION, ASK)
    client(COMPLETION, {**ASK, "echo": True, "max_tokens": 0})
    client(COMPLETION, {**ASK, "n": 99})
    found = numbers(client)
    assert found["prompt_tokens_total"] == (3 + 1) + 3 + 3 and found["generated_tokens_total"] == 4 * 3 + 3
    assert found['responses_total{status="400"}'] == 1
    assert found['responses_total{status="200"}'] == 3 + 1  # the last metrics were asked for after these
    assert found["requests"] == found["cache_use_ratio"] == 0 and found["tokens_per_second"] > 0


def test_the_time_to_the_first_token_is_a_histogram(client):
    for wait in (0.001, 0.005, 0.0051, 59, 1000):
        client.service.metrics._wait(wait)
    found = numbers(client)
    buckets = {float(n.split('"')[1]): v for n, v in found.items() if n.startswith("first_token_seconds_bucket")}
    assert buckets[0.005] == 2 and buckets[0.01] == buckets[30] == 3 and buckets[60] == 4 and buckets[math.inf] == 5
    assert list(buckets.values()) == sorted(buckets.values()) and list(buckets) == sorted(buckets)
    assert found["first_token_seconds_count"] == 5 and found["first_token_seconds_sum"] == pytest.approx(1059.0111)
    client(COMPLETION, ASK)
    assert numbers(client)["first_token_seconds_count"] == 6


def test_the_speed_is_that_after_the_first_tokens(runner, monkeypatch):
    """Two texts of three tokens: four in the two seconds after the first."""
    now = [10.0]
    monkeypatch.setitem(Metrics.counted.__globals__, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    metrics, request = Metrics(99), SimpleNamespace(prompts=[[1], [2]], distinct=2, id="a")

    async def parts():
        for count in (1, 2, 3):
            yield [Part(row, "a", count, None) for row in range(2)]
        now[0] = 12.0

    async def all_parts():
        return [several async for several in metrics.counted(request, parts(), 7.0)]

    assert len(runner.run(all_parts())) == 3
    text = metrics.to_text(0, 0, {})
    assert "polyarr_tokens_per_second 2.0\n" in text and "polyarr_first_token_seconds_sum 3.0\n" in text


def test_what_runs_is_seen(scripted, runner):
    service, writer = scripted
    client = Client(service, runner)

    async def ask():
        post = asyncio.create_task(client.client.post(COMPLETION, json={**ASK, "max_tokens": 4, "stream": True}))
        await until(lambda: writer.begun)
        writer.go.release(2)
        await until(lambda: service.metrics._tokens["generated"] == 2)
        return post

    async def end(post):
        writer.go.release(9)
        return await post

    post = runner.run(ask())
    found = numbers(client)
    assert found["requests"] == 1 and found["cache_use_ratio"] == pytest.approx((3 + 2) / 1000)
    assert runner.run(end(post)).status_code == 200
    assert numbers(client)["cache_use_ratio"] == 0


def test_a_client_that_leaves_frees_the_caches(scripted, runner):
    service, writer = scripted
    client = Client(service, runner)

    async def leave():
        post = asyncio.create_task(client.client.post(COMPLETION, json={**ASK, "max_tokens": 900, "stream": True}))
        writer.go.release(1)
        await until(lambda: service.metrics._cached)
        post.cancel()
        await asyncio.wait([post])

    runner.run(leave())
    found = numbers(client)
    assert found["cache_use_ratio"] == 0 and found["generated_tokens_total"] == 1


def test_metrics_need_a_key(tiny, programs, runner, scripted):
    service = Service(scripted[0].worker, "tiny", scripted[0].limits, Access(keys=frozenset([b"sk"])))
    client = Client(service, runner)
    assert "Authorization: it is missing" in error_of(client("/metrics", b"", "GET"))
    found = client("/metrics", b"", "GET", {"authorization": "Bearer sk"})
    assert found.status_code == 200 and 'polyarr_responses_total{status="401"} 1\n' in found.text
