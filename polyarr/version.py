"""The version, where the package, its metadata and its checkpoints find it."""

__version__ = "0.1.0"
