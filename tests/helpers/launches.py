"""The kernels that an OpenCL device is given to run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.helpers.opencl_modules import opencl_modules

(commands,) = opencl_modules("commands")


@contextmanager
def launches() -> Iterator[list[str]]:
    """Context that collects the names of kernels, one for each launch."""
    found, enqueue = list[str](), commands.Command.__call__

    def noted(self: Any, *args: Any) -> Any:
        if self.is_kernel:
            found.append(self.name)
        return enqueue(self, *args)

    with patch.object(commands.Command, "__call__", noted):
        yield found
