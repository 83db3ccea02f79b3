"""Where compiled kernels are kept on disk, and whether they can be."""

import os
import tempfile
from pathlib import Path


def cache_folders() -> dict[str, Path]:
    """Where PyOpenCL, PoCL and NVIDIA's driver keep compiled kernels."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {
        "PyOpenCL": user / "pyopencl",
        "PoCL": Path(os.environ.get("POCL_CACHE_DIR") or user / "pocl"),
        "NVIDIA": Path(os.environ.get("CUDA_CACHE_PATH") or Path.home() / ".nv"),
    }


def is_writable(folder: Path) -> bool:
    """True if a file can be made in folder, or in the nearest of its parents that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
