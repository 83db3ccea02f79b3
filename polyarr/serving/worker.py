"""Who writes: a model and a device have one user, a thread in which requests have their turn."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from polyarr.models.writing import Part, Writer
from polyarr.schema import in_one_line
from polyarr.serving.protocol import Asked, RefusedError

_log = logging.getLogger(__name__)


class Worker:
    """Writes texts, one request after the other, on the backend that is the current one here and now.

    waiting  how many requests may wait for their turn
    """

    def __init__(self, writer: Writer, waiting: int) -> None:
        self.writer, self._places, self._taken = writer, 1 + waiting, 0
        self._thread, self._context = ThreadPoolExecutor(1, "polyarr-serve"), copy_context()

    @property
    def requests(self) -> int:
        """How many have a place: one of them is written, the others wait."""
        return self._taken

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place for a request. It is free again when the block is left, however that happens.

        Errors:  RefusedError if there is none
        """
        if self._taken == self._places:
            text = f"{self._taken} requests are here already; try again later"
            raise RefusedError(429, text, code="rate_limit_exceeded")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    async def write(self, asked: Asked) -> AsyncIterator[Part]:
        """The parts of the texts. Who closes it ends the writing, after the token that is being computed.

        Errors:  RefusedError if the model fails
        """
        loop, parts, is_left = asyncio.get_running_loop(), asyncio.Queue(), threading.Event()

        def work() -> None:
            end = None
            try:
                for part in self._parts(asked):
                    if is_left.is_set():
                        return
                    loop.call_soon_threadsafe(parts.put_nowait, part)
            except BaseException as error:  # whatever a driver raises, the thread goes on
                _log.error("a request failed: %s", in_one_line(error) or type(error).__name__, exc_info=error)
                end = RefusedError(500, f"the model failed: {in_one_line(error) or type(error).__name__}")
            loop.call_soon_threadsafe(parts.put_nowait, end)

        task = self._thread.submit(self._context.run, work)
        try:
            while isinstance(found := await parts.get(), Part):
                yield found
            if found is not None:
                raise found
        finally:
            is_left.set()
            task.cancel()

    def close(self) -> None:
        """Wait for the thread to end; what waits for its turn never begins."""
        self._thread.shutdown(cancel_futures=True)

    def _parts(self, asked: Asked) -> Iterator[Part]:
        options = {"stop": asked.stop, "seed": asked.seed}
        return self.writer.write(asked.prompts, asked.max_tokens, **options, **asked.sampling)
