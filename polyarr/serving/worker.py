"""Worker that generates text in a single thread, since only one request at a time can use the model and its device."""

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial

from polyarr.models.completion import Part, Writer
from polyarr.schema import in_one_line
from polyarr.serving.protocol import CompletionRequest, Limits, RefusedError, read
from polyarr.text.sandbox import SandboxedTokenizer, abandoned

_log = logging.getLogger(__name__)


class Slot:
    """A slot of a request.

    Attributes:
        job: The job that reads the request in a thread, or None before that.
    """

    job: Future | None = None


class Worker:
    """Generator of texts, one request after the other, on the backend that is current when it is created.

    Args:
        writer: The writer.
        tokenizer: The writer's tokenizer, which encodes several requests at once.
        waiting: Number of requests that may wait in the queue.
    """

    def __init__(self, writer: Writer, tokenizer: SandboxedTokenizer, waiting: int) -> None:
        self.writer, self._tokenizer, self._slots = writer, tokenizer, 1 + waiting
        self._clients: Counter[str] = Counter()
        # One thread per slot, so that a request which takes long to encode does not delay others.
        self._readers = ThreadPoolExecutor(self._slots, "polyarr-read")
        self._thread, self._context = ThreadPoolExecutor(1, "polyarr-serve"), copy_context()

    @property
    def requests(self) -> int:
        """Number of requests that have a slot: the one that is running, and those in the queue."""
        return self._clients.total()

    @contextlib.contextmanager
    def slot(self, client: str = "", most: int | None = None) -> Iterator[Slot]:
        """Reserve a slot for a request of a client, and free it when the block ends.

        While a thread still reads the request, whose client may have left, the slot stays taken.

        Args:
            client: The client.
            most: Largest number of slots of one client; None: all.

        Raises:
            RefusedError: There is no free slot.
        """
        mine = self._clients[client]
        if self.requests == self._slots or mine == most:
            count = f"{mine} of your requests" if mine == most else f"{self.requests} requests"
            text = f"{count} are here already; try again later"
            raise RefusedError(429, text, code="rate_limit_exceeded")
        self._clients[client] += 1
        slot = Slot()
        try:
            yield slot
        finally:
            if slot.job is None or slot.job.done():
                self._free(client)
            else:
                loop = asyncio.get_running_loop()
                slot.job.add_done_callback(partial(self._free_later, loop, client))

    def _free(self, client: str) -> None:
        self._clients[client] -= 1
        self._clients += Counter()  # drops clients without slots

    def _free_later(self, loop: asyncio.AbstractEventLoop, client: str, _: Future) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(self._free, client)

    async def read(self, body: bytes, is_chat: bool, model: str, limits: Limits, slot: Slot) -> CompletionRequest:
        """Return the request in a body, which a thread reads, because encoding a long text takes time.

        If the caller is cancelled, what is not begun by then never is.

        Raises:
            RefusedError: The request cannot be answered.
        """
        is_left, context = threading.Event(), copy_context()
        context.run(abandoned.set, is_left.is_set)
        slot.job = self._readers.submit(context.run, read, body, is_chat, model, self._tokenizer, limits)
        try:
            return await asyncio.wrap_future(slot.job)
        finally:
            is_left.set()

    async def write(self, request: CompletionRequest) -> AsyncIterator[Part]:
        """Yield the parts of the texts of a request; closing the generator ends it after the current token.

        Raises:
            RefusedError: The model fails.
        """
        loop, parts, is_left = asyncio.get_running_loop(), asyncio.Queue(), threading.Event()

        def work() -> None:
            end = None
            try:
                for part in self._parts(request):
                    if is_left.is_set():
                        return
                    loop.call_soon_threadsafe(parts.put_nowait, part)
            except BaseException as error:  # drivers may raise anything, and the thread must go on
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
        """End the threads: queued requests never run, and requests that are being encoded are aborted."""
        self._tokenizer.close()
        self._readers.shutdown(cancel_futures=True)
        self._thread.shutdown(cancel_futures=True)

    def _parts(self, request: CompletionRequest) -> Iterator[Part]:
        options = {"stop": request.stop, "seed": request.seed, "echo": request.echo is not None}
        options["logprobs"] = 0 if request.is_ranked and request.logprobs is None else request.logprobs
        return self.writer.write(request.prompts, request.max_tokens, **options, **request.sampling)
