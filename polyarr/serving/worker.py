"""Worker that generates text in a single thread, since a model and its device have one user."""

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from polyarr.models.completion import Part
from polyarr.models.shared_writer import Call, SharedWriter
from polyarr.schema import in_one_line
from polyarr.serving.protocol import CompletionRequest, Limits, RefusedError, read
from polyarr.text.sandbox import SandboxedTokenizer, abandoned

HELD = 16  # parts of a whole answer that are held back; each that is given takes time of the event loop
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Slot:
    """A slot of a request.

    Attributes:
        client: The client.
        tokens: Number of tokens that the texts of the request may have with their prompts; 0 until it is read.
        job: The job that reads the request in a thread, or None before that.
    """

    client: str
    tokens: int = 0
    job: Future | None = None


class Worker:
    """Generator of texts of several requests at once, on the backend that is current when it is created.

    Args:
        writer: The writer.
        tokenizer: The writer's tokenizer, which encodes several requests at once.
        waiting: Number of requests that may wait in the queue.
        at_once: Number of requests that have slots besides those.
    """

    def __init__(self, writer: SharedWriter, tokenizer: SandboxedTokenizer, waiting: int, at_once: int = 1) -> None:
        self.writer, self._tokenizer, self._slots = writer, tokenizer, at_once + waiting
        self.at_once, self._asked, self._is_closed = at_once, SimpleQueue[_Job | None](), False
        self._clients, self._tokens = Counter[str](), Counter[str]()  # slots, and tokens of their requests
        self._reading = 0
        # One thread per slot, so that a request which takes long to encode does not delay others.
        self._readers = ThreadPoolExecutor(self._slots, "polyarr-read")
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name="polyarr-serve", daemon=True)
        self._thread.start()

    @property
    def requests(self) -> int:
        """Number of requests that have a slot: those that are running, and those in the queue."""
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
        slot = Slot(client)
        try:
            yield slot
        finally:
            if slot.job is None or slot.job.done():
                self._free(slot)
            else:
                loop = asyncio.get_running_loop()
                slot.job.add_done_callback(partial(self._free_later, loop, slot))

    def reserve(self, slot: Slot, tokens: int, most: int | None = None) -> None:
        """Count the tokens of a request until its slot is free.

        Args:
            slot: The slot of the request.
            tokens: Number of tokens that its texts may have with their prompts.
            most: Largest number of tokens of one client; None: any number.

        Raises:
            RefusedError: The client has too many tokens.
        """
        mine = self._tokens[slot.client]
        if most is not None and mine + tokens > most:
            text = f"{tokens:,} tokens, and your other requests have {mine:,}; together there may be {most:,}"
            raise RefusedError(429 if mine else 400, text, code="rate_limit_exceeded")
        slot.tokens = tokens
        self._tokens[slot.client] += tokens

    @property
    def waiting(self) -> dict[str, int]:
        """Number of requests that are being read, and of texts that wait, by the reason."""
        return {"reading": self._reading, **self.writer.waiting}

    def _free(self, slot: Slot) -> None:
        self._clients[slot.client] -= 1
        self._tokens[slot.client] -= slot.tokens
        self._clients += Counter()  # drops clients without slots
        self._tokens += Counter()

    def _free_later(self, loop: asyncio.AbstractEventLoop, slot: Slot, _: Future) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(self._free, slot)

    async def read(self, body: bytes, is_chat: bool, model: str, limits: Limits, slot: Slot) -> CompletionRequest:
        """Return the request in a body, which a thread reads, because encoding a long text takes time.

        If the caller is cancelled, what is not begun by then never is.

        Raises:
            RefusedError: The request cannot be answered.
        """
        is_left, context = threading.Event(), copy_context()
        context.run(abandoned.set, is_left.is_set)
        given = body, is_chat, model, self._tokenizer, self.writer.constraints, limits
        slot.job = self._readers.submit(lambda: context.run(read, *given))
        self._reading += 1
        try:
            return await asyncio.wrap_future(slot.job)
        finally:
            self._reading -= 1
            is_left.set()

    async def write(self, request: CompletionRequest, client: str = "") -> AsyncGenerator[list[Part], None]:
        """Yield the parts of the texts of a request, all that are there at a time.

        Closing the generator ends it after the current token. Rows are shared out fairly among the clients.

        Raises:
            RefusedError: The model fails.
        """
        job = _Job(request, client, asyncio.get_running_loop(), asyncio.Queue())
        self._asked.put(job)
        try:
            last: list[Part] | RefusedError | None = []
            while isinstance(last, list):
                found, last = list[Part](), await job.parts.get()
                while isinstance(last, list):
                    found += last
                    if job.parts.empty():
                        break
                    last = job.parts.get_nowait()
                if found:
                    yield found
            if last is not None:
                raise last
        finally:
            job.is_left = True

    def close(self) -> None:
        """End the threads: requests that wait or are being encoded are aborted."""
        self._tokenizer.close()
        self.writer.constraints.close()
        self._readers.shutdown(cancel_futures=True)
        self._is_closed = True
        self._asked.put(None)  # wakes the thread
        self._thread.join()

    def _run(self) -> None:
        """Write texts until the worker is closed."""
        jobs: dict[Call, _Job] = {}
        while self._take(jobs):
            try:
                found = self.writer.step()
            except BaseException as error:  # drivers may raise anything, and the thread must go on
                again = [jobs.pop(call) for call in [*jobs] if not call.has_begun]  # none of these caused it
                self._fail(jobs.values(), error)
                jobs.clear()
                self._reset()
                for job in again:
                    self._asked.put(job)
                continue
            for call, part in found:
                jobs[call].held.append(part)
            done = [call for call in jobs if call.is_done]
            due = [(job, job.taken()) for call, job in jobs.items() if job.is_due or (call.is_done and job.held)]
            _give([*due, *((jobs.pop(call), _end_of(call)) for call in done)])

    def _take(self, jobs: "dict[Call, _Job]") -> bool:
        """Begin new requests and end those whose clients left; wait if there are none; return whether to go on."""
        for call in [call for call, job in jobs.items() if job.is_left]:
            self.writer.end(call)
            del jobs[call]
        while not self._asked.empty() or not jobs:
            if self._is_closed:
                break
            if (job := self._asked.get()) is None:
                break
            if not job.is_left:
                try:
                    jobs[self._begun(job)] = job
                except BaseException as error:
                    self._fail([job], error)
        return not self._is_closed

    def _reset(self) -> None:
        """Reset the writer, and log a failure; later requests get an error then, and reset the writer again."""
        try:
            self.writer.reset()
        except BaseException as error:
            _log.error("the model does not recover: %s", in_one_line(error) or type(error).__name__, exc_info=error)

    def _begun(self, job: "_Job") -> Call:
        request = job.request
        logprobs = 0 if request.is_ranked and request.logprobs is None else request.logprobs
        return self.writer.begin(
            request.prompts, request.max_tokens, client=job.client, stop=request.stop, seed=request.seed,
            ends=() if request.ignores_ends else None, grammar=request.grammar, echo=request.echo is not None,
            logprobs=logprobs, **request.sampling,
        )  # fmt: skip

    def _fail(self, jobs: "Iterable[_Job]", error: BaseException) -> None:
        reason = in_one_line(error) or type(error).__name__
        _log.error("a request failed: %s", reason, exc_info=error)
        _give([(job, RefusedError(500, f"the model failed: {reason}")) for job in jobs])


@dataclass(eq=False)
class _Job:
    """Request that is being written, and where its parts go."""

    request: CompletionRequest
    client: str
    loop: asyncio.AbstractEventLoop
    parts: asyncio.Queue
    is_left: bool = False
    held: list[Part] = field(default_factory=list)
    is_begun: bool = False  # whether parts were given

    @property
    def is_due(self) -> bool:
        """True if parts are to be given now; parts of a whole answer only count tokens until its end."""
        return len(self.held) >= (1 if self.request.is_stream or not self.is_begun else HELD)

    def taken(self) -> list[Part]:
        """Return the parts that are held, and hold them no longer."""
        found, self.held, self.is_begun = self.held, [], True
        return found


def _end_of(call: Call) -> RefusedError | None:
    """Return the error of a call that has ended, or None."""
    return None if call.error is None else RefusedError(500, f"the grammar of the text failed: {call.error}")


def _give(found: Sequence[tuple[_Job, list[Part] | RefusedError | None]]) -> None:
    """Give each job parts, an error, or None at the end, through its event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list] = {}
    for job, parts in found:
        by_loop.setdefault(job.loop, []).append((job.parts, parts))
    for loop, given in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(_put_all, given)


def _put_all(given: Sequence[tuple[asyncio.Queue, list[Part] | RefusedError | None]]) -> None:
    for queue, parts in given:
        queue.put_nowait(parts)
