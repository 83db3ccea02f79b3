"""Names of other libraries' functions, for the error on a name that polyarr does not have."""

import difflib
import warnings
from collections.abc import Iterable, Mapping

# ours: what NumPy, PyTorch, JAX or MLX calls it
_THEIRS = {
    "Array": "Tensor ndarray",
    "abs": "absolute fabs",
    "acos": "arccos",
    "acosh": "arccosh",
    "adaptive_mean_pool": "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    "asarray": "array as_tensor asanyarray ascontiguousarray from_numpy frombuffer tensor",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "bitwise_invert": "bitwise_not invert",
    "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
    "bool": "bool_",
    "clip": "clamp",
    "conj": "conjugate",
    "concat": "append cat concatenate hstack vstack",
    "conv": "conv1d conv2d conv3d conv_general_dilated",
    "conv_transpose": "conv_transpose1d conv_transpose2d conv_transpose3d",
    "cumulative_prod": "cumprod",
    "cumulative_sum": "cumsum",
    "divide": "div true_divide",
    "equal": "eq",
    "expand_dims": "unsqueeze",
    "eye": "identity",
    "float16": "half",
    "float64": "double",
    "greater": "gt",
    "greater_equal": "ge",
    "int16": "short",
    "int64": "long",
    "interpolate": "upsample resize",
    "isin": "in1d",
    "less": "lt",
    "less_equal": "le",
    "matmul": "bmm dot inner mm mv",
    "max": "amax",
    "max_pool": "max_pool1d max_pool2d max_pool3d",
    "mean_pool": "avg_pool avg_pool1d avg_pool2d avg_pool3d",
    "min": "amin",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "permute_dims": "permute swapaxes transpose",
    "pow": "power",
    "random.bernoulli": "bernoulli",
    "random.normal": "normal randn",
    "random.permutation": "randperm",
    "random.randint": "randint",
    "random.seed": "manual_seed",
    "random.uniform": "rand uniform",
    "remainder": "mod",
    "repeat": "repeat_interleave",
    "reshape": "flatten ravel view",
    "round": "around rint",
    "stop_gradient": "detach",
    "subtract": "sub",
    "synchronize": "block_until_ready",
    "take": "index_select",
    "take_along_axis": "gather take_along_dim",
    "trunc": "fix",
    "unique_values": "unique",
}
_IN_LINALG = """cholesky cross det diagonal eigh eigvalsh inv matrix_norm matrix_power matrix_rank pinv qr slogdet solve
svd svdvals trace vector_norm""".split()
OURS = {theirs: ours for ours, names in _THEIRS.items() for theirs in names.split()}
OURS |= {name: f"linalg.{name}" for name in _IN_LINALG} | {"norm": "linalg.vector_norm"}


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the error message for a name that polyarr does not have."""
    if name in OURS:
        return f"polyarr has no {name!r}: {name} is called {OURS[name]} here"
    close = difflib.get_close_matches(name, [k for k in known if not k.startswith("_")], n=1, cutoff=0.7)
    return f"polyarr has no {name!r}" + (f"; did you mean {close[0]}?" if close else "")


def renamed(module: str, name: str, names: Mapping[str, str]) -> str:
    """Return the new name of a module's attribute, with a DeprecationWarning.

    Args:
        module: Name of the module.
        name: Attribute that the module does not have.
        names: Old name -> new name.

    Raises:
        AttributeError: The attribute never had this name.
    """
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    message = f"{module}.{name} is called {names[name]} now; the old name goes with version 1.0"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return names[name]
