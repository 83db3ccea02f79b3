"""The process in which a variant is tried: python -m polyarr.backends.opencl.trial <device> <variant>."""

import sys

from polyarr.backends.opencl.devices import VARIANTS, select


def main(device: str, name: str) -> None:
    """Try a variant; the exit status is 0 if it computes rightly."""
    variant = next(v for v in VARIANTS if v.name == name)
    try:
        variant.trial(select(device))
    except Exception as error:  # the last line is what the process that asked for this reports
        sys.exit(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
