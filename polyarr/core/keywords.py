"""Keywords of other libraries' functions and classes, for the error on a keyword that polyarr does not have."""

import functools
import inspect
from collections.abc import Callable, Container, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# What it may be called here -> what NumPy, PyTorch, JAX or MLX call it.
_NAMES = {
    "axis axes": "axes axis dim dimension dimensions dims",
    "keepdims": "keepdim",
    "x arrays logits": "a array arr input self tensor tensors x1",
    "y targets": "b exponent labels other target x2",
    "correction": "ddof unbiased",
    "shape": "dims new_shape newshape output_size size",
    "scale": "scale_factor",
    "repetitions": "dims repeats reps",
    "source": "src_axis",
    "descending": "largest reverse",
    "indices": "index",
    "updates": "source src values",
    "pad_width": "pad padding",
    "constant_values": "constant_value value",
    "min": "a_min",
    "max": "a_max",
    "k": "diagonal offset",
    "shift": "shifts",
    "indices_or_sections": "chunks sections split_size split_size_or_sections",
    "mask": "attention_mask attn_mask bias",
    "causal": "is_causal",
    "dropout_rate rate drop_rate": "dropout dropout_p p rate",
    "bias": "use_bias",
    "emb_dim": "d_model dims embed_dim embedding_dim features hidden_size normalized_shape",
    "hidden": "dim_feedforward hidden_dim intermediate_size",
    "n_heads": "heads nhead num_heads",
    "n_kv_heads": "num_kv_heads num_key_value_heads",
    "channels": "features num_channels num_features",
    "groups": "feature_group_count num_groups",
    "in_channels": "in_features input_channels",
    "out_channels": "features out_features output_channels",
    "in_features": "in_dim input_dims",
    "out_features": "features out_dim output_dims",
    "num_embeddings": "num vocab_size",
    "kernel_size kernel": "kernel kernel_size window_shape",
    "stride": "strides",
    "dilation": "kernel_dilation rhs_dilation",
    "init": "bias_init kernel_init weight_init",
    "eps": "epsilon",
    "lr": "learning_rate",
    "betas": "b1 b2 beta1 beta2",
    "alpha": "decay rho",
    "in_axes": "in_dims",
    "out_axes": "out_dims",
    "argnums": "argnum wrt",
    "carry": "init init_val init_carry",
    "body": "body_fun f",
    "cond": "cond_fun",
    "num": "steps",
    "mean": "loc",
    "std": "scale stddev",
    "low": "minval",
    "high": "maxval",
}
_INSTEAD = {
    "leave it out: results are new arrays": "inplace out",
    "leave it out: pa.grad says what is differentiated": "requires_grad",
    "leave it out: it computes where its arrays are, which .to(name) moves": "device",
    "write .astype(dtype)": "dtype",
    "leave it out: model.train() and model.eval() decide": "deterministic training",
    "the model is given to init(model)": "model parameters params",
    "choose elements by pa.where": "where",
    "write pa.mean or pa.sum of the losses": "reduction",
    "of a loss, multiply the losses of reduction='none' by weight[targets]": "weight class_weight pos_weight",
    "write pa.where((i != 0)[..., None], emb(i), 0), or mask the loss": "padding_idx",
    "write pa.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), 'reflect') before": "padding_mode",
    "write key_mask=~pad of a layer, or mask=~pad[:, None, None, :]": "key_padding_mask src_key_padding_mask",
    "write model.with_arrays(named) for a part of the arrays": "strict",
    "leave it out: the batch is the first axis": "batch_first",
    "leave it out: use pa.random.drawing_from(generator)": "generator key rng rngs",
    "leave it out: the order of the products is chosen": "optimize",
}
_OURS: dict[str, list[str]] = {}
for _ours, _theirs in _NAMES.items():
    for _name in _theirs.split():
        _OURS.setdefault(_name, []).extend(_ours.split())
# Calls of other libraries, by the function and what they leave out, and what to write.
_WITHOUT: dict[tuple[str, ...], str] = {("where", "x", "y"): " (for the indices write pa.nonzero)"}
_SENTENCES = {name: text for text, names in _INSTEAD.items() for name in names.split()}
FOREIGN = {*_OURS, *_SENTENCES}


def instead_of(name: str, known: Container[str]) -> str:
    """Return what to write instead of a keyword, one of `known` if possible, in parentheses with a space; or ""."""
    ours = next((ours for ours in _OURS.get(name, ()) if ours in known), None)
    text = f"write {ours}" if ours else _SENTENCES.get(name)
    return f" ({text})" if text else ""


def refuse_foreign(cls: type, given: Iterable[str]) -> None:
    """Raise TypeError for a keyword that is one of another library and none of the class."""
    init: Any = cls.__init__  # type: ignore[misc]
    code = getattr(init, "__code__", None)
    if code is not None and FOREIGN.intersection(given) <= {*code.co_varnames}:  # without a signature, which is slow
        return
    taken = [] if init is object.__init__ else [*inspect.signature(init).parameters.values()][1:]
    if any(p.kind is p.VAR_KEYWORD for p in taken):
        return
    own = [p.name for p in taken if p.kind is not p.VAR_POSITIONAL]
    for name in given:
        if name not in own and (instead := instead_of(name, own)):
            takes = f"it takes {', '.join(own)}" if own else "it takes no arguments"
            raise TypeError(f"{cls.__name__}: unknown argument {name}{instead}; {takes}")


def explained(fn: F) -> F:
    """Return fn, which no op is, with the errors of ops for calls that it does not take."""

    @functools.wraps(fn)
    def call(*args: Any, **params: Any) -> Any:
        try:
            return fn(*args, **params)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # of fn itself
                raise
            raise TypeError(_misfit(fn, args, params)) from None

    return call  # type: ignore[return-value]


def _misfit(fn: Callable[..., Any], args: tuple[Any, ...], params: dict[str, Any]) -> str:
    taken = [p.replace(annotation=p.empty) for p in inspect.signature(fn).parameters.values()]
    by_position = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    known = [p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    given = {*params, *(p.name for p in by_position[: len(args)])}
    missing = [p.name for p in taken if p.default is p.empty and p.kind != p.VAR_POSITIONAL and p.name not in given]
    unknown = [f"{name}{instead_of(name, known)}" for name in params if name not in known]
    found = [f"missing {', '.join(missing)}{_WITHOUT.get((fn.__name__, *missing), '')}"] if missing else []
    found += [f"unknown argument {', '.join(unknown)}"] if unknown else []
    shown = [p for p in taken if p.name != "self"]
    name = fn.__qualname__.removesuffix(".__call__") if fn.__name__ == "__call__" else fn.__name__
    return f"{name}: {', '.join(found) or 'too many arguments'}; it takes {name}{inspect.Signature(shown)}"
