"""The root of the repository, which tests of its pages, examples and Makefile read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
