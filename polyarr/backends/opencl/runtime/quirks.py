"""Known faults and gaps of OpenCL drivers, and polyarr's answers to them: data for `polyarr doctor`.

Every row was measured, or is documented where it says so. docs/opencl-drivers.md shows the same table.
"""

from fnmatch import fnmatchcase
from typing import NamedTuple

# The names of platforms.
INTEL, NVIDIA, POCL, RUSTICL = "Intel(R) OpenCL", "NVIDIA CUDA", "Portable Computing Language", "rusticl"


class Quirk(NamedTuple):
    """One flaw of a driver. platform and versions are patterns as of file names."""

    platform: str
    versions: str  # of the driver's version, a space, and the device's version; empty for all
    flaw: str  # what the driver does
    answer: str  # what polyarr does
    level: str = "note"  # for doctor --verbose; warning where polyarr does not make up for the flaw


QUIRKS = (
    Quirk(POCL, "*-generic", "calls this processor 'generic', and may build nothing for it",
          "gives it the name of an older processor (docs/decisions/0002)"),
    Quirk(POCL, "3.0*", "may take a processor for its forerunner, whose vectors its built-in functions do not take",
          "asks the compiler for its registers, and mends the name (docs/decisions/0002)"),
    Quirk(POCL, "[35].0*", "allocates more memory than there is, until the system ends the process",
          "counts what it holds, and raises DeviceMemoryError at the limit"),
    Quirk(POCL, "[35].0*", "ends the process in a kernel that has more local memory than the device",
          "chooses tiles that fit"),
    Quirk(POCL, "3.0*", "calls exp, sin, vload8 and other built-in functions rather than inline them",
          "brings functions that become vector instructions"),
    Quirk(POCL, "3.0*", "reads 18,500 lines of declarations for each program, in 0.2 s",
          "declares only what its kernels use, and makes PoCL skip the rest"),
    Quirk(POCL, "3.0*", "prints how many warnings a build gave",
          "builds with -w unless POLYARR_DEBUG is set"),
    Quirk(POCL, "3.0*", "ends the process over a torn or foreign file in its cache, and over a full disk",
          "gives it a new folder in each process, with checked files, and checks for free space (docs/decisions/0009)"),
    Quirk(POCL, "[35].0*", "lets the system place its threads, which now and then puts two on one core",
          "pins each thread to its own core, if the process may use all cores and POCL_AFFINITY is not set"),
    Quirk(POCL, "7.*", "is reported to compile some kernels wrongly and to hang in others",
          "was tried with 7.1 only, by the conformance kit; 3.0 comes with polyarr[opencl]", "warning"),
    Quirk(POCL, "7.1*", "may run a part of a kernel between loops twice, as seen in Fourier transforms",
          "puts a barrier there"),
    Quirk(NVIDIA, "", "may be installed without the file by which PyOpenCL's loader finds it",
          "says in `polyarr doctor` which file to write"),
    Quirk(NVIDIA, "580*", "has no variadic macros in OpenCL C",
          "uses none"),
    Quirk(NVIDIA, "580*", "has no cl_khr_fp16",
          "computes with float16 as float32, and stores it by vstore_half"),
    Quirk(NVIDIA, "580*", "has no cl_khr_subgroups",
          "joins partial results through local memory"),
    Quirk(NVIDIA, "580*", "fails at everything once a kernel has faulted",
          "names the last kernel in the error; a new process is needed"),
    Quirk(NVIDIA, "580*", "writes a log for each build without a fault, of which PyOpenCL warns",
          "ignores it unless POLYARR_DEBUG is set"),
    Quirk(NVIDIA, "580*", "shows no warnings after one build in the process disabled them",
          "disables warnings unless POLYARR_DEBUG is set, so set it from the start"),
    Quirk(NVIDIA, "580*", "computes nothing for 1.7 us between two kernels if the first one has an event",
          "launches by CUDA's driver, which needs no event"),
    Quirk(INTEL, "2026*", "is registered by its own package under a folder that does not exist",
          "says in `polyarr doctor` which file to write"),
    Quirk(INTEL, "2026*", "allocates more memory than there is",
          "counts what it holds, and raises DeviceMemoryError at the limit"),
    Quirk(INTEL, "2026*", "writes a log for each build without a fault, of which PyOpenCL warns",
          "ignores it unless POLYARR_DEBUG is set"),
    Quirk(INTEL, "2026*", "frees a context while there are programs of it",
          "keeps the context alive while it holds one of them"),
    Quirk(RUSTICL, "22.*", "ends the process over clang's own builtins, which SPIR-V lacks",
          "hides these builtins from this compiler, and compiles each kernel to SPIR-V in its tests"),
    Quirk(RUSTICL, "22.*", "computes wrong sizes of structs with padding at the end, and of arrays of arrays",
          "uses no such structs in kernels"),
    Quirk(RUSTICL, "22.*", "reads a kernel's arguments at one index for all work-items, even if theirs differ",
          "unrolls the loops over them"),
    Quirk(RUSTICL, "22.*", "may compare a negative int wrongly with 0 after it is widened to long",
          "compares it before widening"),
    Quirk(RUSTICL, "26.1*", "ends the process in some sums, maxima and cross-entropies on a CPU (llvmpipe)",
          "passed only a part of the conformance kit with it; 22.3 was tested", "warning"),
    Quirk(RUSTICL, "", "ends the loops of a work-item on a CPU (llvmpipe) after 65,535 iterations in all",
          "gives it the kernels for GPUs, whose work-items are short; very long rows may still be wrong", "warning"),
    Quirk(RUSTICL, "22.*", "has no float64 on a CPU (llvmpipe), nor promises numbers below the smallest normal",
          "does not offer float64 there, and promises nothing of such numbers"),
)  # fmt: skip


def quirks_of(platform: str, version: str) -> list[Quirk]:
    """Return the rows for a platform's name and a version (driver's version, a space, device's version)."""
    return [q for q in QUIRKS if fnmatchcase(platform, q.platform) and fnmatchcase(version, q.versions or "*")]
