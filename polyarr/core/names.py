"""Names of other libraries' functions, for the error on a name that polyarr does not have.

A table says what to write here (pa is polyarr, x and y arrays) and what NumPy, PyTorch, JAX or MLX call it. A test
executes every line; docs/coming-from.md shows the most important ones.
"""

import difflib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

_FUNCTIONS = {
    # arrays and dtypes
    "pa.Array": "Tensor ndarray",
    "isinstance(x, pa.Array)": "is_tensor",
    "pa.Spec": "ShapeDtypeStruct",
    "f(pa.Spec((2, 3), pa.float32))": "eval_shape",
    "pa.asarray": """Variable array as_tensor asanyarray asarray_chkfinite ascontiguousarray asfortranarray
        convert_to_tensor from_numpy frombuffer fromiter scalar_tensor tensor""",
    "pa.asarray(x, copy=True)": "clone copy",
    "pa.bool": "bool_",
    "pa.int8": "byte",
    "pa.int16": "short",
    "pa.int32": "int intc",
    "pa.int64": "int_ intp long longlong",
    "pa.uint8": "ubyte",
    "pa.uint16": "ushort",
    "pa.uint32": "uintc",
    "pa.uint64": "uint uintp ulong ulonglong",
    "pa.float16": "half",
    "pa.float32": "float single",
    "x.astype(pa.float32)": "cast",
    "pa.complex64": "cfloat",
    "pa.complex128": "cdouble",
    "x + 1j * y": "view_as_complex",
    "pa.float64": "double float_",
    "pa.result_type": "common_type find_common_type min_scalar_type promote_types",
    "pa.isdtype(x.dtype, 'real floating')": "is_floating_point isrealobj issubdtype",
    "x.dtype": "dtype",
    "x.ndim": "ndim",
    "x.shape": "shape",
    "x.size": "numel size",
    "x.numpy()": "asnumpy device_get to_numpy",
    "x.to('numpy')": "device_put",
    # creation
    "pa.arange": "broadcasted_iota iota range",
    "pa.eye": "identity",
    "10 ** pa.linspace(0, 1, 5)": "logspace",
    "2 * (32 / 2) ** pa.linspace(0, 1, 5)": "geomspace",
    "pa.meshgrid": "mgrid ogrid",
    "pa.meshgrid(*map(pa.arange, x.shape), indexing='ij')": "indices",
    "pa.tril(pa.ones((n, n)))": "tri",
    "pa.eye(a.size) * a": "diag_embed diagflat",
    "(i[..., None] == pa.arange(n)).astype(pa.float32)": "one_hot",
    # shapes
    "pa.concat": "append cat concatenate",
    "pa.concat([x, y], axis=0)": "row_stack vstack",
    "pa.concat([x, y], axis=1)": "hstack",
    "pa.stack([a, b], axis=-1)": "column_stack dstack",
    "pa.split": "array_split chunk tensor_split",
    "pa.split(x, 3, axis=1)": "hsplit",
    "pa.split(x, 2, axis=0)": "vsplit",
    "pa.unstack": "unbind",
    "pa.permute_dims": "permute transpose",
    "x.swapaxes(0, 1)": "swapaxes swapdims",
    "pa.matrix_transpose": "adjoint t",
    "pa.moveaxis": "movedim rollaxis",
    "pa.expand_dims": "unsqueeze",
    "x if x.ndim else x[None]": "atleast_1d",
    "x if x.ndim > 1 else x[None]": "atleast_2d",
    "pa.reshape": "unflatten view",
    "pa.reshape(x, -1)": "flatten ravel",
    "pa.flip(x, axis=0)": "flipud",
    "pa.flip(x, axis=1)": "fliplr",
    "pa.flip(x.T, axis=0)": "rot90",
    "pa.broadcast_to": "broadcast_in_dim expand",
    "pa.broadcast_arrays": "broadcast_tensors",
    "pa.repeat": "repeat_interleave",
    "pa.linalg.diagonal(m)  # and pa.eye(a.size) * a of a vector": "diag",
    "pa.linalg.diagonal": "diagonal",
    "pa.nonzero(pa.tril(pa.ones((n, n))))": "tril_indices",
    "pa.nonzero(pa.triu(pa.ones((n, n))))": "triu_indices",
    "pa.ops.windows": "sliding_window_view unfold",
    # indexing, sets, sorting
    "pa.take": "index_select",
    "pa.take_along_axis": "gather take_along_dim",
    "pa.where": "masked_fill putmask select",
    "pa.scatter": "index_copy put",
    "pa.scatter_add": "index_add segment_sum",
    "pa.scatter_add(pa.zeros(n), i, pa.ones(i.shape))": "bincount",
    "pa.diff(pa.searchsorted(pa.sort(a), b))  # b: the edges": "histc histogram",
    "x[x > 0]": "compress extract masked_select",
    "pa.stack(pa.nonzero(x), axis=-1)": "argwhere",
    "pa.nonzero(pa.reshape(x, -1))[0]": "flatnonzero",
    "pa.searchsorted": "bucketize digitize",
    "pa.isin": "in1d",
    "pa.unique_values": "unique",
    "pa.unique_values(pa.concat([a, b]))": "union1d",
    "pa.unique_values(a[pa.isin(a, b)])": "intersect1d",
    "pa.unique_values(a[~pa.isin(a, b)])": "setdiff1d",
    "pa.topk": "top_k",
    "pa.topk(x, k=2)[1]": "argpartition",
    "pa.sort": "msort partition",
    # elementwise
    "pa.abs": "absolute fabs",
    "pa.acos": "arccos",
    "pa.acosh": "arccosh",
    "pa.asin": "arcsin",
    "pa.asinh": "arcsinh",
    "pa.atan": "arctan",
    "pa.atan2": "arctan2",
    "pa.atanh": "arctanh",
    "pa.bitwise_invert": "bitwise_not invert",
    "pa.bitwise_left_shift": "left_shift shift_left",
    "pa.bitwise_right_shift": "right_shift shift_right_arithmetic",
    "pa.clip": "clamp",
    "pa.conj": "conjugate",
    "pa.divide": "div true_divide",
    "pa.equal": "eq",
    "pa.greater": "gt",
    "pa.greater_equal": "ge",
    "pa.less": "lt",
    "pa.less_equal": "le",
    "pa.not_equal": "ne",
    "pa.maximum": "fmax",
    "pa.minimum": "fmin",
    "pa.multiply": "mul",
    "pa.negative": "neg",
    "pa.pow": "float_power power",
    "pa.remainder": "mod",
    "pa.round": "around rint",
    "pa.subtract": "sub",
    "pa.trunc": "fix",
    "(x // y, x % y)": "divmod",
    "x - pa.trunc(x / y) * y": "fmod",
    "x - pa.trunc(x)": "frac modf",
    "2.0 ** x": "exp2",
    "pa.sign(x) * pa.abs(x) ** (1 / 3)": "cbrt",
    "x * (pa.pi / 180)": "deg2rad radians",
    "x * (180 / pa.pi)": "degrees rad2deg",
    "x == pa.inf": "isposinf",
    "x == -pa.inf": "isneginf",
    "pa.where(x < 0, 0, pa.where(x == 0, y, 1))": "heaviside",
    "pa.where(pa.isnan(x), 0, x)": "nan_to_num",
    "pa.abs(x - y) <= 1e-8 + 1e-5 * pa.abs(y)": "isclose",
    "bool(pa.all(pa.abs(x - y) <= 1e-8 + 1e-5 * pa.abs(y)))": "allclose",
    "x.shape == y.shape and bool(pa.all(x == y))": "array_equal",
    "x + w * (y - x)": "lerp",
    # reductions
    "pa.max": "amax",
    "pa.min": "amin",
    "(x - pa.mean(x, axis=1, keepdims=True)) @ (x - pa.mean(x, axis=1, keepdims=True)).T / (x.shape[1] - 1)": "cov",
    "pa.linalg.vector_norm(x[:, None] - y, axis=-1)": "cdist",
    "pa.max(x) - pa.min(x)": "ptp",
    "pa.sum(x * w) / pa.sum(w)": "average",
    "pa.mean(pa.sort(a)[(a.size - 1) // 2 : a.size // 2 + 1])": "median",
    "pa.sort(a)[round(q * (a.size - 1))]": "quantile",
    "pa.sort(a)[round(q / 100 * (a.size - 1))]": "percentile",
    "(pa.std(x, correction=1), pa.mean(x))": "std_mean",
    "(pa.var(x, correction=1), pa.mean(x))": "var_mean",
    "pa.sum(pa.where(pa.isnan(x), 0, x))": "nansum",
    "pa.mean(x[~pa.isnan(x)])": "nanmean",
    "pa.max(x[~pa.isnan(x)])": "nanmax",
    "pa.min(x[~pa.isnan(x)])": "nanmin",
    "pa.std(x[~pa.isnan(x)])": "nanstd",
    "pa.var(x[~pa.isnan(x)])": "nanvar",
    "pa.cumulative_prod": "cumprod",
    "pa.cumulative_sum": "cumsum",
    "pa.diff": "ediff1d",
    "pa.sum((a[1:] + a[:-1]) / 2)": "trapezoid trapz",
    # products and linear algebra
    "pa.matmul": "bmm chain_matmul dot inner mm multi_dot mv",
    "pa.vecdot": "vdot",
    "pa.outer": "ger",
    "b + x @ m": "addmm addmv baddbmm",
    "(x[:, None, :, None] * y[:, None, :]).reshape(x.shape[0] * y.shape[0], -1)": "kron",
    "pa.linalg.vector_norm": "norm",
    "pa.linalg.inv": "inverse",
    "pa.linalg.pinv": "pinverse",
    "pa.linalg.slogdet(m)[1]": "logdet",
    # networks
    "pa.adaptive_mean_pool": "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    "pa.attention": "dot_product_attention scaled_dot_product_attention",
    "pa.conv": "conv1d conv2d conv3d conv_general conv_general_dilated convolve correlate",
    "pa.conv_transpose": "conv_transpose1d conv_transpose2d conv_transpose3d",
    "pa.interpolate": "resize upsample",
    "pa.max_pool": "max_pool1d max_pool2d max_pool3d",
    "pa.mean_pool": "avg_pool avg_pool1d avg_pool2d avg_pool3d",
    "pa.sigmoid": "expit logistic",
    "pa.silu": "swish",
    "pa.softmax(-x)": "softmin",
    "pa.logaddexp(x, 0)": "softplus",
    "-pa.logaddexp(-x, 0)": "log_expit log_sigmoid logsigmoid",
    "x / (1 + pa.abs(x))": "soft_sign softsign",
    "x * pa.tanh(pa.logaddexp(x, 0))": "mish",
    "pa.clip(x, min=0, max=6)": "relu6",
    "pa.clip(x, min=-1, max=1)": "hard_tanh hardtanh",
    "pa.clip(x + 3, min=0, max=6) / 6": "hard_sigmoid hardsigmoid",
    "x * pa.clip(x + 3, min=0, max=6) / 6": "hard_silu hard_swish hardswish",
    "pa.where(x > 0, x, pa.expm1(pa.clip(x, max=0)))": "celu elu",
    "pa.where(x > 0, x, 0.01 * x)": "leaky_relu",
    "pa.where(x > 0, x, w * x)": "prelu",
    "1.0507 * pa.where(x > 0, x, 1.67326 * pa.expm1(pa.clip(x, max=0)))": "selu",
    "x * pa.sigmoid(y)": "glu",
    "x / pa.maximum(pa.linalg.vector_norm(x, axis=-1, keepdims=True), 1e-12)": "normalize",
    "pa.vecdot(x, y) / pa.clip(pa.linalg.vector_norm(x, axis=-1) * pa.linalg.vector_norm(y, axis=-1), min=1e-8)": (
        "cosine_similarity"
    ),
    "pa.cross_entropy": "nll_loss softmax_cross_entropy softmax_cross_entropy_with_integer_labels",
    "pa.mse": "mse_loss squared_error",
    "pa.mean(pa.abs(x - y))": "l1_loss",
    "pa.mean(pa.logaddexp(x, 0) - x * w)": "binary_cross_entropy_with_logits sigmoid_binary_cross_entropy",
    "-pa.mean(y * pa.log(w) + (1 - y) * pa.log(1 - w))": "binary_cross_entropy",
    "pa.mean(pa.where(pa.abs(x - y) < 1, (x - y) ** 2 / 2, pa.abs(x - y) - 0.5))": "huber_loss smooth_l1_loss",
    "pa.sum(pa.exp(y) * (y - x))": "kl_div",
    # random numbers
    "pa.random.bernoulli": "bernoulli",
    "pa.random.choice_from_logits": "categorical multinomial",
    "pa.random.Generator": "Generator PRNGKey default_rng",
    "pa.random.get_state": "get_rng_state",
    "pa.random.normal": "normal randn",
    "pa.random.normal(x.shape)": "randn_like",
    "pa.random.permutation": "randperm shuffle",
    "pa.random.randint": "randint",
    "pa.random.seed": "manual_seed seed",
    "pa.random.set_state": "set_rng_state",
    "pa.random.uniform": "rand uniform",
    "pa.random.uniform(x.shape)": "rand_like",
    # transforms, trees, devices
    "pa.checkpoint": "remat",
    "pa.compile": "function jit",
    "pa.custom_vjp": "Function custom_function custom_gradient",
    "from polyarr.testing import check_grads": "check_grads check_jvp check_vjp gradcheck gradgradcheck test_util",
    "pa.evaluate": "pure_callback",
    "pa.grad": "GradientTape gradient",
    "pa.vmap": "apply_along_axis vectorize",
    "pa.jacrev": "jacobian",
    "pa.jvp(pa.grad(f), (x,), (y,))": "hvp",
    "pa.stop_gradient": "detach",
    "pa.tree": "pytree tree_util",
    "pa.tree.leaves": "tree_flatten tree_leaves",
    "pa.tree.map": "tree_map",
    "pa.tree.unflatten": "tree_unflatten",
    "pa.set_backend": "set_default_device",
    "pa.use_backend": "default_device device",
    "pa.synchronize": "async_eval block_until_ready eval",
    "pa.get_matmul_precision": "get_float32_matmul_precision",
    "pa.set_matmul_precision": "set_float32_matmul_precision",
    "pa.use_matmul_precision": "default_matmul_precision",
    "pa.memory_stats": "get_active_memory get_peak_memory memory_allocated max_memory_allocated",
    "pa.load": "load_safetensors",
    "pa.profile": "profiler",
    "pa.save": "save_safetensors savez savez_compressed",
}
_ARRAY = {  # attributes and methods
    "x.reshape(-1, 2)": "reshape_as resize unflatten view view_as",
    "x.flatten()": "ravel",
    "x.T": "H t",
    "x[:, 0:2]": "narrow",
    "x.mT": "adjoint mH",
    "x.ndim": "dim ndimension",
    "x.size * x.dtype.itemsize": "nbytes",
    "x.dtype.itemsize": "element_size itemsize",
    "x.device": "devices get_device is_cuda",
    "x.numpy().tobytes()": "tobytes tofile",
    "x.to('numpy')": "cpu",
    "x.to('opencl')": "cuda",
    "x.astype(pa.bool)": "bool",
    "x.astype(pa.uint8)": "byte",
    "x.astype(pa.int16)": "short",
    "x.astype(pa.int32)": "int",
    "x.astype(pa.int64)": "long",
    "x.astype(pa.float16)": "half",
    "x.astype(pa.bfloat16)": "bfloat16",
    "x.astype(pa.float32)": "float",
    "x.astype(pa.float64)": "double",
    "x.astype(y.dtype)": "type type_as",
    "pa.stop_gradient(x)": "data detach",
    "pa.grad(f)(x)": "backward grad grad_fn requires_grad requires_grad_ retain_grad",
    "pa.synchronize()": "block_until_ready",
    "pa.broadcast_to": "expand_as",
    "x[i] = 0": "at index_copy_ index_fill_ scatter_",
    "x[...] = y": "assign copy_",
    "x[...] = 0": "fill fill_ zero_",
    "x[x > 1] = 0": "masked_fill_",
    "x += y": "add_",
    "x -= y": "sub_",
    "x *= y": "mul_",
    "x /= y": "div_",
    "x = pa.clip(x, min=0)": "clamp_ relu_",
    "x = pa.random.normal(x.shape)": "normal_",
    "x = pa.random.uniform(x.shape)": "uniform_",
    "pa.scatter_add": "index_add_",
    "pa.scatter_add_along_axis": "scatter_add_",
    "pa.zeros(3, device=x.device)": "new_zeros",
    "pa.ones(3, device=x.device)": "new_ones",
    "pa.full(3, 0.5, device=x.device)": "new_full",
    "pa.asarray([1, 2], device=x.device)": "new_tensor",
}
_NN = {
    "pa": "F functional",
    "pa.nn.AdaptiveMeanPool": "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d",
    "pa.nn.BatchNorm": "BatchNorm1d BatchNorm2d BatchNorm3d",
    "pa.nn.Conv2d": "Conv",
    "pa.nn.ConvTranspose2d": "ConvTranspose",
    "pa.nn.Dropout": "Dropout1d Dropout2d Dropout3d",
    "pa.nn.Embedding": "Embed",
    "pa.nn.InstanceNorm": "InstanceNorm1d InstanceNorm2d InstanceNorm3d",
    "pa.nn.Linear": "Dense",
    "pa.nn.MaxPool": "MaxPool1d MaxPool2d MaxPool3d",
    "pa.nn.MeanPool": "AvgPool1d AvgPool2d AvgPool3d",
    "pa.nn.MultiHeadAttention": "MultiHeadDotProductAttention MultiheadAttention",
    "pa.nn.PositionalEncoding": "SinusoidalPositionalEncoding",
    "pa.nn.TransformerBlock": "TransformerDecoderLayer TransformerEncoderLayer",
    "pa.nn.quantized": "quantize",
    "pa.nn.rotary": "RoPE",
    "pa.nn.SiLU": "Swish",
    "pa.interpolate": "Upsample UpsamplingBilinear2d",
    "pa.nn.normal(0.02)": "initializers",
    "pa.cross_entropy": "CrossEntropyLoss NLLLoss",
    "pa.mse": "MSELoss",
    "pa.mean(pa.abs(x - y))": "L1Loss",
    "pa.mean(pa.logaddexp(x, 0) - x * w)": "BCEWithLogitsLoss",
    "pa.mean(pa.where(pa.abs(x - y) < 1, (x - y) ** 2 / 2, pa.abs(x - y) - 0.5))": "HuberLoss SmoothL1Loss",
    "pa.sigmoid": "Sigmoid",
    "pa.softmax": "Softmax",
    "pa.log_softmax": "LogSoftmax",
    "pa.tanh": "Tanh",
    "pa.reshape": "Flatten Unflatten",
    "pa.permute_dims  # between two calls of pa.reshape": "PixelShuffle",
    "lambda x: x": "Identity Lambda",
    "lambda x, y: x * pa.sigmoid(y)": "GLU",
    "pa.pad": "ConstantPad1d ConstantPad2d ZeroPad1d ZeroPad2d",
    "lambda x: pa.logaddexp(x, 0)": "Softplus",
    "lambda x: pa.where(x > 0, x, 0.01 * x)": "LeakyReLU",
    "lambda x: pa.where(x > 0, x, pa.expm1(pa.clip(x, max=0)))": "ELU",
}
_MODULE = {  # methods of Modules
    "model(x)": "forward predict",
    "for module in model.modules(): print(module)": "apply",
    "model.named_parameters()": "buffers named_buffers variables weights",
    "model.copy()": "clone",
    "pa.tree.leaves(model)[0].device": "device",
    "pa.tree.leaves(model)[0].dtype": "dtype",
    "print(model)": "summary tabulate",
    "pa.compile(model)": "compile",
    "pa.checkpoint": "gradient_checkpointing_enable",
    "model.load_parameters(model.state_dict())": "load load_state_dict load_weights update",
    "model.modules()": "children named_children named_modules",
    "model.named_parameters(only_trainable=True)": "trainable_parameters trainable_variables",
    "model.freeze()": "requires_grad_",
    "model.to('numpy')": "cpu",
    "model.to('opencl')": "cuda",
    "model.astype(pa.float16)": "half",
    "model.astype(pa.bfloat16)": "bfloat16",
    "model.astype(pa.float32)": "float set_dtype type",
    "model.astype(pa.float64)": "double",
    "pa.save(path, model.state_dict())": "save save_weights",
}
_INIT = {  # initializers: init= of layers takes them
    "pa.nn.constant(0.0)": "constant_ zeros zeros_",
    "pa.nn.constant(1.0)": "ones ones_",
    "pa.nn.normal(0.02)": "normal_ trunc_normal_ truncated_normal",
    "pa.nn.normal((2 / fan_in) ** 0.5)": "he_normal kaiming_normal kaiming_normal_",
    "pa.nn.normal((2 / (fan_in + fan_out)) ** 0.5)": "glorot_normal xavier_normal xavier_normal_",
    "pa.nn.uniform((6 / fan_in) ** 0.5)": "he_uniform kaiming_uniform kaiming_uniform_",
    "pa.nn.uniform((6 / (fan_in + fan_out)) ** 0.5)": "glorot_uniform xavier_uniform xavier_uniform_",
    "pa.nn.uniform(0.1)": "uniform_",
}
_OPTIM = {
    "pa.optim.Adagrad": "adagrad",
    "pa.optim.Adam": "adam",
    "pa.optim.AdamW": "adamw",
    "pa.optim.Lion": "lion",
    "pa.optim.LossScale": "GradScaler",
    "pa.optim.Muon": "muon",
    "pa.optim.RMSprop": "rmsprop",
    "pa.optim.SGD": "momentum sgd",
    "pa.optim.accumulate": "MultiSteps",
    "pa.optim.clip_by_global_norm": "clip_grad_norm clip_grad_norm_",
    "pa.tree.map(lambda g: pa.clip(g, min=-1, max=1), grads)": "clip_grad_value_",
    "pa.optim.constant": "ConstantLR constant_schedule",
    "pa.optim.warmup_cosine": """CosineAnnealingLR OneCycleLR cosine_decay cosine_decay_schedule
        cosine_onecycle_schedule lr_scheduler warmup_cosine_decay_schedule""",
    "pa.optim.warmup_linear": "LinearLR linear_schedule warmup",
    "model, state = optimizer.update(grads, state, model)": "apply_updates",
}
_OPTIMIZER = {  # methods of optimizers
    "model, state = optimizer.update(grads, state, model)": "apply_gradients step",
    "state = optimizer.init(model)": "load_state_dict state state_dict",
}
_RANDOM = {
    "pa.random.Generator": "PRNGKey Philox RandomState default_rng key",
    "pa.random.choice_from_logits": "categorical multinomial",
    "pa.random.drawing_from(pa.random.Generator(0))": "fold_in split",
    "pa.random.get_state": "get_rng_state",
    "pa.random.normal": "randn standard_normal",
    "pa.random.permutation": "randperm shuffle",
    "pa.random.randint": "integers random_integers",
    "pa.random.seed": "manual_seed set_seed",
    "pa.random.set_state": "set_rng_state",
    "pa.random.uniform": "rand random random_sample ranf sample",
    "x[pa.random.randint(0, x.shape[0], (5,))]": "choice",
    "pa.exp(pa.random.normal((3,)))": "lognormal",
    "-pa.log1p(-pa.random.uniform((3,)))": "exponential standard_exponential",
    "-pa.log(-pa.log(pa.random.uniform((3,))))": "gumbel",
}
_LINALG = {
    "pa.MatrixError": "LinAlgError",
    "pa.linalg.diagonal": "diag",
    "pa.linalg.matrix_transpose": "transpose",
    "pa.linalg.solve": "cho_solve solve_triangular triangular_solve",
    "pa.linalg.pinv(m) @ a": "lstsq",
    "pa.linalg.svdvals(m)[0] / pa.linalg.svdvals(m)[-1]": "cond",
}
_FFT = {f"pa.fft.{name}n(x, axes=(-2, -1))": f"{name}2" for name in ("fft", "ifft", "rfft", "irfft")}
_SPECIAL = {"pa.special.gammaln": "lgamma loggamma", "pa.special.polygamma(1, x)": "trigamma"}
_TREE = {
    "pa.tree.items": "flatten_with_path leaves_with_path map_with_path tree_flatten_with_path",
    "pa.tree.leaves": "flatten reduce structure tree_leaves",
    "pa.tree.map": "map_structure multimap",
}
_COMPILE = {  # parameters
    "constants = 'n'": "static_argnames static_argnums",
    "donate = 'x'": "donate_argnames donate_argnums",
    "captures = model": "inputs outputs",
}
# Names without an equivalent, and what to do instead.
_INSTEAD = {
    "gradients are recorded only within pa.grad, pa.vjp, pa.jvp": "no_grad enable_grad inference_mode set_grad_enabled",
    "gradients are values that pa.grad returns, so nothing is reset": "zero_grad grad",
    "map over examples by pa.vmap; several devices compute in processes, see pa.distributed": "pmap",
    "write a loop of Python, or pa.scan": "fori_loop",
    "use pa.where, or `if` on an argument that is constant": "cond",
    "state a backward rule by pa.custom_vjp; pa.jvp uses it": "custom_jvp",
    "assign the array or Module to an attribute": "Parameter register_parameter add_module",
    "arrays that are not trained go into a Module of their own whose class has is_state = frozen = True": (
        "Buffer register_buffer"
    ),
    "write a cell of Linear layers, and pa.scan over time": "GRU GRUCell LSTM LSTMCell RNN RNNCell",
    "a device is a backend: pa.set_backend('opencl'), and polyarr devices lists them": "cuda mps xpu",
    "take rows by x[indices], with indices of pa.random.permutation(len(x))": """DataLoader Dataset TensorDataset
        RandomSampler utils""",
    "several devices compute in processes: average gradients by world.mean, see pa.distributed": """DataParallel
        DistributedDataParallel""",
    "use the Module where its arrays are named: compute in __call__ what a hook would": """register_forward_hook
        register_forward_pre_hook register_full_backward_hook""",
    "write the loop: pa.value_and_grad(loss_of)(model, x), then optimizer.update(grads, state, model)": """fit minimize
        train_step""",
    "floats are float32; give dtype=, or write model.astype(dtype)": """get_default_dtype set_default_dtype
        set_default_tensor_type""",
    "read and write text by NumPy, and convert by pa.asarray": "fromstring genfromtxt loadtxt savetxt",
    "polyarr has none; SciPy computes it of x.numpy()": """betainc binom block_diag cho_factor comb dct dst exp1 expm
        factorial gammainc gammaincc hilbert householder_product idct jv lambertw ldl logm lu lu_factor matrix_exp
        multigammaln null_space orth polar schur sqrtm toeplitz""",
    "draw them by numpy.random, and convert by pa.asarray": """binomial cauchy chisquare dirichlet geometric laplace
        multivariate_normal poisson rademacher rayleigh triangular truncated_normal weibull""",
    "set clip=, weight_decay= and lr= of the optimizer": "add_decayed_weights chain scale_by_adam",
    "average by pa.tree.map(lambda a, p: 0.999 * a + 0.001 * p, average, model)": """AveragedModel EMA ema
        ExponentialMovingAverage swa_utils""",
    "lr= may be a function of the step, or an argument of the function that makes the step": """ExponentialLR
        CyclicLR LambdaLR MultiStepLR ReduceLROnPlateau StepLR exponential_decay inject_hyperparams join_schedules
        piecewise_constant_schedule polynomial_schedule schedules set_lr step_decay""",
    "take pa.optim.AdamW, or SGD, RMSprop, Adagrad, Lion or Muon": """ASGD Adadelta Adafactor Adamax LAMB Lamb NAdam
        RAdam Rprop SparseAdam adadelta adafactor adamax lamb nadam radam rprop""",
    "give pa.value_and_grad of a function of one array to scipy.optimize.minimize(method='L-BFGS-B', jac=True)": (
        "LBFGS lbfgs"
    ),
    "use a list or dict of Modules or arrays as an attribute": "ModuleList ModuleDict ParameterList ParameterDict",
    "kernels take arrays of any layout, so leave it out": "contiguous is_contiguous pin_memory",
    "compute the loss with model.astype(pa.bfloat16)": "amp autocast",
    "use world.all_reduce or world.mean, where world = pa.distributed.init()": "psum pmean all_sum all_reduce",
    "print programs() of the compiled function": "make_jaxpr",
    "call numpy.testing.assert_allclose, which takes any arrays": "assert_allclose assert_array_equal assert_close",
    "set POLYARR_COMPILE=0": "disable_jit",
    "take an optimizer for each part with its own lr; decays= chooses what decays, freeze() what is fixed": (
        "add_param_group masked multi_transform param_groups"
    ),
}
_INSTEAD_IN_COMPILE = {
    "a function is always captured whole": "fullgraph",
    "numbers may change; each shape is captured once": "dynamic shapeless",
    "there is one mode; on NVIDIA GPUs it makes CUDA graphs": "mode options",
    "a function runs on the backend of its arrays": "backend device",
}
_IN_LINALG = """cholesky cross det eig eigh eigvals eigvalsh inv matrix_norm matrix_power matrix_rank pinv qr slogdet
solve svd svdvals trace vector_norm"""
_IN_FFT = "fftfreq fftn fftshift hfft ifft ifftn ifftshift ihfft irfft irfftn rfft rfftfreq rfftn"

_IN_SPECIAL = """beta betaln digamma entr erfc erfcinv erfcx erfinv expit gamma gammaln i0 i0e i1 i1e kl_div log_ndtr
logit ndtr ndtri polygamma psi rel_entr sinc xlog1py xlogy zeta"""


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, names in table.items() for theirs in names.split()}


def _as_layers() -> dict[str, str]:
    """Return layers of PyTorch without parameters, as functions of x that _FUNCTIONS has."""
    functions = _by_name(_FUNCTIONS)
    names = "CELU Hardsigmoid Hardswish Hardtanh LogSigmoid Mish ReLU6 SELU Softmin Softsign".split()
    losses = {"BCELoss": "binary_cross_entropy", "KLDivLoss": "kl_div", "CosineSimilarity": "cosine_similarity"}
    return {n: f"lambda x: {functions[n.lower()]}" for n in names} | {n: functions[f] for n, f in losses.items()}


# place -> their name -> what to write
HINTS = {
    "polyarr": {
        **{name: f"pa.linalg.{name}" for name in _IN_LINALG.split()},
        **{name: f"pa.fft.{name}" for name in _IN_FFT.split()},
        **{name: f"pa.special.{name}" for name in _IN_SPECIAL.split()},
        **_by_name(_SPECIAL),
        **_by_name(_FUNCTIONS),
    },
    "polyarr.nn": {**_by_name(_NN), **_as_layers()},
    "polyarr.nn.init": _by_name(_INIT),
    "polyarr.optim": _by_name(_OPTIM),
    "polyarr.random": _by_name(_RANDOM),
    "polyarr.linalg": _by_name(_LINALG),
    "polyarr.fft": _by_name(_FFT),
    "polyarr.special": _by_name(_SPECIAL),
    "polyarr.tree": _by_name(_TREE),
    "Array": _by_name(_ARRAY),
    "Module": _by_name(_MODULE),
    "Optimizer": _by_name(_OPTIMIZER),
    "compile": _by_name(_COMPILE),
}
_SENTENCES, _COMPILE_SENTENCES = _by_name(_INSTEAD), _by_name(_INSTEAD_IN_COMPILE)


def hint(place: str, name: str) -> str:
    """Return what to do instead of using a name of another library, as the end of an error message, or ""."""
    code = HINTS.get(place, {}).get(name)
    if not code and place not in ("Module", "Optimizer", "compile"):
        homes = ("polyarr", *(() if place == "Array" else ("polyarr.nn", "polyarr.optim", "polyarr.linalg")))
        own = (home for home in homes if home != place and name in getattr(sys.modules.get(home), "__all__", ()))
        code = next((f"pa{home.removeprefix('polyarr')}.{name}" for home in own), None)
        code = code or next((HINTS[home][name] for home in homes if name in HINTS[home]), None)
    text = (_COMPILE_SENTENCES if place == "compile" else _SENTENCES).get(name)
    return f"; write {code}" if code else f": {text}" if text else ""


def unknown(place: str, name: str, known: Iterable[str]) -> str:
    """Return the error message for a name that a module does not have."""
    if found := hint(place, name):
        return f"{place} has no {name!r}{found}"
    if not name.startswith("_") and _is_module(f"{place}.{name}"):
        return f"{place} has no {name!r} until that is imported; write import {place}.{name}"
    # Comparing all names takes a while, and pytest asks each module that a test file imports for private ones.
    close = [] if name.startswith("_") else difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"{place} has no {name!r}" + (f"; did you mean {close[0]}?" if close else "")


def _is_module(name: str) -> bool:
    """Return whether there is such a module in a package that is imported."""
    parent = sys.modules.get(name.rpartition(".")[0])
    return hasattr(parent, "__path__") and importlib.util.find_spec(name) is not None


def answering(place: str, known: Iterable[str]) -> Callable[[str], NoReturn]:
    """Return the `__getattr__` of a module, which answers names that the module does not have."""

    def answer(name: str) -> NoReturn:
        raise AttributeError(unknown(place, name, known))

    return answer


def answer_attribute(place: str) -> Callable[[Any, str], NoReturn]:
    """Return the `__getattr__` of a class, which answers names that its objects do not have."""

    def answer(self: Any, name: str) -> NoReturn:
        if not (found := hint(place, name)):
            object.__getattribute__(self, name)  # Python's own error, which may be from inside a property
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{found}", name=name, obj=self)

    answer.__name__, answer.__qualname__ = "__getattr__", f"{place}.__getattr__"
    return answer


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
