"""Witness: a process beside the ranks of a host that reports which of them died.

A launcher kills all ranks as soon as one dies, so none could report it. The witness has its own session, which the
launcher does not kill. All ranks connect to it and announce a regular end; the first connection that breaks without one
belongs to the rank that died. It is started as a script without polyarr, so that it starts quickly and uses little
memory.
"""

import os
import selectors
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import Any

CONNECT_SECONDS = 20.0  # for all ranks together
READY = b"r"  # sent to the ranks when all are connected
ENDED, REPORTED = b"e", b"t"  # regular end of one rank; end of all ranks for a reason already reported


class Witness:
    """Connection of a rank to the witness of its host."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.connection = connection
        connection.settimeout(CONNECT_SECONDS)
        self._say(name.encode() + b"\n")
        with suppress(OSError):
            connection.recv(len(READY))

    def ended(self) -> None:
        """Announce the regular end of this rank."""
        self._say(ENDED)

    def reported(self) -> None:
        """Announce that all ranks end for a reason that was reported."""
        self._say(REPORTED)

    def _say(self, what: bytes) -> None:
        with suppress(OSError):  # a dead witness must not end the rank
            self.connection.sendall(what)


def connect(local: Any, name: str) -> Witness | None:
    """Connect to the witness of this host, which its first rank starts; return None if there is none.

    `local` is the MPI communicator of the ranks of this host.
    """
    folder = path = None
    with suppress(OSError):  # disk full
        if local.rank == 0:
            folder = tempfile.TemporaryDirectory(prefix="polyarr-")
            path = _start(os.path.join(folder.name, "witness"), local.size)
    path, witness = local.bcast(path), None
    if sys.platform != "win32" and path is not None:
        with suppress(OSError):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(path)
            witness = Witness(connection, name)
    local.Barrier()
    if folder is not None:
        folder.cleanup()
    return witness


def _start(path: str, ranks: int) -> str | None:
    if sys.platform == "win32":  # no Unix sockets
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(ranks)
        listener.set_inheritable(True)
        # In a new session, so that signals of the launcher to the process group of a rank do not reach it.
        command = [sys.executable, "-I", "-S", __file__, str(listener.fileno()), str(ranks)]
        subprocess.Popen(
            command, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
        )
    return path


def main(listener: socket.socket, ranks: int) -> None:
    """Wait for the end of all ranks, or report the first that dies."""
    received: dict[socket.socket, bytearray] = {}
    listener.settimeout(CONNECT_SECONDS)
    waiting = selectors.DefaultSelector()  # epoll, which reports events in order
    with suppress(TimeoutError):  # a rank died before it connected
        for _ in range(ranks):
            connection, _ = listener.accept()
            received[connection] = bytearray()
            waiting.register(connection, selectors.EVENT_READ, data=connection)
    listener.close()
    for connection in received:
        with suppress(OSError):
            connection.sendall(READY)
    while received:
        # All pending events in order, so that the first rank that died is found even if several did.
        found: list[tuple[socket.socket, bytes]] = [(key.data, key.data.recv(256)) for key, _ in waiting.select()]
        for connection, more in found:
            received[connection] += more
        if any(REPORTED in each.partition(b"\n")[2] for each in received.values()):
            return
        for connection, more in found:
            if not more:
                waiting.unregister(connection)
                name, _, state = received.pop(connection).partition(b"\n")
                if not state:
                    os.write(2, b"polyarr: " + name + b" died; all ranks end\n")
                    return


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
