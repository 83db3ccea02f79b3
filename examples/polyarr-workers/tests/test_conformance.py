"""The conformance kit for this backend, which pyproject.toml names."""

from polyarr.testing.conformance import *  # noqa: F403  each case of the kit is a test
