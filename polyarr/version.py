"""Version of the package, also used by its metadata and its checkpoints, and those of the array API standard."""

__version__ = "0.1.0"

ARRAY_API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
