"""Tokenizers and chat templates in worker processes, which can be killed.

Both come with a model and are untrusted programs: a few characters can ask for any amount of time and memory. See
docs/decisions/0058-programs-of-a-model.md for why this takes a process.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, cast

import numpy as np

from polyarr.text.sandbox_worker import MAX_SETUP, RequestHandler, read_frame, write_frame
from polyarr.text.streams import TextStream
from polyarr.text.subword import SubwordTokenizer
from polyarr.text.tokenizer import Tokenizer

MAX_TOKEN = 2**12  # bytes of the longest token of a tokenizer whose texts are decoded in this process
POLL_SECONDS = 0.05  # how often a request that waits for its turn looks whether it is abandoned
START_SECONDS = 120.0  # time limit for starting a worker
# A template that was stopped STRIKES times in a row is not tried again for REST_SECONDS. One that has rendered before
# gets PROVEN_STRIKES: then the messages are to blame, and those of other clients must not be refused for them.
STRIKES, PROVEN_STRIKES, REST_SECONDS = 3, 10, 10.0
_KILLED = 1 if sys.platform == "win32" else -9  # exit code of a killed worker
_CLOSED = "stopped, for the program ends"
_WORKER = "polyarr.text.sandbox_worker"
# One thread and one malloc arena, since address space that is reserved counts towards the memory limit.
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip


class SandboxError(ValueError):
    """Error for a worker that was stopped."""


class AbandonedError(Exception):
    """Nobody waits for the answer to a request any more, so it was not begun."""


# Whether nobody waits for the answers to the requests of this context; asked when a request's turn comes.
abandoned: ContextVar[Callable[[], bool]] = ContextVar("abandoned", default=lambda: False)


@contextlib.contextmanager
def _turn(lock: Any, what: str) -> Iterator[None]:
    """Hold a lock; a request that is abandoned while it waits leaves the queue."""
    is_abandoned, refused = abandoned.get(), AbandonedError(f"{what}: nobody waits for the answer any more")
    while not lock.acquire(timeout=POLL_SECONDS):
        if is_abandoned():
            raise refused
    try:
        if is_abandoned():
            raise refused
        yield
    finally:
        lock.release()


class Limits(NamedTuple):
    """Limits of one request to a worker.

    Attributes:
        cpu: Seconds of processor time.
        wall: Seconds of wall-clock time.
        memory: Bytes beyond the memory of the worker after its start.
    """

    cpu: float = 3.0
    wall: float = 15.0
    memory: int = 2**30


class Sandbox:
    """Worker process for one tokenizer or chat template, which is restarted after it had to be stopped.

    Requests of several threads are serialized.

    Args:
        what: Name of the tokenizer or template in errors.
        described: The dict of a tokenizer or of a chat template.
        limits: Limits of one request; None: the default ones.
    """

    _is_ready: bool
    _finalizer: weakref.finalize

    def __init__(self, what: str, described: Mapping[str, Any], limits: Limits | None = None) -> None:
        self._what, self._described, self._limits = what, described, limits or Limits()
        self._lock, self._is_closed = threading.Lock(), False
        self._start()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return the result of a method of RequestHandler; with an empty name, only wait until the worker has started.

        Raises:
            ValueError: The method raised one.
            SandboxError: The worker was stopped.
            AbandonedError: Nobody waits for the answer.
            OSError: No worker can be started.
        """
        with _turn(self._lock, self._what):
            if self._is_closed:
                raise SandboxError(f"{self._what}: {_CLOSED}")
            if self._process.poll() is not None:
                self._finalizer()
                self._start()
            try:
                if not self._is_ready:
                    self._exchange([self._described, self._limits._asdict()], START_SECONDS, MAX_SETUP)
                    self._is_ready = True
                answer = self._exchange([name, *arguments], self._limits.wall) if name else {"answer": None}
            except (EOFError, BrokenPipeError):
                raise SandboxError(f"{self._what}: {self._reason(self._process.wait())}") from None
            except BaseException:  # interrupted: the answer would be taken for that of the next request
                self._finalizer()
                raise
        if "answer" in answer:
            return answer["answer"]
        if "memory" in answer:
            raise SandboxError(f"{self._what}: {self._too_much_memory}")
        raise ValueError(answer["error"])

    def close(self) -> None:
        """End the worker; pending and later requests raise SandboxError."""
        self._is_closed = True
        self._process.kill()  # before taking the lock, which a thread that waits for an answer holds
        with self._lock:
            self._finalizer()

    def _start(self) -> None:
        """Start the worker, without waiting for it."""
        home = str(Path(__file__).parents[2])  # the folder from which this process imported polyarr
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _WORKER],
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C must not reach the worker
        )  # fmt: skip
        self._is_ready, self._finalizer = False, weakref.finalize(self, _end, self._process)
        if self._is_closed:  # closed by another thread meanwhile
            self._finalizer()

    def _exchange(self, request: Any, seconds: float, most: int | None = None) -> Any:
        # On systems with setitimer the worker limits itself once it has started; otherwise a timer here kills it.
        is_limited = self._is_ready and hasattr(signal, "setitimer")
        with contextlib.nullcontext() if is_limited else _killed_after(seconds, self._process):
            write_frame(cast("IO[bytes]", self._process.stdin), request, most)
            return read_frame(cast("IO[bytes]", self._process.stdout))

    @property
    def _too_much_memory(self) -> str:
        return f"stopped, for it takes more than {self._limits.memory / 2**20:,.0f} MiB of memory"

    def _reason(self, code: int) -> str:
        """Return the reason why the worker ended with an exit code."""
        if self._is_closed:
            return _CLOSED
        if not self._is_ready:
            return f"its process could not be started; it ended with {code}"
        if -code == getattr(signal, "SIGPROF", None):
            return f"stopped, for it takes more than {self._limits.cpu:g} s of a processor"
        if -code == getattr(signal, "SIGALRM", None) or (code == _KILLED and not hasattr(signal, "setitimer")):
            return f"stopped, for it takes more than {self._limits.wall:g} s"
        if -code == signal.SIGABRT:  # native libraries abort when they run out of memory
            return self._too_much_memory
        return f"its process ended with {code}"


@contextlib.contextmanager
def _killed_after(seconds: float, process: subprocess.Popen) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    for stream in filter(None, (process.stdin, process.stdout)):
        with contextlib.suppress(OSError):
            stream.close()


class _InProcess:
    """Replacement for a Sandbox that runs trusted tokenizers in this process."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._handler = RequestHandler(tokenizer)

    def ask(self, name: str, *arguments: Any) -> Any:
        return getattr(self._handler, name)(*arguments) if name else None

    def close(self) -> None:
        pass


class SandboxedTokenizer:
    """Tokenizer that encodes, decodes and renders conversations in worker processes; otherwise like the given one.

    Rendering, encoding and decoding have a worker each, so that none waits for a slow request of another.

    Args:
        tokenizer: The tokenizer.
        limits: Limits of one request; None: the default ones.
        is_shared: Whether encoding and decoding share a worker, which starts sooner; conversations are not rendered
            then.

    Raises:
        ValueError: The tokenizer or the template raised one.
        SandboxError: A worker was stopped.
        OSError: No worker can be started.
    """

    def __init__(self, tokenizer: Tokenizer, limits: Limits | None = None, is_shared: bool = False) -> None:
        self._tokenizer, self._keys, self._closed = tokenizer, itertools.count(), list[int]()
        self._control: dict[int, str] = {}
        self._encoder: Sandbox | _InProcess
        self._decoder: Sandbox | _InProcess
        self._chat: Sandbox | None = None
        self._rendering, self._rests_until = threading.Lock(), 0.0
        self._strikes, self._strikes_allowed = 0, STRIKES
        if isinstance(tokenizer, SubwordTokenizer):
            self._control = tokenizer.control
            described = {name: value for name, value in tokenizer.to_dict().items() if name != "chat"}
            self._encoder = Sandbox("tokenizer", described, limits)
            self._decoder = self._encoder if is_shared else Sandbox("tokenizer", described, limits)
        else:
            self._encoder = self._decoder = _InProcess(tokenizer)
        if tokenizer.chat is not None and not is_shared:
            self._chat = Sandbox("chat template", tokenizer.chat.to_dict(), limits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until the workers have started."""
        for one in self._workers():
            one.ask("")

    def close(self) -> None:
        """End the workers; pending and later requests raise SandboxError."""
        for one in self._workers():
            one.close()

    def _workers(self) -> "list[Sandbox | _InProcess]":
        return [*([self._chat] if self._chat else []), self._encoder, self._decoder]

    @cached_property
    def begin(self) -> tuple[int, ...]:
        """Tokens that `encode` puts before a text."""
        return tuple(self._encoder.ask("begin"))

    def encode(self, text: str, add_special_tokens: bool = True) -> np.ndarray:
        """Return the tokens of a text, (T,) int32, as Tokenizer.encode does."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[np.ndarray]:
        """Return the tokens of many texts, as Tokenizer.encode_batch does."""
        found = self._encoder.ask("encode", list(texts), add_special_tokens)
        return [np.array(tokens, np.int32) for tokens in found]

    def encode_within(self, text: str, most: int, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text, or of a beginning of it that has more than `most` tokens."""
        return self._encoder.ask("encode_within", text, most, add_special_tokens)

    def encode_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        most: int,
        is_trusted: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Return the tokens of a conversation up to the start of the next answer, limited as in `encode_within`.

        A message that spells a control token, such as <|im_end|>, becomes the characters of it and not the token,
        unless `is_trusted`. `tools` are those of ChatTemplate.write.
        """
        starts = "" if is_trusted else "".join({text[0] for text in self._control.values()})
        return self._encoder.ask("encode_rendered", *self._rendered(messages, starts, tools), most)

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], starts: str, tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[str, str, str]:
        """Return a conversation as texts; a template that was stopped several times in a row is refused for a while."""
        if self._chat is None:
            raise ValueError("chat template: there is none; give a tokenizer with one, and leave is_shared False")
        with _turn(self._rendering, "chat template"):  # those that wait while it is stopped are refused, too
            if self._strikes >= self._strikes_allowed and time.monotonic() < self._rests_until:
                text = f"chat template: it was stopped {self._strikes} times in a row"
                raise SandboxError(f"{text}, and is tried again {REST_SECONDS:g} s later")
            try:
                found = self._chat.ask("render", messages, starts, tools)
            except SandboxError:
                self._strikes, self._rests_until = self._strikes + 1, time.monotonic() + REST_SECONDS
                raise
            self._strikes, self._strikes_allowed = 0, PROVEN_STRIKES
            return found

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens, as Tokenizer.decode does."""
        return self._decoder.ask("decode", [int(token) for token in tokens])

    def stream(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """Yield the text of tokens in pieces, as Tokenizer.stream does; a restarted worker gets the tokens so far.

        A list of tokens takes one request, other iterables one for each token.
        """
        if isinstance(tokens, list):
            yield from self._decoder.ask("pieces", [int(token) for token in tokens], [int(token) for token in after])
            return
        stream = SandboxedStream(self, after)
        for token in tokens:
            yield stream.add(token)
        if rest := stream.rest():
            yield rest

    def add_each(self, added: "Sequence[tuple[SandboxedStream, int]]") -> list[str]:
        """Add a token to each of several streams in one request, and return what their `add` does."""
        gone, self._closed = self._closed, []
        found = self._decoder.ask("step", [(stream.key, token) for stream, token in added], gone)
        lost = [i for i, text in enumerate(found) if text is None]
        for i in lost:
            stream, _ = added[i]
            self._decoder.ask("open", stream.key, stream.after, stream.seen)
        if lost:
            again = self._decoder.ask("step", [(added[i][0].key, added[i][1]) for i in lost], [])
            found = [again.pop(0) if text is None else text for text in found]
        for stream, token in added:
            stream.seen.append(token)
        return found

    def rest_of(self, stream: "SandboxedStream") -> str:
        """Return the rest of a stream."""
        if (found := self._decoder.ask("rest", stream.key)) is None:
            self._decoder.ask("open", stream.key, stream.after, stream.seen)
            found = self._decoder.ask("rest", stream.key)
        return found

    @cached_property
    def decodes_here(self) -> Tokenizer | None:
        """The tokenizer itself if its texts are the joined bytes of its tokens, none of them long; else None."""
        joined = getattr(self._tokenizer, "bytes_of", None)
        return self._tokenizer if joined and max(map(len, joined.values())) <= MAX_TOKEN else None

    def new_key(self, stream: "SandboxedStream") -> int:
        """Return the number of a new stream; the worker forgets the stream after it was garbage-collected."""
        key = next(self._keys)
        weakref.finalize(stream, lambda: self._closed.append(key))  # sent to the worker with the next tokens
        return key


class SandboxedStream(TextStream):
    """Text of tokens that come one by one and that a worker decodes; a restarted worker gets the tokens so far."""

    def __init__(self, tokenizer: SandboxedTokenizer, after: Sequence[int]) -> None:
        self._tokenizer, self.key = tokenizer, tokenizer.new_key(self)
        self.after, self.seen = [int(token) for token in after], list[int]()

    def add(self, token: int) -> str:
        """Add a token, and return the characters that became complete."""
        return self._tokenizer.add_each([(self, int(token))])[0]

    def rest(self) -> str:
        """Return the rest of the text; no more tokens can be added."""
        return self._tokenizer.rest_of(self)

    @staticmethod
    def add_each(streams: Sequence[TextStream], tokens: Sequence[int]) -> list[str]:
        """Add a token to each of several streams of one tokenizer in one request."""
        added = [*zip(cast("Sequence[SandboxedStream]", streams), tokens, strict=True)]
        return added[0][0]._tokenizer.add_each(added) if added else []


def text_stream(tokenizer: Tokenizer, after: Sequence[int]) -> TextStream:
    """Return a stream of the text of tokens after others.

    The worker of a sandboxed tokenizer decodes it, unless that takes no more than joining the bytes of tokens.
    """
    if isinstance(tokenizer, SandboxedTokenizer):
        decodes = tokenizer.decodes_here
        return SandboxedStream(tokenizer, after) if decodes is None else TextStream(decodes, after)
    return TextStream(tokenizer, after)
