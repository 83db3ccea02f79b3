"""Training runs of these tests draw one picture per file."""

from tests.helpers.pictures import one_picture

__all__ = ["one_picture"]
