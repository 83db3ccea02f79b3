"""The application: which paths there are, what is refused, and that whoever leaves or waits too long is let go."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyarr.models.writing import Completion
from polyarr.schema import in_one_line
from polyarr.serving.protocol import Asked, Events, RefusedError, read, whole
from polyarr.serving.worker import Worker

PATIENCE = 10.0  # seconds in which what a client sends must have come
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a stranger may ask for.

    tokens   of a prompt and what follows it, together
    seconds  for a request, once its body is here
    body     bytes
    """

    tokens: int
    seconds: float = 300.0
    body: int = 2**20


class Answer(JSONResponse):
    """JSON in ASCII, which also has half a surrogate pair, as a client may have sent it."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content).encode()


class Service:
    """A model under a name, and what is refused.

    hosts  the names by which a browser may call it; empty: any
    """

    def __init__(self, worker: Worker, model: str, limits: Limits, hosts: frozenset[str] = frozenset()) -> None:
        self.worker, self.model, self.limits, self.hosts = worker, model, limits, hosts
        self.created, self._ending = int(time.time()), asyncio.Event()

    def app(self) -> ASGIApp:
        """The application."""
        paths = [
            Route("/health", self._health, methods=["GET"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._model, methods=["GET"]),
            Route("/v1/completions", Endpoint(self, is_chat=False), methods=["POST"]),
            Route("/v1/chat/completions", Endpoint(self, is_chat=True), methods=["POST"]),
        ]
        app = Starlette(routes=paths, exception_handlers={RefusedError: _refused, HTTPException: _no_such_path})
        app.router.redirect_slashes = False
        return self._guarded(app) if self.hosts else app

    def end(self) -> None:
        """End all that is asked now, and refuse what is asked later."""
        self._ending.set()

    async def until_left(self, work: Coroutine[Any, Any, None], receive: Receive) -> None:
        """Do work until it is done, the client goes away, or the server ends.

        Errors:  RefusedError if the server ends; those of work
        """
        tasks = working, *_ = [asyncio.ensure_future(one) for one in (work, _gone(receive), self._ending.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not working.cancelled():
            working.result()
        elif self._ending.is_set():
            raise RefusedError(503, "the server is being stopped")

    async def _health(self, _: Request) -> Answer:
        return Answer({"status": "ok", "model": self.model, "requests": self.worker.requests})

    async def _models(self, _: Request) -> Answer:
        return Answer({"object": "list", "data": [self._described()]})

    async def _model(self, request: Request) -> Answer:
        if request.path_params["name"] != self.model:
            raise RefusedError(404, f"model: there is {self.model!r} only", "model", "model_not_found")
        return Answer(self._described())

    def _described(self) -> dict[str, Any]:
        return {"id": self.model, "object": "model", "created": self.created, "owned_by": "polyarr"}

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        """An application for those who know its address: a page that renames itself to it is a stranger still."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            named = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
            if named and _host(named) not in self.hosts:
                refused = RefusedError(403, f"Host: {in_one_line(named)!r} is not this server's name")
                await _error(refused)(scope, receive, send)
            else:
                await app(scope, receive, send)

        return guarded


class Endpoint:
    """What writes: the body is read, a place taken, the texts are written, and the place is free again."""

    def __init__(self, service: Service, is_chat: bool) -> None:
        self.service, self.is_chat = service, is_chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        reply = Reply(scope, receive, send)
        limit = self.service.limits.seconds
        try:
            body = await _body(Request(scope, receive), self.service.limits.body)
            with contextlib.ExitStack() as place:
                place.enter_context(self.service.worker.place())
                async with asyncio.timeout(limit):
                    await self.service.until_left(self._write(body, reply, place), receive)
        except ClientDisconnect:
            pass
        except TimeoutError:
            text = f"it takes longer than {limit:g} s; ask for fewer tokens"
            await reply.fail(RefusedError(504, text, code="timeout"))
        except RefusedError as refused:
            await reply.fail(refused)
        except Exception as error:
            _log.error("a fault of the server: %s", type(error).__name__, exc_info=error)
            await reply.fail(RefusedError(500, f"this is a fault of the server: {type(error).__name__}"))

    async def _write(self, body: bytes, reply: "Reply", place: contextlib.ExitStack) -> None:
        """Write what is asked. The place is free before the answer is whole: who has it may ask again at once."""
        service = self.service
        # A long text takes a while to encode, in which others are to be heard.
        asked = await asyncio.to_thread(
            read, body, self.is_chat, service.model, service.worker.writer.tokenizer, service.limits.tokens
        )
        async with contextlib.aclosing(service.worker.write(asked)) as parts:
            if not asked.is_stream:
                texts = await _joined(asked, parts)
                place.close()
                await reply.send_whole(whole(asked, texts))
                return
            events = Events(asked)
            async for part in parts:
                for event in events.of(part):
                    await reply.send_event(event)
            place.close()
            for event in events.last():
                await reply.send_event(event)
            await reply.end()


class Reply:
    """One answer: whole, or a stream of events that are sent as they come."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._client, self._send, self._is_begun = (scope, receive, self._noted), send, False

    async def send_whole(self, content: dict[str, Any]) -> None:
        """All at once."""
        await Answer(content)(*self._client)

    async def send_event(self, text: str) -> None:
        """One more event of a stream, which begins with the first."""
        if not self._is_begun:
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._noted({"type": "http.response.start", "status": 200, "headers": raw})
        await self._send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})
        await asyncio.sleep(0)  # others are heard between two events, and that the client has gone

    async def end(self) -> None:
        """End a stream."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, refused: RefusedError) -> None:
        """Say why there is no answer, or no more of it; not for long to who does not listen."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                if not self._is_begun:
                    await _error(refused)(*self._client)
                else:
                    await self.send_event(json.dumps(refused.to_dict()))
                    await self.end()

    def _noted(self, message: Message) -> Awaitable[None]:
        self._is_begun = True
        return self._send(message)


async def _body(request: Request, most: int) -> bytes:
    """The body of a request.

    Errors:  RefusedError if it is no JSON, too large or too slow
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which no page can send to another site unasked
        raise RefusedError(415, "Content-Type: it must be application/json")
    found, announced = bytearray(), request.headers.get("content-length", "0")
    too_large = RefusedError(413, f"the body has more than {most:,} bytes")
    if not announced.isdecimal() or int(announced[:20]) > most:
        raise too_large
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                found += chunk
                if len(found) > most:
                    raise too_large
    except TimeoutError:
        raise RefusedError(408, f"the body did not come within {PATIENCE:g} s") from None
    return bytes(found)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _joined(asked: Asked, parts: Any) -> list[Completion]:
    texts, ends = [""] * len(asked.prompts), [(0, "length")] * len(asked.prompts)
    async for part in parts:
        texts[part.row] += part.text
        ends[part.row] = part.tokens, part.finish
    return [Completion(text, *end) for text, end in zip(texts, ends, strict=True)]


def _host(named: str) -> str | None:
    try:
        return urlsplit(f"//{named}").hostname
    except ValueError:
        return None


# ---- refusals --------------------------------------------------------------------------------------------------------


def _error(refused: RefusedError, headers: Any = None) -> Answer:
    # What is left of a body that is not read would be taken for the next request.
    closing = {"connection": "close"} if refused.status in (408, 413, 415) else {}
    again = {"retry-after": "1"} if refused.status in (429, 503) else {}
    return Answer(refused.to_dict(), refused.status, {**(headers or {}), **closing, **again})


async def _refused(_: Request, refused: RefusedError) -> Answer:
    return _error(refused)


async def _no_such_path(request: Request, error: HTTPException) -> Answer:
    allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
    way_out = "there are GET /v1/models and /health, POST /v1/completions and /v1/chat/completions"
    if error.status_code == 405:
        way_out = f"it must be {', '.join(allowed)}"
    reason = f"{request.method} {in_one_line(request.url.path)}: {error.detail}; {way_out}"
    return _error(RefusedError(error.status_code, reason), error.headers)
