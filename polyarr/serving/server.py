"""HTTP server: sockets, idle connections, and graceful shutdown."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from polyarr.models.decoder import LanguageModel
from polyarr.models.shared_writer import SharedWriter
from polyarr.serving.access import access_of, client_of, is_loopback
from polyarr.serving.access import api_keys as api_keys
from polyarr.serving.access import check_origins as check_origins
from polyarr.serving.app import CLIENT_TIMEOUT, Service, error_answer
from polyarr.serving.protocol import Limits, RefusedError
from polyarr.serving.worker import Worker
from polyarr.text import Tokenizer
from polyarr.text.sandbox import SandboxedTokenizer

GRACE = 8.0  # seconds after a signal in which pending requests may finish
CONNECTIONS = 500
MAX_LENGTH = 4096  # default length of texts, if the model's context is longer
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class IdleClosingProtocol(H11Protocol):
    """Connection protocol that closes a connection which is idle, or whose client does not read its answer.

    Args:
        *args: As in uvicorn's protocol.
        most: Largest number of connections of one client on another machine; None: any number.
        **settings: As in uvicorn's protocol.
    """

    def __init__(self, *args: Any, most: int | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._most = most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection, unless the client has too many, and begin to check whether it is idle."""
        super().connection_made(cast("asyncio.Transport", transport))
        if self._most is not None and self._owned() > self._most:
            self.transport.abort()
        self._watch(None)

    def _owned(self) -> int:
        """Return the number of connections of this connection's client."""
        mine = self.client and self.client[0]
        if not mine or is_loopback(mine):  # it may be a proxy for many clients
            return 0
        others = [one.client for one in self.connections if isinstance(one, H11Protocol)]
        return sum(client is not None and client_of(client[0]) == client_of(mine) for client in others)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, in the format of all other errors."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = error_answer(RefusedError(400, msg))
            headers = [*answer.raw_headers, (b"connection", b"close")]
            start = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (start, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def _watch(self, before: Any) -> None:
        """Close the connection if it is idle in the same request as at the last check; else check again later."""
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            return
        cycle = self.cycle
        is_idle = cycle is None or cycle.response_complete or self.transport.is_closing()
        now = (is_idle, cycle)
        if is_idle and now == before:
            self.transport.abort()
        else:
            self.loop.call_later(CLIENT_TIMEOUT, self._watch, now)


class Server(uvicorn.Server):
    """Server that lets pending requests finish after the first signal, for a while, and ends at the second one.

    Attributes:
        stopped_by: Number of the signal that stopped it, or 0.
    """

    stopped_by = 0
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, service: Service) -> None:
        super().__init__(
            uvicorn.Config(
                self._limiting_connections(service.app()),
                http=cast("type[asyncio.Protocol]", partial(IdleClosingProtocol, most=service.access.connections)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                log_level="error",
                server_header=False,
                timeout_graceful_shutdown=round(GRACE) + 1,
            )
        )
        self.service = service

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal comes, then end the worker's threads; signals are handled until these have ended."""
        gc.collect()
        gc.freeze()  # or else a collection, which visits all steps of compiled programs, halts all texts
        with self._taken_signals():
            try:
                super().run(sockets)
            finally:
                self.service.worker.close()
                gc.unfreeze()

    def _limiting_connections(self, app: ASGIApp) -> ASGIApp:
        """Return an application that refuses requests while there are too many connections."""

        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            count = len(self.server_state.connections)
            crowded = RefusedError(503, f"there are {count - 1} connections already; try again later")
            await (app if count <= CONNECTIONS else error_answer(crowded))(scope, receive, send)

        return limited

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals until the server has ended; `stopped_by` is the first one."""
        self._loop = asyncio.get_running_loop()
        if self.stopped_by:  # the signal came before the loop ran
            self._loop.call_soon(self._stop, self.stopped_by)
        with self._taken_signals():
            yield

    @contextlib.contextmanager
    def _taken_signals(self) -> Iterator[None]:
        def handle(number: int, _: Any) -> None:
            self.stopped_by = self.stopped_by or number
            if self._loop:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._stop, number)

        before = {number: signal.signal(number, handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int) -> None:
        if self.should_exit:
            self.service.end()
            return
        self.should_exit, self.stopped_by = True, number
        asyncio.get_running_loop().call_later(GRACE, self.service.end)


def server_of(
    model: LanguageModel,
    tokenizer: Tokenizer,
    name: str,
    host: str = "127.0.0.1",
    *,
    length: int | None = None,
    batch: int = 8,
    waiting: int = 32,
    seconds: float = 300.0,
    is_trusted: bool = False,
    hosts: Collection[str] = (),
    keys: Collection[bytes] = (),
    per_client: int | None = None,
    tokens_per_client: int | None = None,
    origins: Collection[str] = (),
    drafts: int = 0,
    draft_model: LanguageModel | None = None,
) -> Server:
    """Return a server of a model on the current backend; `run([socket])` serves until a signal comes.

    Args:
        model: A language model.
        tokenizer: Its tokenizer.
        name: Name by which clients ask for the model.
        host: Address at which the server listens. At a loopback address, clients must call it by a loopback name.
        length: Largest number of tokens of a prompt and its completion together; None: the model's context_length, but
            at most 4,096.
        batch: Number of texts that are written at a time. The caches take batch times length positions.
        waiting: Number of requests that may wait in the queue.
        seconds: Time limit of a request, including the time in the queue.
        is_trusted: Whether messages of a conversation may contain control tokens.
        hosts: Further names by which clients may call the server; not at a loopback address, () allows any name.
        keys: API keys, one of which a request must have; (): requests need none.
        per_client: Largest number of concurrent requests of one client; None: all at a loopback address, else a
            quarter.
        tokens_per_client: Largest number of tokens of the concurrent requests of one client, prompts and max_tokens
            together; None: any number.
        origins: Origins, such as https://app.example, whose web pages may call the server; "*": all.
        drafts: Number of tokens that are drafted at a time while one text is written; 0 for none.
        draft_model: Smaller model with the same tokens, which drafts; None: n-grams of the text do.

    Returns:
        The server, whose kernels are compiled.

    Raises:
        ValueError: A tokenizer does not fit its model, `length` or `seconds` is out of range, an origin is none, or the
            device computes several tokens to other bits than single ones, which rules out drafts.
    """
    context: int = model.config.context_length
    if length is not None and not 1 <= length <= context:
        raise ValueError(f"server_of: length is {length}; it must be from 1 to {context}, the model's context")
    if not seconds > 0:
        raise ValueError(f"server_of: seconds is {seconds}; it must be above 0")
    programs = SandboxedTokenizer(tokenizer)
    length = length or min(context, MAX_LENGTH)
    # To pyright it is no Tokenizer, as __getattr__ has the rest of one.
    writer = SharedWriter(model, programs, batch, length, drafts, draft_model)  # pyright: ignore[reportArgumentType]
    writer.begin([[0]], 2)  # compile the kernels before the first request
    while not writer.is_idle:
        writer.step()
    programs.wait()
    limits = Limits(length, seconds, is_trusted=is_trusted)
    access = access_of(host, waiting, hosts, keys, per_client, origins, tokens_per_client)
    return Server(Service(Worker(writer, programs, waiting, batch), name, limits, access))


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket at an address.

    Args:
        host: The address.
        port: The port; 0: one that the system chooses.

    Raises:
        OSError: The address cannot be used; the error names it.

    Examples:
        >>> from polyarr.serving.server import listen
        >>> with listen("127.0.0.1", 0) as listener:
        ...     listener.getsockname()[0]
        '127.0.0.1'
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server((host, port), family=found[0][0], backlog=CONNECTIONS)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), f"{host}:{port}") from error
