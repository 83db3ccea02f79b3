"""The files of a run."""

from pathlib import Path

CHECKPOINTS = ("best", "last")
CURVE = "loss.png"
METRICS = "metrics.jsonl"
REPORT = "report.html"
BOARD = "tensorboard"  # a folder
RUN_FILES = (*(f"{name}.safetensors" for name in CHECKPOINTS), CURVE)


def remove_left_overs(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote."""
    for name in (*RUN_FILES, METRICS, REPORT):
        for path in folder.glob(f".{name}.*.tmp"):
            path.unlink(missing_ok=True)
