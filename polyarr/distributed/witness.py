"""A process beside the ranks of a host that tells which of them died.

A launcher kills all ranks as soon as one of them dies, so that none is left to tell. This process is not the
launcher's. Ranks are connected to it, and say so before they end; the first whose connection breaks off has died.
It is started as a script, without polyarr: it must be there soon, and cost nothing.
"""

import os
import selectors
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import Any

LATEST = 20.0  # seconds in which all ranks are connected
READY = b"r"  # whoever dies from here on is noticed in time
ENDED, TOLD = b"e", b"t"  # one rank ends as it should; why all ranks end was told


class Witness:
    """A rank's connection to the witness of its host."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.connection = connection
        connection.settimeout(LATEST)
        self._say(name.encode() + b"\n")
        with suppress(OSError):
            connection.recv(len(READY))

    def ended(self) -> None:
        """This rank ends as it should."""
        self._say(ENDED)

    def told(self) -> None:
        """All ranks end, and it was told why."""
        self._say(TOLD)

    def _say(self, what: bytes) -> None:
        with suppress(OSError):  # it died; that is no reason to
            self.connection.sendall(what)


def connect(local: Any, name: str) -> Witness | None:
    """Connect to the witness of this host, which the first of its ranks starts; None where there can be none.

    local  an MPI communicator of the ranks of this host
    """
    folder = path = None
    with suppress(OSError, AttributeError):  # no room, or a system without such sockets
        if local.rank == 0:
            folder = tempfile.TemporaryDirectory(prefix="polyarr-")
            path = _start(os.path.join(folder.name, "witness"), local.size)
    path, witness = local.bcast(path), None
    if path is not None:
        with suppress(OSError):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(path)
            witness = Witness(connection, name)
    local.Barrier()
    if folder is not None:
        folder.cleanup()
    return witness


def _start(path: str, ranks: int) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(path)
        door.listen(ranks)
        door.set_inheritable(True)
        # In a session of its own: what the launcher sends to a rank's group of processes does not reach it.
        command = [sys.executable, "-I", "-S", __file__, str(door.fileno()), str(ranks)]
        subprocess.Popen(command, pass_fds=[door.fileno()], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    return path


def main(door: socket.socket, ranks: int) -> None:
    """Wait for the end of all ranks, or of the first that dies."""
    said: dict[socket.socket, bytearray] = {}
    door.settimeout(LATEST)
    waiting = selectors.DefaultSelector()  # epoll, which keeps the order
    with suppress(TimeoutError):  # a rank that did not get that far
        for _ in range(ranks):
            connection, _ = door.accept()
            said[connection] = bytearray()
            waiting.register(connection, selectors.EVENT_READ)
    door.close()
    for connection in said:
        with suppress(OSError):
            connection.sendall(READY)
    while said:
        # All that there is to know, in the order in which it came: so the first that died is found, however late.
        found = [(key.fileobj, key.fileobj.recv(256)) for key, _ in waiting.select()]
        for connection, more in found:
            said[connection] += more
        if any(TOLD in each.partition(b"\n")[2] for each in said.values()):
            return
        for connection, more in found:
            if not more:
                waiting.unregister(connection)
                name, _, state = said.pop(connection).partition(b"\n")
                if not state:
                    os.write(2, b"polyarr: " + name + b" died; all ranks end\n")
                    return


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
