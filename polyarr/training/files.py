"""The files of a run."""

from pathlib import Path

BEST, LAST = "best", "last"
CHECKPOINTS = (BEST, LAST)  # those that every run has
CURVE = "loss.png"
METRICS = "metrics.jsonl"
REPORT = "report.html"
BOARD = "tensorboard"  # a folder
_SUFFIX, _STEP = ".safetensors", "step-"
RUN_FILES = (*(f"{name}{_SUFFIX}" for name in CHECKPOINTS), CURVE)


def path_of(folder: Path, name: str) -> Path:
    """The file of a checkpoint."""
    return folder / f"{name}{_SUFFIX}"


def name_at(step: int) -> str:
    """What a checkpoint is called that is kept beside best and last."""
    return f"{_STEP}{step}"


def kept_steps(folder: Path) -> list[int]:
    """The steps of which there is a checkpoint beside best and last, rising."""
    found = (path.stem.removeprefix(_STEP) for path in folder.glob(f"{_STEP}*{_SUFFIX}"))
    return sorted(int(step) for step in found if step.isdecimal() and name_at(int(step)) == f"{_STEP}{step}")


def checkpoints(folder: Path) -> list[str]:
    """The names of the checkpoints in a folder: best, last, then those of steps."""
    names = [*CHECKPOINTS, *map(name_at, kept_steps(folder))]
    return [name for name in names if path_of(folder, name).exists()]


def newest(folder: Path) -> str:
    """The name of the checkpoint to go on from: a run that was killed between its first two files has only the best."""
    found = checkpoints(folder)
    return LAST if LAST in found or not found else found[-1]


def remove_left_overs(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote."""
    for name in (*RUN_FILES, METRICS, REPORT, f"{_STEP}*{_SUFFIX}"):
        for path in folder.glob(f".{name}.*.tmp"):
            path.unlink(missing_ok=True)
