"""Worker process of a sandbox: it answers requests about one tokenizer or chat template, within limits.

A request is a list of a method's name and its arguments, an answer is a dict; both are JSON after their length in 8
bytes. The first request describes the tokenizer or the template and states the limits. The worker ends when its
standard input does, and the system ends it when one request takes too much time.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from polyarr.text.chat import ChatTemplate
from polyarr.text.grammar import Grammars
from polyarr.text.streams import TextStream
from polyarr.text.subword import SubwordTokenizer
from polyarr.text.tokenizer import Tokenizer, tokenizer_from_dict

if sys.platform == "win32":
    resource = None
else:
    import resource

MAX_FRAME = 2**26  # bytes of a request or an answer
MAX_SETUP = 2**30  # bytes of the first request: a tokenizer may have 2^27, most of which JSON escapes
MAX_TEXT = 2**22  # characters of a rendered conversation or of one decoded part
_PRIVATE = range(0xE000, 0xF900)  # private-use characters, one of which becomes the mark


class RequestHandler:
    """Requests that a worker answers about a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._streams: dict[int, TextStream] = {}

    def begin(self) -> list[int]:
        """Return the tokens that the tokenizer puts before a text."""
        return list(self._tokenizer.begin)

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the tokens of texts."""
        return [tokens.tolist() for tokens in self._tokenizer.encode_batch(texts, add_special_tokens)]

    def encode_within(self, text: str, most: int, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text, or of a beginning of it that has more than `most` tokens.

        A long text is tried by its beginning first, because a text that is refused need not be encoded as a whole.
        """
        size = 8 * most
        while size < len(text):
            found = self._tokenizer.encode(text[:size], add_special_tokens)
            if len(found) > 2 * most:  # twice as many: the last tokens of a beginning may differ from the text's
                return found.tolist()
            size *= 4
        return self._tokenizer.encode(text, add_special_tokens).tolist()

    def encode_rendered(self, text: str, marked: str, mark: str, most: int) -> list[int]:
        """Return the tokens of a rendered conversation, in which only the template's control tokens are recognized.

        The template writes special tokens such as <s> itself, so none are added. If the marks change which control
        tokens there are, then messages spell some, and these become ordinary text.
        """
        found, tokenizer = self.encode_within(text, most, False), self._tokenizer
        if not marked or len(found) > 2 * most or not isinstance(tokenizer, SubwordTokenizer):
            return found
        control, safe = set(tokenizer.control), tokenizer.encode_marked(marked, mark).tolist()
        is_same = [n for n in found if n in control] == [n for n in safe if n in control]
        return found if is_same else safe

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return _bounded(self._tokenizer.decode(tokens))

    def pieces(self, tokens: Sequence[int], after: Sequence[int]) -> list[str]:
        """Return the pieces of a whole text of tokens, after others."""
        pieces = list(self._tokenizer.stream(tokens, after=after))
        _bounded("".join(pieces))
        return pieces

    def open(self, key: int, after: Sequence[int], seen: Sequence[int]) -> None:
        """Begin to decode a text after the tokens `after`; the tokens `seen` were decoded before."""
        stream = TextStream(self._tokenizer, after)
        for token in seen:
            stream.add(token)
        self._streams[key] = stream

    def step(self, added: Sequence[tuple[int, int]], closed: Sequence[int]) -> list[str | None]:
        """Return the characters that one more token adds to each of several texts, given as pairs (key, token).

        A text that was never opened here has None. The texts `closed` are dropped.
        """
        for one in closed:
            self._streams.pop(one, None)
        return [_bounded(self._streams[key].add(token)) if key in self._streams else None for key, token in added]

    def rest(self, key: int) -> str | None:
        """Return the rest of a text at its end, or None if the text was never opened here."""
        return _bounded(self._streams.pop(key).rest()) if key in self._streams else None


class TemplateHandler:
    """Requests that a worker answers about a chat template."""

    def __init__(self, chat: ChatTemplate) -> None:
        self._chat = chat

    def render(
        self, messages: Sequence[Mapping[str, Any]], starts: str, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[str, str, str]:
        """Return a conversation as text, the text with a mark after each of `starts` in the messages, and the mark.

        `starts` are the first characters of control tokens. If the messages and tools have none of them, the second
        text is empty.
        """
        text = _bounded(self._chat.write(messages, tools))
        given = "".join(_texts([messages, tools]))
        if set(given).isdisjoint(starts):
            return text, "", ""
        mark = next((mark for mark in map(chr, _PRIVATE) if mark not in given), None)
        if mark is None:
            raise ValueError("the messages have every private-use character; at least one must be left out")
        table = str.maketrans({start: start + mark for start in starts})
        marked = [_translated(one, table) for one in (messages, tools)]
        return text, _bounded(self._chat.write(*marked)), mark


def _is_structure(name: str, value: Any) -> bool:
    """Return whether a template may compare a value: a role or a type, as long as it is a word."""
    return name in ("role", "type") and isinstance(value, str) and value.isidentifier()


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in JSON that a client sent, among them names that are not words."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield "" if name.isidentifier() else name
            yield from () if _is_structure(name, one) else _texts(one)


def _translated(value: Any, table: Mapping[int, str]) -> Any:
    """Return JSON with each of its `_texts` translated."""
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, list):
        return [_translated(one, table) for one in value]
    if isinstance(value, dict):
        return {
            name if name.isidentifier() else name.translate(table): one
            if _is_structure(name, one)
            else _translated(one, table)
            for name, one in value.items()
        }
    return value


def _bounded(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ValueError(f"it made {len(text):,} characters; there may be {MAX_TEXT:,}")
    return text


# ---- the process -----------------------------------------------------------------------------------------------------


def read_frame(stream: IO[bytes], most: int | None = None) -> Any:
    """Return the next value of a stream, of at most `most` bytes (None: MAX_FRAME).

    Raises:
        EOFError: The stream is at its end.
        ValueError: The value is too long.
    """
    size = int.from_bytes(_read(stream, 8))
    _check(size, most)
    return json.loads(_read(stream, size))


def _check(size: int, most: int | None) -> None:
    if size > (most or MAX_FRAME):
        raise ValueError(f"it made {size:,} bytes; there may be {most or MAX_FRAME:,}")


def _read(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found


def write_frame(stream: IO[bytes], value: Any, most: int | None = None) -> None:
    """Write a value for `read_frame`, as JSON in ASCII, which can hold lone surrogates.

    Raises:
        ValueError: The value is too long.
    """
    data = json.dumps(value).encode()
    _check(len(data), most)
    stream.write(len(data).to_bytes(8) + data)
    stream.flush()


def main() -> None:
    """Answer requests until there are no more."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # text that a library prints must not mix with the answers
    with contextlib.suppress(EOFError, BrokenPipeError):
        described, limits = read_frame(requests, MAX_SETUP)
        handler = _handler(described)
        _limit_memory(limits["memory"])
        write_frame(answers, {"answer": None})
        while True:
            name, *arguments = read_frame(requests)
            with _timed(**limits):
                answer = _answer(handler, name, arguments)
                try:
                    write_frame(answers, answer)
                except ValueError as error:
                    write_frame(answers, {"error": str(error)})


def _handler(described: dict[str, Any]) -> Any:
    if described.keys() == {"grammars"}:
        return Grammars(tokenizer_from_dict(described["grammars"]))
    if described.keys() == {"template", "tokens"}:
        return TemplateHandler(ChatTemplate.from_dict(described))
    return RequestHandler(tokenizer_from_dict(described))


def _answer(handler: Any, name: str, arguments: Sequence[Any]) -> dict[str, Any]:
    try:
        return {"answer": getattr(handler, name)(*arguments)}
    except Exception as error:  # untrusted code may raise anything
        is_memory = isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError)
        return {"memory": True} if is_memory else {"error": str(error) or type(error).__name__}


@contextlib.contextmanager
def _timed(cpu: float, wall: float, **_: Any) -> Iterator[None]:
    """Let the system end this process if the block takes too long; Python cannot interrupt a native library."""
    if sys.platform == "win32":
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, wall)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(memory: int) -> None:
    """Limit this process to `memory` bytes more, on systems with such a limit, and switch off core dumps."""
    if resource is None:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with open("/proc/self/statm", encoding="utf-8") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    main()
