"""Names of the files in the folder of a run."""

from pathlib import Path

BEST, LAST = "best", "last"
CHECKPOINTS = (BEST, LAST)  # checkpoints that every run has
CURVE = "loss.png"
METRICS = "metrics.jsonl"
REPORT = "report.html"
PROFILE = "profile.txt"  # table of the steps that were profiled
BOARD = "tensorboard"  # a folder
_SUFFIX, _STEP = ".safetensors", "step-"
RUN_FILES = (*(f"{name}{_SUFFIX}" for name in CHECKPOINTS), CURVE)


def path_of(folder: Path, name: str) -> Path:
    """Return the path of a checkpoint's file."""
    return folder / f"{name}{_SUFFIX}"


def name_at(step: int) -> str:
    """Return the name of the checkpoint of a single step."""
    return f"{_STEP}{step}"


def kept_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint of their own, in ascending order."""
    found = (path.stem.removeprefix(_STEP) for path in folder.glob(f"{_STEP}*{_SUFFIX}"))
    return sorted(int(step) for step in found if step.isdecimal() and name_at(int(step)) == f"{_STEP}{step}")


def checkpoints(folder: Path) -> list[str]:
    """Return the names of the checkpoints in a folder: best, last, then those of single steps."""
    names = [*CHECKPOINTS, *map(name_at, kept_steps(folder))]
    return [name for name in names if path_of(folder, name).exists()]


def newest(folder: Path) -> str:
    """Return the name of the checkpoint to resume from; "best" if a run was killed before it saved its first "last"."""
    found = checkpoints(folder)
    return LAST if LAST in found or not found else found[-1]


def check_free(folder: Path) -> None:
    """Raise FileExistsError if a folder holds a run."""
    if any((folder / name).exists() for name in RUN_FILES):
        raise FileExistsError(f"{folder}: it holds a run already; give another folder, or overwrite=True (--overwrite)")


def remove_left_overs(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote."""
    for name in (*RUN_FILES, METRICS, REPORT, PROFILE, f"{_STEP}*{_SUFFIX}"):
        for path in folder.glob(f".{name}.*.tmp"):
            path.unlink(missing_ok=True)
