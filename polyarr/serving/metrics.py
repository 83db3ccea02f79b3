"""Metrics of a server in Prometheus' text format.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing

from polyarr.models.completion import Part
from polyarr.serving.protocol import CompletionRequest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, math.inf)  # seconds


class Metrics:
    """Numbers of a server since its start, which its event loop updates.

    Args:
        capacity: Number of tokens that fit into the key-value caches.
    """

    def __init__(self, capacity: int) -> None:
        self._most_cached, self._cached = capacity, dict[str, int]()
        self._responses: Counter[int] = Counter()
        self._tokens: Counter[str] = Counter()
        self._rate, self._waits, self._waited = 0.0, [0] * len(BUCKETS), 0.0

    def count_response(self, status: int) -> None:
        """Count a response with an HTTP status."""
        self._responses[status] += 1

    async def counted(
        self, request: CompletionRequest, parts: AsyncGenerator[list[Part], None], began: float
    ) -> AsyncGenerator[list[Part], None]:
        """Yield the parts of the texts of a request, and count them; closing the generator closes `parts`.

        Args:
            request: The request.
            parts: The parts.
            began: Time of time.perf_counter() at which the request came.
        """
        rows, longest, first, count = len(request.prompts), max(map(len, request.prompts)), 0.0, 0
        try:
            async with aclosing(parts):
                async for several in parts:
                    if not first:
                        first = time.perf_counter()
                        self._wait(first - began)
                        self._tokens["prompt"] += request.distinct
                    new = sum(part.tokens > 0 for part in several)
                    count += new
                    self._tokens["generated"] += new
                    self._cached[request.id] = min(rows * (longest + several[-1].tokens), self._most_cached)
                    yield several
        finally:
            self._cached.pop(request.id, None)
            if count > rows:  # the first token of each text came with the prompt
                self._rate = (count - rows) / (time.perf_counter() - first)

    def to_text(self, requests: int, reused: int, waiting: dict[str, int]) -> str:
        """Return the metrics in Prometheus' text format.

        Args:
            requests: Number of requests in the queue.
            reused: Number of tokens of prompts that were copied from other caches.
            waiting: Number of requests or texts that wait, by the reason.
        """
        return "".join(f"{line}\n" for line in self._lines(requests, reused, waiting))

    def _wait(self, seconds: float) -> None:
        self._waits[bisect_left(BUCKETS, seconds)] += 1
        self._waited += seconds

    def _lines(self, requests: int, reused: int, waiting: dict[str, int]) -> Iterator[str]:
        statuses = {f'{{status="{status}"}}': count for status, count in sorted(self._responses.items())}
        yield from _metric("responses_total", "counter", "HTTP responses", statuses)
        yield from _metric("requests", "gauge", "Requests in the queue, the running ones included", {"": requests})
        reasons = {f'{{reason="{reason}"}}': count for reason, count in waiting.items()}
        about = "Requests that are read, texts that wait for a row, texts whose prompt is being computed"
        yield from _metric("waiting", "gauge", about, reasons)
        yield from _metric("prompt_tokens_total", "counter", "Tokens of prompts", {"": self._tokens["prompt"]})
        copied = "Tokens of prompts that were copied from the caches of other texts"
        yield from _metric("reused_prompt_tokens_total", "counter", copied, {"": reused})
        written = {"": self._tokens["generated"]}
        yield from _metric("generated_tokens_total", "counter", "Tokens that were generated", written)
        rate = {"": self._rate}
        yield from _metric("tokens_per_second", "gauge", "Speed of the last request after its first token", rate)
        used = {"": min(1.0, sum(self._cached.values()) / self._most_cached)}
        yield from _metric("cache_use_ratio", "gauge", "Tokens in key-value caches, of the most there may be", used)
        before, buckets = 0, {}
        for bound, count in zip(BUCKETS, self._waits, strict=True):
            before += count
            buckets[f'_bucket{{le="{"+Inf" if bound == math.inf else bound}"}}'] = before
        about = "Time from a request to its first token, waiting included"
        found = {**buckets, "_sum": self._waited, "_count": before}
        yield from _metric("first_token_seconds", "histogram", about, found)


def _metric(name: str, kind: str, about: str, values: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines of a metric; `values` are by what follows its name."""
    yield f"# HELP polyarr_{name} {about}."
    yield f"# TYPE polyarr_{name} {kind}"
    for rest, value in values.items():
        yield f"polyarr_{name}{rest} {value}"
