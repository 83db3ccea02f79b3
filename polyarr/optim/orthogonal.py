"""The optimizer Muon, which makes the steps of matrices orthogonal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.number import Number
from polyarr.core.spec import shown
from polyarr.optim.methods import AdamW
from polyarr.optim.optimizer import at_least_two_axes


def hidden_matrices(name: str, p: Array) -> bool:
    """Return whether Muon orthogonalizes the step of an array: of matrices but embeddings and heads, and of experts.

    Args:
        name: Dotted name of the array.
        p: The array.

    Returns:
        bool: True for arrays with two axes that are no biases, and for the weights (experts, out, in) of a
            GroupedLinear layer, unless a part of the name, such as "tok_emb" or "out_head", ends with "emb" or "head".
    """
    parts = name.split(".")
    axes, is_of_experts = len(p.shape), any(part.startswith("expert_") for part in parts)
    is_matrix = at_least_two_axes(name, p) and (axes == 2 or (axes == 3 and is_of_experts))
    return is_matrix and not any(part.endswith(("emb", "head")) for part in parts)


@dataclass(frozen=True, kw_only=True)
class Muon(AdamW):
    """The optimizer Muon: momentum whose matrices are made almost orthogonal, and AdamW for all other arrays.

    The step of a matrix (out, in) has singular values of about 1, times 0.2 sqrt(max(out, in)): about as long as a step
    of AdamW, so that both parts share one learning rate and one weight decay. The state of a matrix is its momentum
    alone. Each layer of stacked weights (experts, out, in) is a matrix.

    Args:
        lr: As in Optimizer, and so are weight_decay (0.1 by default), clip, decays and loss_scale.
        betas: AdamW's, and so is eps.
        momentum: Decay of the mean of the gradients of matrices; the step is Nesterov's.
        matrices: Function of dotted name and array that returns whether an array is such a matrix.
        dtype: Dtype of the matrix products that make a step orthogonal, "bfloat16" or "float32".

    Examples:
        >>> import polyarr as pa
        >>> from polyarr import nn, optim
        >>> model, optimizer = nn.Linear(2, 1), optim.Muon(lr=0.1)
        >>> state = optimizer.init(model)
        >>> list(state["m"]), list(state["v"])
        (['weight', 'bias'], ['bias'])
        >>> gradient = pa.grad(lambda m: pa.sum(m(pa.ones((4, 2)))))(model)
        >>> model, state = optimizer.update(gradient, state, model)

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; Liu et al. 2025,
    arXiv:2502.16982, for the length of the step
    """

    weight_decay: float = 0.1
    momentum: float = 0.95
    matrices: Callable[[str, Array], bool] = hidden_matrices
    dtype: str = "bfloat16"

    elementwise = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.matrices):
            raise TypeError(f"Muon: matrices is {shown(self.matrices)}; it must be a function of a name and an array")
        if self.dtype not in ("bfloat16", "float32"):
            raise ValueError(f"Muon: dtype is {shown(self.dtype)}; it must be 'bfloat16' or 'float32'")
        if not isinstance(self.momentum, Number) and self.momentum >= 1:
            raise ValueError(f"Muon: momentum is {self.momentum}; it must be below 1")

    def kept(self, params: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return params for "m", and those of them that AdamW updates for "v"."""
        return {"m": params, "v": {name: p for name, p in params.items() if not self._is_matrix(name, p)}}

    def _is_matrix(self, name: str, p: Array) -> bool:
        return len(p.shape) >= 2 and self.matrices(name, p)

    def _step(
        self, params: dict[str, Array], grads: list, moments: list, done: int, scale: Any, decay: tuple
    ) -> Sequence:
        given = {name: (g, m, d) for name, g, m, d in zip(params, grads, moments[0], decay, strict=True)}
        others = [name for name, p in params.items() if not self._is_matrix(name, p)]
        rest: Sequence = ((), (), ())
        if others:
            g, m, own_decay = zip(*(given[name] for name in others), strict=True)
            own = {name: params[name] for name in others}
            rest = super()._step(own, [*g], [[*m], moments[1]], done, scale, own_decay)
        new = {name: (p, m) for name, p, m in zip(others, *rest[:2], strict=True)}
        lr = self.learning_rate(done)
        new |= {name: self._moved(p, *given[name], lr, scale) for name, p in params.items() if name not in new}
        return [new[name][0] for name in params], [new[name][1] for name in params], rest[2]

    def _moved(self, p: Array, g: Array, m: Array, decay: float, lr: Any, scale: Any) -> tuple[Array, Array]:
        """Return a matrix (..., out, in) and its momentum after a step, computed in the momentum's dtype."""
        lr, scale = (n.astype(m.dtype) if type(n) is Array else n for n in (lr, scale))
        g = g.astype(m.dtype) * scale
        m = m * self.momentum + g * (1 - self.momentum)
        step = _orthogonal(m * self.momentum + g * (1 - self.momentum), self.dtype).astype(m.dtype)
        length = lr * (0.2 * max(p.shape[-2:]) ** 0.5)
        return (p.astype(m.dtype) * (1 - lr * decay) - step * length).astype(p.dtype), m


_QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients of x, x^3 and x^5: five steps take (0.01, 1] to about (0.7, 1.2)


def _orthogonal(x: Array, dtype: str) -> Array:
    """Return U V^T for x = U S V^T (..., out, in), but for singular values of about 1, by Newton-Schulz iterations."""
    is_tall = x.shape[-2] > x.shape[-1]
    norm = ops.sqrt(ops.sum(x * x, axis=(-2, -1), keepdims=True))
    x = ((x.mT if is_tall else x) / ops.maximum(norm, 1e-7)).astype(dtype)
    a, b, c = _QUINTIC
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if is_tall else x
