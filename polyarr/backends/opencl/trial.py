"""The process in which programs are tried: python -m polyarr.backends.opencl.trial <device>.

Each request is a pickled function with its arguments but the first, which is the device. Each answer is pickled, too:
whether it was tried at all, and what was wrong, empty if nothing was. The process ends with the one that asks, or when
nobody asks any more.
"""

import os
import pickle
import sys
import threading

from polyarr.backends.opencl.devices import select

IDLE = 20  # seconds without a request, after which the process ends: it holds memory of the device


def main(name: str) -> None:
    """Answer requests."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a driver that prints must not be taken for an answer
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
            is_tried = True
            function(device, *arguments)
        except Exception as error:
            is_tried = is_tried and not isinstance(error, MemoryError)
            wrong = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        pickle.dump((is_tried, wrong), answers)
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
