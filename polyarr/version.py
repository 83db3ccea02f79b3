"""Version of the package, also used by its metadata and its checkpoints."""

__version__ = "0.1.0"
