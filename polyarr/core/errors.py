"""Errors that polyarr raises. Each derives from the built-in exception that users would catch."""


class ShapeError(ValueError):
    """Shapes that do not match."""


class AxisError(ShapeError, IndexError):
    """Axis that an array does not have; an IndexError as well, as the array API standard requires."""


class DtypeError(TypeError):
    """dtypes that cannot be combined, or that an op or a device does not support."""


class NestingError(ValueError, RecursionError):
    """Tree or list that contains itself or is nested too deeply."""


class MatrixError(ValueError):
    """Matrix for which the requested result does not exist, such as the inverse of a singular matrix."""


class BackendError(RuntimeError):
    """Backend that is missing, cannot start or lacks a capability; also mixed backends in one op."""


class DeviceMemoryError(BackendError, MemoryError):
    """Device out of memory, even after its pool released its free blocks."""


class GradientError(TypeError):
    """Gradient that does not exist or was requested incorrectly."""


class CaptureError(RuntimeError):
    """Operation that a compiled function may not perform while it is captured."""


class BatchingError(TypeError):
    """Operation that a function may not perform under vmap, or axes that do not fit its arguments or results."""
