"""Check what can be checked here of systems and devices that are not here: `make platforms`, see docs/platforms.md.

1. mypy with the standard library of Windows and of macOS: no name that the system lacks is used there.
2. Every portable OpenCL program that the sanitizer's cases need is compiled for other devices, without one.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.platforms.offline import AMD, CPU, SMALL, amd_problem, cpu_problem, programs, spirv_problem

MISSING = re.compile(r"error: (Module has no attribute|Name .* is not defined)")
MYPY = ("--config-file", os.devnull, "--follow-imports", "silent", "--ignore-missing-imports", "--check-untyped-defs")
SPIRV = ("SPIR-V", partial(spirv_problem, target="spir64"))
AMDS = [(name, partial(amd_problem, processor=name, limits=AMD)) for name in ("gfx90a", "gfx1030", "gfx1100")]
CPUS = [("aarch64", partial(cpu_problem, target="aarch64-linux-gnu"))]
DEVICES = {
    "a CPU": (CPU, [SPIRV, *CPUS]),
    "a GPU of AMD's": (AMD, [SPIRV, *AMDS]),
    "a GPU without float64": (SMALL, [SPIRV, ("gfx1030", partial(amd_problem, processor="gfx1030", limits=SMALL))]),
}


def main() -> int:
    """Print all problems; return 1 if there are any."""
    problems = [*names_that_are_missing(), *programs_that_do_not_compile()]
    for problem in problems:
        print(problem)
    return int(bool(problems))


def names_that_are_missing() -> Iterator[str]:
    """Yield mypy's errors about names that another system's Python lacks."""
    for system in ("win32", "darwin"):
        command = [sys.executable, "-m", "mypy", "--platform", system, *MYPY, "polyarr"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode > 1:
            yield f"{system}: mypy failed: {done.stdout}{done.stderr}"
        yield from (f"{system}: {line}" for line in done.stdout.splitlines() if MISSING.search(line))
        print(f"{system}: {done.stdout.splitlines()[-1].rpartition('(')[2].rstrip(')')}", flush=True)


def programs_that_do_not_compile() -> Iterator[str]:
    """Yield the first line of each compiler's complaint about a program."""
    for device, (limits, compilers) in DEVICES.items():
        found = list(programs(limits))
        for target, problem_of in compilers:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                problems = list(threads.map(problem_of, [text for _, text in found]))
            print(f"programs for {device} to {target}: {problems.count('')} of {len(found)} compile", flush=True)
            for (stem, _), problem in zip(found, problems, strict=True):
                if problem:
                    yield f"{stem}.cl to {target}: {problem.splitlines()[0]}"


if __name__ == "__main__":
    sys.exit(main())
