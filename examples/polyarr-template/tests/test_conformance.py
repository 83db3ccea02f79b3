"""The conformance kit for this backend. pyproject.toml names the backend and the file of known failures."""

from polyarr.testing.conformance import *  # noqa: F403  each case of the kit is a test
