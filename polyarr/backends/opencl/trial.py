"""Probe process that tries programs which may crash a driver: python -m polyarr.backends.opencl.trial <device>.

A request is a pickled (function, arguments); the function gets the device as an additional first argument. An answer is
a pickled (is_tried, problem); the problem is empty if there was none. The process ends with its parent, or after IDLE
seconds without a request.
"""

import os
import pickle
import sys
import threading

from polyarr.backends.opencl.devices import select
from polyarr.backends.opencl.runtime.probes import ANNOUNCED
from polyarr.core.announce import announce, observers

IDLE = 20  # seconds without a request after which the process ends, as it occupies memory of the device


def main(name: str) -> None:
    """Answer requests on standard input until it is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a driver that prints must not be taken for an answer
    observers.append(lambda step: print(f"{ANNOUNCED}{step}", file=sys.stderr, flush=True))
    device = None
    while True:
        idle = threading.Timer(IDLE, os._exit, (0,))
        idle.daemon = True
        idle.start()
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        idle.cancel()
        is_tried, wrong = False, ""
        try:
            device = device or select(name)
            announce("")
            is_tried = True
            function(device, *arguments)
        except Exception as error:
            is_tried = is_tried and not isinstance(error, MemoryError)
            wrong = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        pickle.dump((is_tried, wrong), answers)
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
