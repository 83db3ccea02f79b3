"""What polyarr raises. Each error derives from the built-in that users would catch."""


class ShapeError(ValueError):
    """Shapes that do not fit together."""


class AxisError(ShapeError, IndexError):
    """An axis that an array does not have; to the array API standard that is an IndexError."""


class DtypeError(TypeError):
    """Dtypes that do not fit together, or that an op or a device does not take."""


class MatrixError(ValueError):
    """A matrix of which what is asked for does not exist: a singular one has no inverse."""


class BackendError(RuntimeError):
    """A backend that is missing, cannot start, or lacks something; or arrays of two backends in one op."""


class DeviceMemoryError(BackendError, MemoryError):
    """A device has no room for an array, even after its pool was trimmed."""


class GradientError(TypeError):
    """A gradient that does not exist or was asked for wrongly."""


class CaptureError(RuntimeError):
    """Something that a compiled function may not do while it is captured."""
