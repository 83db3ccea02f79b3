"""Run every OpenCL kernel under Oclgrind, which checks bounds, uninitialized values, data races and barriers.

    python tests/sanitize/run.py [--if-installed] [--reuse] [--only TEXT] [--variant cpu|gpu] [--times]

Oclgrind is an interpreter, so shapes are tiny. Allocations are exact, work is split into small pieces, and the GPU
kernels run too. A planted race and a planted overrun must be reported; any other finding is an error, and so is a
kernel or an op of the table that no case reaches. See docs/sanitized-kernels.md.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from tests.passed import Group, backend_files, dependencies, key_of

OCLGRIND = (
    "oclgrind",
    "--data-races",
    "--uninitialized",
    "--build-options",
    "-cl-opt-disable",
    "--compute-units",
    "2",
    "--local-mem-size",
    str(1 << 20),
    "--max-errors",
    "1000000",
)
MISSING = "oclgrind is not installed; get it with: apt-get install oclgrind (or from github.com/jrprice/Oclgrind)"

PLANTED = """
#line 1 "planted.cl"
__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void planted_race(__global int *out) {
    __local int lane[8];
    const int me = get_local_id(0);
    lane[me] = me;
    out[me] = lane[7 - me];
}
__kernel void planted_overrun(__global int *out) {
    out[get_global_id(0)] = out[get_global_id(0) + 1];
}
"""
EXPECTED = {("planted_race", "planted.cl:5", "race"), ("planted_overrun", "planted.cl:8", "Invalid read")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--if-installed", action="store_true", help="succeed where oclgrind is not installed")
    parser.add_argument("--reuse", action="store_true", help="succeed where this passed and nothing has changed since")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    parser.add_argument("--variant", choices=("cpu", "gpu"), help="only the kernels for these devices")
    parser.add_argument("--times", action="store_true", help="print how long each case takes")
    options = parser.parse_args()
    if "OCLGRIND_LOG" in os.environ:
        return drive(options)
    if shutil.which(OCLGRIND[0]) is None:
        print(f"sanitize: {'skipped' if options.if_installed else 'cannot run'}: {MISSING}")
        return 0 if options.if_installed else 1
    passed = known()
    if options.reuse and "all" in passed.passed:
        print(f"sanitize: no findings in an earlier run, and nothing has changed since: {passed.file}")
        return 0
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        done = subprocess.run(
            [*OCLGRIND, "--log", log.name, sys.executable, *sys.argv], stderr=subprocess.PIPE, text=True, check=False
        )
    noise = re.compile(r"\d+ warnings? generated\.\n")  # of each program, even with -w
    sys.stderr.write(noise.sub("", done.stderr))
    if done.returncode not in (0, 1):
        print("sanitize: oclgrind gave up; --times shows after which case")
    if done.returncode == 0 and not options.only and not options.variant:
        passed.add(["all"])
    return done.returncode


def known() -> Group:
    """Return what passed with these kernels, launchers and cases under this Oclgrind."""
    program = Path(shutil.which(OCLGRIND[0]) or "").stat()
    files = dependencies(*Path(__file__).parent.glob("*.py")) | backend_files("opencl")
    return Group("sanitize", key_of(files, program.st_size, program.st_mtime_ns))


# ---- under Oclgrind --------------------------------------------------------------------------------------------


def drive(options: argparse.Namespace) -> int:
    """Run the cases, and print Oclgrind's findings."""
    os.environ["POLYARR_NO_CACHE"] = os.environ["PYOPENCL_NO_CACHE"] = "1"  # a cache would serve another driver
    from cases import families
    from device import SanitizedDevice, backend_of, launched, shrink  # they load the driver

    began, failures, count = time.monotonic(), 0, 0
    shrink()
    ran: set[str] = set()
    for variant in (options.variant,) if options.variant else ("cpu", "gpu"):
        called = Counter()
        for family in families():
            # A device per family: at the end of a kernel Oclgrind clears a record of each byte that was ever allocated.
            device, log = SanitizedDevice(is_cpu=variant == "cpu"), Log()
            failures += plant(device, log)
            chosen = (case for case in family if options.only in case.name)
            found, some = run_cases(chosen, backend_of(device, called), variant, log, options)
            failures, count = failures + found, count + some
            failures += plant(device, log)  # still reported after all other cases
            ran |= launched(device)
        if not options.only:
            failures += report_unreached(variant, called)
    if not count:
        print(f"sanitize: no case of cases.py has {options.only!r} in its name")
        return 1
    if not options.only and not options.variant:
        failures += report_kernels(ran)
    print(f"sanitize: {failures or 'no'} findings in {time.monotonic() - began:.0f} s, {len(ran)} kernels")
    return int(failures > 0)


class Log:
    """Reader of the file that Oclgrind writes. Each context truncates the file."""

    def __init__(self) -> None:
        self.path, self.at = Path(os.environ["OCLGRIND_LOG"]), 0

    def findings(self) -> Counter:
        """Return (kernel, location, kind) -> count for the text written since the last call."""
        with self.path.open() as file:
            file.seek(self.at)
            text, self.at = file.read(), file.seek(0, os.SEEK_END)
        return Counter(filter(None, map(finding, re.split(r"\n(?=\S)", text))))


def finding(text: str) -> tuple[str, str, str] | None:
    """Return the kernel, the location and the kind of one of Oclgrind's messages."""
    if not text.strip():
        return None
    what = text.strip().splitlines()[0].split(" at ")[0].split(" memory address")[0]
    kernel = re.search(r"Kernel:\s+(\w+)", text)
    places = [f"{file}:{line}" for line, file in re.findall(r"At line (\d+) .*?of (\S+?):\n", text)]
    return kernel[1] if kernel else "?", places[-1] if places else "?", what


def plant(device: Any, log: Log) -> int:
    """Run two faulty kernels; return how many of their faults were not reported."""
    import pyopencl as cl

    out = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 32)
    program = cl.Program(device.context, PLANTED).build(["-cl-std=CL1.2", "-w"])
    for kernel in (program.planted_race, program.planted_overrun):
        kernel(device.queue, (8,), (8,), out)
    device.queue.finish()
    found, missed = log.findings(), 0
    for kernel, place, what in EXPECTED:
        if not any(f[:2] == (kernel, place) and what in f[2] for f in found):
            print(f"sanitize: the planted fault of {kernel} ({what}, {place}) was not reported")
            missed += 1
    return missed


def run_cases(
    cases: Iterator[Any], backend: Any, variant: str, log: Log, options: argparse.Namespace
) -> tuple[int, int]:
    """Run cases on one device; return the numbers of findings and of cases."""
    import polyarr
    from polyarr.core.current import use_backend

    failures = count = 0
    with use_backend(backend):
        for case in cases:
            began, count = time.monotonic(), count + 1
            try:
                if case.backward:
                    value, pull = polyarr.vjp(case.fn, *case.arrays)
                    pull(polyarr.ones_like(value))
                else:
                    case.fn(*case.arrays)
                backend.synchronize()
            except Exception as error:
                print(f"{variant}: {case.name}: {type(error).__name__}: {error}")
                failures += 1
            if options.times:
                print(f"{variant}: {case.name}: {time.monotonic() - began:.1f} s", flush=True)
            found = log.findings()
            failures += len(found)
            for (kernel, place, what), times in found.items():
                print(f"{variant}: {case.name}: {what} in {kernel} at {place} ({times} times)", flush=True)
    return failures, count


def report_unreached(variant: str, called: Counter) -> int:
    from polyarr.backends.opencl.table import KERNELS, PAIRS

    wanted = {op.name for op in KERNELS} | {f"{op.name} {half}" for op in PAIRS for half in ("forward", "backward")}
    for name in sorted(wanted - set(called)):
        print(f"{variant}: no case calls {name}")
    return len(wanted - set(called))


def report_kernels(ran: set[str]) -> int:
    from polyarr.backends.opencl.runtime.source import FILES

    stated = {
        f"{stem}.{name}"
        for stem, path in FILES.items()
        if '#include "ptx.cl"' not in path.read_text()  # PTX runs on NVIDIA's GPUs only
        for name in re.findall(r"__kernel[^;{]*?void (\w+)\(", path.read_text())
    }
    for name in sorted(stated - ran):
        print(f"no case runs the kernel {name}")
    return len(stated - ran)


if __name__ == "__main__":
    sys.exit(main())
