"""The kit that tests polyarr and backends of strangers: inputs, references, one tolerance table, and checks."""

from polyarr.testing import checks
from polyarr.testing.checks import CheckFailure
from polyarr.testing.samples import SAMPLES, Entry
from polyarr.testing.strategies import Data, Sample

__all__ = ["SAMPLES", "CheckFailure", "Data", "Entry", "Sample", "checks"]
