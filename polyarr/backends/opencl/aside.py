"""Work that is not OpenCL's, in its turn among what is enqueued: the queue waits for it, and nobody else does."""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pyopencl as cl

from polyarr.backends.opencl.device import Device, Refusal


class Aside:
    """A function that a thread of our own calls, once all that was enqueued before is done; what comes after waits.

    Calls are in order, each after the one before has returned. After one that fails the device takes nothing any more,
    and says why: what it holds is not what it should be. `end` is called when all is done and nobody has this any more.
    """

    def __init__(self, device: Device, work: Callable[..., None], end: Callable[[], None]) -> None:
        self._device, self._todo = device, SimpleQueue[Any]()
        args = self._todo, device, work, end
        threading.Thread(target=_worker, args=args, name="polyarr aside", daemon=True).start()
        weakref.finalize(self, self._todo.put, None)

    def __call__(self, *args: Any) -> None:
        """Return at once."""
        commands = self._device.commands
        with commands.lock:
            before, gate = cl.enqueue_marker(commands.queue), cl.UserEvent(commands.queue.context)
            cl.enqueue_barrier(commands.queue, wait_for=[gate])
            commands.queue.flush()
        self._todo.put((before, gate, args))


def _worker(todo: SimpleQueue, device: Device, work: Callable[..., None], end: Callable[[], None]) -> None:
    while (found := todo.get()) is not None:
        before, gate, args = found
        try:
            before.wait()
            work(*args)
        except Exception as error:  # whoever waits would do so for ever
            device.lock = device.commands.lock = Refusal(f"{device.name} stopped: {error}")
        gate.set_status(cl.command_execution_status.COMPLETE)
        del found, before, gate, args
    end()
