"""Measure every tile that a CPU could multiply matrices with, and keep the fastest for this user. For a person to run:

    python -m polyarr.backends.opencl.tune [--device NAME] [--dtype float32] [--seconds 180] [--dry-run]

Each tile is compiled, checked against NumPy and timed on one core: a second or two. POLYARR_TUNE=0 keeps polyarr from
measuring by itself, not from using what is kept.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np

from polyarr.backends.opencl.devices import select
from polyarr.backends.opencl.matmul import one_block
from polyarr.backends.opencl.measure import checked_run, keep, peak_rate, rate_of
from polyarr.backends.opencl.tuning import candidates, identity, space, user_file


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m polyarr.backends.opencl.tune", description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="as POLYARR_DEVICE")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--seconds", type=float, default=180, help="after which no other tile is tried")
    parser.add_argument("--dry-run", action="store_true", help="keep nothing")
    options = parser.parse_args(arguments)
    device, dtype = select(options.device), np.dtype(options.dtype)
    if not device.geometry.is_measured:
        parser.error(f"{device.name} is no CPU; its tiles are not measured")
    peak, began, rates = peak_rate(device, dtype), time.monotonic(), {}
    print(f"{identity(device)}: {peak:.0f} GFLOP/s at most, on one core")
    for tile in dict.fromkeys((*candidates(device, dtype), *space(device, dtype))):
        run = checked_run(device, dtype, tile, one_block)
        rates[tile] = rate_of(device, run) if run else 0.0
        print(f"{rates[tile]:7.1f}  {rates[tile] / peak:4.0%}  {tile}" + "  wrong" * (not run), flush=True)
        if time.monotonic() - began > options.seconds:
            break
    best = max(rates, key=rates.__getitem__)
    print(f"best: {best} with {rates[best]:.1f} GFLOP/s")
    if rates[best] and not options.dry_run:
        keep(device, dtype, best, rates[best], peak)
        print(f"kept in {user_file()}")
    return 0 if rates[best] else 1


if __name__ == "__main__":
    raise SystemExit(main())
