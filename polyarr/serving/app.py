"""ASGI application of the server: routes, error answers, timeouts and disconnects."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyarr.models.completion import Completion, Part, joined
from polyarr.schema import in_one_line
from polyarr.serving.access import Access
from polyarr.serving.answers import Events, whole
from polyarr.serving.metrics import CONTENT_TYPE, Metrics
from polyarr.serving.protocol import CompletionRequest, Limits, RefusedError
from polyarr.serving.worker import Slot, Worker

CLIENT_TIMEOUT = 10.0  # seconds in which a client must have sent the body
_log = logging.getLogger(__name__)


class Answer(JSONResponse):
    """JSON response in ASCII, which can hold lone surrogates that a client sent."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content).encode()


class Service:
    """Application state: a model under a name, limits and access rules.

    Args:
        worker: The worker that generates text.
        model: Name of the model.
        limits: Limits of a request.
        access: Access rules; None: everybody may use it.
    """

    def __init__(self, worker: Worker, model: str, limits: Limits, access: Access | None = None) -> None:
        self.worker, self.model, self.limits, self.access = worker, model, limits, access or Access()
        self.created, self._ending = int(time.time()), asyncio.Event()
        self.metrics = Metrics(worker.at_once * limits.tokens)

    def app(self) -> ASGIApp:
        """Return the ASGI application."""
        paths = [
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._model, methods=["GET"]),
            Route("/v1/completions", Endpoint(self, is_chat=False), methods=["POST"]),
            Route("/v1/chat/completions", Endpoint(self, is_chat=True), methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {RefusedError: _refused, HTTPException: _no_such_path}
        app = Starlette(routes=paths, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return self._with_cors(self._guarded(app))

    def end(self) -> None:
        """Abort all pending requests, and refuse later ones."""
        self._ending.set()

    async def until_disconnect(self, work: Coroutine[Any, Any, None], receive: Receive) -> None:
        """Run `work` until it is done, the client disconnects, or the server ends.

        Raises:
            RefusedError: The server ends.
            Exception: Any error of `work`.
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

    async def _metrics(self, _: Request) -> Response:
        now = self.worker.requests, self.worker.writer.reused, self.worker.waiting
        return Response(self.metrics.to_text(*now), media_type=CONTENT_TYPE)

    async def _models(self, _: Request) -> Answer:
        return Answer({"object": "list", "data": [self._described()]})

    async def _model(self, request: Request) -> Answer:
        if request.path_params["name"] != self.model:
            raise RefusedError(404, f"model: there is {self.model!r} only", "model", "model_not_found")
        return Answer(self._described())

    def _described(self) -> dict[str, Any]:
        return {"id": self.model, "object": "model", "created": self.created, "owned_by": "polyarr"}

    def _with_cors(self, app: ASGIApp) -> ASGIApp:
        """Return an application that lets web pages of the allowed origins read its answers (CORS)."""
        if not self.access.origins:
            return app
        origins, methods = sorted(self.access.origins), ["GET", "POST"]
        return CORSMiddleware(app, origins, methods, allow_headers=["*"], expose_headers=["retry-after"])

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        """Return an application that checks access first, and counts responses.

        Host names are checked to stop DNS rebinding by web pages.
        """

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            def counting(message: Message) -> Awaitable[None]:
                if message["type"] == "http.response.start":
                    self.metrics.count_response(message["status"])
                return send(message)

            refused = self.access.refused(scope) if scope["type"] == "http" else None
            await (error_answer(refused) if refused else app)(scope, receive, counting)

        return guarded


class Endpoint:
    """ASGI endpoint of completions: it reads the body, reserves a slot in the queue, and sends the generated texts."""

    def __init__(self, service: Service, is_chat: bool) -> None:
        self.service, self.is_chat = service, is_chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        reply = Reply(scope, receive, send)
        limit = self.service.limits.seconds
        try:
            body = await _body(Request(scope, receive), self.service.limits.body)
            with contextlib.ExitStack() as slot:
                client = self.service.access.client(scope)
                mine = slot.enter_context(self.service.worker.slot(client, self.service.access.slots))
                async with asyncio.timeout(limit):
                    await self.service.until_disconnect(self._write(body, reply, slot, mine), receive)
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

    async def _write(self, body: bytes, reply: "Reply", slot: contextlib.ExitStack, mine: Slot) -> None:
        """Generate and send texts; the slot is freed before the last part is sent, so the client can ask again."""
        service, began = self.service, time.perf_counter()
        request = await service.worker.read(body, self.is_chat, service.model, service.limits, mine)
        service.worker.reserve(mine, request.tokens, service.access.tokens)
        async with contextlib.aclosing(
            service.metrics.counted(request, service.worker.write(request, mine.client), began)
        ) as parts:
            if not request.is_stream:
                texts = await _joined(request, parts)
                slot.close()
                await reply.send_whole(whole(request, texts))
                return
            events = Events(request)
            async for several in parts:
                await reply.send_events([event for part in several for event in events.of(part)])
            slot.close()
            await reply.send_events([*events.last()])
            await reply.end()


class Reply:
    """One answer: a whole one, or a stream of server-sent events."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._client, self._send, self._is_begun = (scope, receive, self._noted), send, False

    async def send_whole(self, content: dict[str, Any]) -> None:
        """Send a whole answer."""
        await Answer(content)(*self._client)

    async def send_events(self, texts: Sequence[str]) -> None:
        """Send events together; the first ones begin the stream."""
        if not texts:
            return
        if not self._is_begun:
            headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._noted({"type": "http.response.start", "status": 200, "headers": raw})
        body = "".join(f"data: {text}\n\n" for text in texts).encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        """End a stream."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, refused: RefusedError) -> None:
        """Send an error as the answer or as the last event; give up after a second if the client does not read it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                if not self._is_begun:
                    await error_answer(refused)(*self._client)
                else:
                    await self.send_events([json.dumps(refused.to_dict())])
                    await self.end()

    def _noted(self, message: Message) -> Awaitable[None]:
        self._is_begun = True
        return self._send(message)


async def _body(request: Request, most: int) -> bytes:
    """Return the body of a request.

    Raises:
        RefusedError: The body is not JSON, too large or too slow.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # browsers do not let a page send this type to another site without its consent
        raise RefusedError(415, "Content-Type: it must be application/json")
    found, announced = bytearray(), request.headers.get("content-length", "0")
    too_large = RefusedError(413, f"the body has more than {most:,} bytes")
    if not announced.isdecimal() or int(announced[:20]) > most:
        raise too_large
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT):
            async for chunk in request.stream():
                found += chunk
                if len(found) > most:
                    raise too_large
    except TimeoutError:
        raise RefusedError(408, f"the body did not come within {CLIENT_TIMEOUT:g} s") from None
    return bytes(found)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _joined(request: CompletionRequest, parts: AsyncIterator[list[Part]]) -> list[Completion]:
    rows = [[Part(row, "", 0, "length")] for row in range(len(request.prompts))]
    async for several in parts:
        for part in several:
            rows[part.row].append(part)
    return [joined(each) for each in rows]


def error_answer(refused: RefusedError, headers: Any = None) -> Answer:
    """Return the response for an error."""
    # The connection is closed where the rest of an unread body would be taken for the next request.
    closing = {"connection": "close"} if refused.status in (401, 403, 408, 413, 415) else {}
    again = {"retry-after": "1"} if refused.status in (429, 503) else {}
    asking = {"www-authenticate": "Bearer"} if refused.status == 401 else {}
    return Answer(refused.to_dict(), refused.status, {**(headers or {}), **closing, **again, **asking})


async def _refused(_: Request, refused: RefusedError) -> Answer:
    return error_answer(refused)


async def _no_such_path(request: Request, error: HTTPException) -> Answer:
    allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
    way_out = "there are GET /v1/models, /health and /metrics, POST /v1/completions and /v1/chat/completions"
    if error.status_code == 405:
        way_out = f"it must be {', '.join(allowed)}"
    reason = f"{request.method} {in_one_line(request.url.path)}: {error.detail}; {way_out}"
    return error_answer(RefusedError(error.status_code, reason), error.headers)
