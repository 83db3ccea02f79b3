"""The server: a socket, patience with slow clients that ends, and signals that let what runs finish."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from polyarr.models.decoder import LanguageModel
from polyarr.models.writing import Writer
from polyarr.serving.app import PATIENCE, Limits, Service
from polyarr.serving.worker import Worker
from polyarr.text import Tokenizer

GRACE = 10.0  # seconds after a signal in which what runs may finish
CONNECTIONS = 500
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Patient(H11Protocol):
    """Connections of which one that asks nothing for a while, or does not take what it asked for, is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to watch."""
        super().connection_made(transport)
        self._watch(None)

    def _watch(self, before: Any) -> None:
        """Look again later; close it if it is idle, and was so in the same request before."""
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            return
        asked = self.cycle
        is_idle = asked is None or asked.response_complete or self.transport.is_closing()
        now = (is_idle, asked)
        if is_idle and now == before:
            self.transport.abort()
        else:
            self.loop.call_later(PATIENCE, self._watch, now)


class Server(uvicorn.Server):
    """A server whose first signal lets what runs finish, for a while, and whose second one ends it."""

    stopped_by = 0

    def __init__(self, service: Service) -> None:
        super().__init__(
            uvicorn.Config(
                service.app(),
                http=Patient,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                log_level="error",
                server_header=False,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=round(GRACE) + 2,
            )
        )
        self.service = service

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal comes, and end the thread that writes."""
        try:
            super().run(sockets)
        finally:
            self.service.worker.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals until the server has ended; who runs it is told by `stopped_by`."""
        loop = asyncio.get_running_loop()

        def handle(number: int, _: Any) -> None:
            loop.call_soon_threadsafe(self._stop, number)

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
    waiting: int = 32,
    seconds: float = 300.0,
) -> Server:
    """A server of a model, on its backend, under a name; `run([socket])` serves until a signal comes.

    host     where it listens: at an address of this machine alone, browsers must call it by that
    length   how many tokens a prompt and what follows it may have; None: the model's context
    waiting  how many requests may wait for their turn
    seconds  how long a request may take, waiting included

    Errors:  ValueError if the tokenizer does not fit the model; whatever the backend meets in a first token
    """
    context = model.config.context_length
    writer = Writer(model, tokenizer)
    for _ in writer.write([[0]], 2 if context > 1 else 1):  # the kernels are built before anybody waits
        pass
    limits = Limits(min(length or context, context), seconds)
    hosts = frozenset({"localhost", "127.0.0.1", "::1", host.lower()} if is_loopback(host) else ())
    return Server(Service(Worker(writer, waiting), name, limits, hosts))


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 is one that the system chooses.

    Errors:  OSError with the address
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server((host, port), family=found[0][0], backlog=CONNECTIONS)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), f"{host}:{port}") from error


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"
