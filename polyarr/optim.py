"""Optimisers as values: init makes a state, update makes a new model and state. Schedules, clipping, accumulation."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np

from polyarr import ops, tree
from polyarr.autograd import value_and_grad
from polyarr.core.array import Array
from polyarr.core.number import Number, evaluate
from polyarr.core.spec import FLOATS, float32, float64, told
from polyarr.ops.validation import number, within

Schedule = Callable[[int], float]
State = dict[str, Any]


def at_least_two_axes(name: str, p: Array) -> bool:
    """True for the arrays that weight decay shrinks unless told otherwise: matrices, not biases and norms."""
    return p.ndim >= 2


@dataclass(frozen=True)
class LossScale:
    """How much a loss is multiplied, so that gradients of float16 do not vanish; optimisers take it as `loss_scale`.

    The loss that is differentiated is loss * loss_scale(state); update divides the gradients by as much. A step whose
    gradients are not finite changes neither parameters nor moments, and nothing is read to find out.

    first    the scale at the beginning
    growth   what it is multiplied by after `every` steps in a row whose gradients were finite
    backoff  what it is multiplied by after a step whose gradients were not

    Errors:  ValueError for a number out of range
    Source:  Micikevicius et al. 2017, arXiv:1710.03740
    """

    first: float = 2.0**15
    growth: float = 2.0
    backoff: float = 0.5
    every: int = 2000

    kept = ("scale", "steps")  # what the state holds: the scale, and how many finite steps there were with it

    def __post_init__(self) -> None:
        for name, fits, range_ in (
            ("first", lambda n: n > 0, "above 0"),
            ("growth", lambda n: n >= 1, "at least 1"),
            ("backoff", lambda n: 0 < n < 1, "above 0 and below 1"),
            ("every", lambda n: n >= 1, "at least 1"),
        ):
            if not fits(number("LossScale", name, getattr(self, name))):
                raise ValueError(f"LossScale: {name} is {getattr(self, name)}; it must be {range_}")

    def init(self, like: Array | None = None) -> dict[str, Array]:
        """The state before the first step, on the backend of an array, or the current one."""
        numbers = zip(self.kept, (self.first, 0.0), strict=True)
        return {name: ops.full(value, like, shape=(), dtype=float32) for name, value in numbers}

    def after(self, state: dict[str, Array], finite: Array) -> dict[str, Array]:
        """The state after a step whose gradients were finite, or were not."""
        scale, steps = state["scale"], ops.where(finite, state["steps"] + 1, 0)
        grows = steps >= self.every
        kept = ops.minimum(ops.where(grows, scale * self.growth, scale), _LARGEST_SCALE)
        return {"scale": ops.where(finite, kept, scale * self.backoff), "steps": ops.where(grows, 0, steps)}


_LARGEST_SCALE = 2.0**24  # where all gradients are 0, a scale would grow for ever


def loss_scale(state: State) -> Array | float:
    """What the loss is to be multiplied by before it is differentiated: 1.0 without a LossScale."""
    return state["loss_scale"]["scale"] if "loss_scale" in state else 1.0


@dataclass(frozen=True)
class Optimizer:
    """What all optimisers share.

    lr            a number, or a schedule: the number of steps done so far -> a number
    weight_decay  how much arrays shrink, for those that `decays` chooses by dotted name and array
    clip          the largest global norm of the gradients; larger ones are scaled down to it
    loss_scale    for gradients of float16, a LossScale
    """

    lr: float | Array | Schedule = 1e-3
    weight_decay: float = 0.0
    clip: float | None = None
    decays: Callable[[str, Array], bool] = at_least_two_axes
    loss_scale: LossScale | None = field(default=None, kw_only=True)

    moments = ()  # the names of what is kept per parameter

    def __post_init__(self) -> None:
        name = type(self).__name__
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        for key in ("lr", "weight_decay", "clip", "momentum", "eps"):
            value = given.get(key, 0)
            stands_for_number = isinstance(value, (Array, Number)) or (key == "lr" and callable(value))
            if not stands_for_number and not (key == "clip" and value is None):
                within(name, key, value, 0)
        betas = given.get("betas", (0, 0))
        if not isinstance(betas, (tuple, list, np.ndarray)) or len(betas) != 2:
            raise TypeError(f"{name}: betas is {told(betas)}; it must be two numbers")
        for i, beta in enumerate(betas):
            if not isinstance(beta, Number) and not 0 <= number(name, f"betas[{i}]", beta) < 1:
                raise ValueError(f"{name}: betas[{i}] is {beta}; it must be at least 0 and below 1")
        if not callable(self.decays):
            raise TypeError(f"{name}: decays is {told(self.decays)}; it must be a function of a name and an array")
        if not isinstance(self.loss_scale, LossScale | None):
            raise TypeError(f"{name}: loss_scale is {told(self.loss_scale)}; it must be a LossScale or None")

    def init(self, model: Any) -> State:
        """The state before the first step: a tree of the step's number and, by dotted name, arrays of zeros."""
        params = trainable(model)
        zeros = {m: {name: _zeros(p) for name, p in params.items()} for m in self.moments}
        scale = {"loss_scale": self.loss_scale.init(next(iter(params.values()), None))} if self.loss_scale else {}
        return {"step": 0, **zeros, **scale}

    def learning_rate(self, step: int | Array) -> float | Array:
        """The learning rate after so many steps. A schedule is given a Python number, for which an array is read."""
        return evaluate(self.lr, step.item() if type(step) is Array else step) if callable(self.lr) else self.lr

    def update(self, grads: Any, state: State, model: Any, norm: Array | None = None) -> tuple[Any, State]:
        """One step: a new model and a new state. The old ones stay as they are.

        Parameters that are frozen or whose gradient is None are left alone. Nothing is read from the device. norm is
        the gradients' global norm, where those that are given are only a part of them.

        Errors:  ValueError if grads or the state belong to another model, or grads and model are swapped; TypeError if
                 state is no state
        """
        given, leaves = tree.by_name(grads), tree.by_name(model)
        self.check(grads, state, model, given, leaves)
        params = {name: p for name, p in trainable(model).items() if name in given}
        if not params:
            return model, {**state, "step": state["step"] + 1}
        gradients = [given[name] for name in params]
        kept = {moment: self._moment(state, moment, params) for moment in self.moments}
        decay = tuple(self.weight_decay if self.decays(name, p) else 0.0 for name, p in params.items())
        (scale, finite), after = self._scale(gradients, state, norm), {}
        before = [[*params.values()], *kept.values()]
        found = self._step(before[0], gradients, before[1:], state["step"], scale, decay)
        if self.loss_scale:
            found = [list(map(partial(ops.where, finite), *lists)) for lists in zip(found, before, strict=True)]
            after = {"loss_scale": self.loss_scale.after(state["loss_scale"], finite)}
        named = [dict(zip(params, arrays, strict=True)) for arrays in found]
        moments = {m: {**state[m], **new} for m, new in zip(self.moments, named[1:], strict=True)}
        new_model = tree.unflatten(model, {**leaves, **named[0]}.values())
        return new_model, {"step": state["step"] + 1, **moments, **after}

    @property
    def needs_norm(self) -> bool:
        """Whether update looks at the global norm of the gradients; it is the only thing that is not elementwise."""
        return self.clip is not None or self.loss_scale is not None

    def _scale(self, grads: list[Array], state: State, norm: Array | None) -> tuple[float | Array, Array | None]:
        """What the step multiplies the gradients by, and with a loss scale whether they are finite; both unread."""
        if not self.needs_norm:
            return 1.0, None
        norm = ops.global_norm(grads) if norm is None else norm
        if not self.loss_scale:
            return _scale_for(norm, self.clip), None
        by = loss_scale(state)
        return (1.0 if self.clip is None else _scale_for(norm / by, self.clip)) / by, ops.isfinite(norm)

    def check(self, grads: Any, state: State, model: Any, given: dict, leaves: dict) -> None:
        """Raise what update raises; given and leaves are those of grads and of model by name."""
        name, order = f"{type(self).__name__}.update", "call update(grads, state, model)"
        if not isinstance(state, dict) or not isinstance(state.get("step", 0), (int, Number, Array)):
            raise TypeError(f"{name}: state is {type(state).__name__}; it must be as init(model) makes it; {order}")
        if ("loss_scale" in state) != (self.loss_scale is not None):
            has = "a" if self.loss_scale is None else "no"
            raise ValueError(f"{name}: the state has {has} loss_scale; it must be as init(model) makes it")
        if _holds_gradients(model) and not _holds_gradients(grads):
            raise ValueError(f"{name}: model holds gradients; {order}")
        if grads is None and leaves:
            raise ValueError(f"{name}: grads is None; it must be a tree like model; {order}")
        if unknown := [key for key in given if key not in leaves]:
            what = f"a gradient for {unknown[0]!r}, which model lacks"
            raise ValueError(f"{name}: grads has {what}; it must be a tree like model; {order}")

    def _moment(self, state: State, moment: str, params: dict[str, Array]) -> list[Array]:
        held = state.get(moment, {})
        lacking = [name for name, p in params.items() if name not in held or held[name].shape != p.shape]
        if lacking:
            name = type(self).__name__
            raise ValueError(f"{name}.update: the state has no {moment} for {lacking[0]}; call init(model)")
        return [held[name] for name in params]

    def _step(self, params: list, grads: list, moments: list, done: int, scale: Any, decay: tuple) -> tuple:
        """New parameters, then new moments, as lists in the order of params."""
        raise TypeError(f"{type(self).__name__} is no optimiser; take SGD, Adam or AdamW")


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if it is above 0."""

    momentum: float = 0.0
    nesterov: bool = False

    moments = ("velocity",)

    def _step(self, params: list, grads: list, moments: list, done: int, scale: Any, decay: tuple) -> tuple:
        settings = {"momentum": self.momentum, "nesterov": self.nesterov, "weight_decay": decay}
        return ops.sgd(params, grads, *moments, self.learning_rate(done), scale, **settings)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; weight decay is added to the gradient.

    Source:  Kingma, Ba 2014, arXiv:1412.6980
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    moments = ("m", "v")
    decoupled = False

    def _step(self, params: list, grads: list, moments: list, done: int, scale: Any, decay: tuple) -> tuple:
        settings = {
            "beta1": self.betas[0],
            "beta2": self.betas[1],
            "eps": self.eps,
            "decoupled": self.decoupled,
        }
        lr = self.learning_rate(done)
        return ops.adamw(params, grads, *moments, lr, done + 1, scale, weight_decay=decay, **settings)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: parameters shrink by lr * weight_decay, whatever the gradient.

    Source:  Loshchilov, Hutter 2017, arXiv:1711.05101
    """

    weight_decay: float = 0.01

    decoupled = True


def _holds_gradients(model: Any) -> bool:
    return getattr(model, "is_gradient", False)


def _zeros(p: Array) -> Array:
    """In float32 at least: squares of small gradients vanish in float16."""
    return ops.zeros_like(p, dtype=float64 if p.dtype == float64 else float32)


def trainable(model: Any) -> dict[str, Array]:
    """What an optimiser changes: the floating-point arrays by dotted name, without those of frozen Modules."""
    return {name: a for name, a in tree.trainable(model).items() if type(a) is Array and a.dtype in FLOATS}


# ---- schedules -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class constant:  # noqa: N801  reads as a function, compares and prints as a value
    """The same learning rate at every step."""

    lr: float

    def __call__(self, step: int) -> float:
        return self.lr


@dataclass(frozen=True)
class _Warmup:
    """From 0 up to lr in a line of `warmup` steps, then down to min_lr, where it stays from `steps` on."""

    lr: float
    warmup: int
    steps: int
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not isinstance(value, Number):
                number(type(self).__name__, f.name, value)

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.lr * (step + 1) / (self.warmup + 1)
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.min_lr + self._left(progress) * (self.lr - self.min_lr)

    def _left(self, progress: float) -> float:
        """What is left of the way down, from 1 to 0."""
        raise TypeError(f"{type(self).__name__} is no schedule; take warmup_cosine or warmup_linear")


class warmup_cosine(_Warmup):  # noqa: N801
    """From 0 up to lr in a line of `warmup` steps, then down to min_lr in half a cosine, which ends at `steps`."""

    def _left(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


class warmup_linear(_Warmup):  # noqa: N801
    """From 0 up to lr in a line of `warmup` steps, then down to min_lr in another one, which ends at `steps`."""

    def _left(self, progress: float) -> float:
        return 1 - progress


# ---- gradients -----------------------------------------------------------------------------------------------


def clip_by_global_norm(grads: Any, max_norm: float) -> tuple[Any, Array]:
    """The gradients, scaled down if their global norm is above max_norm, and that norm, unread."""
    norm = ops.global_norm(tree.leaves(grads))
    scale = _scale_for(norm, max_norm)
    return tree.map(lambda g: (g.astype(scale.dtype) * scale).astype(g.dtype), grads), norm


def _scale_for(norm: Array, max_norm: float) -> Array:
    return ops.minimum(max_norm / (norm + 1e-6), 1.0)  # 0-d, on the device


def accumulate(loss_fn: Callable, model: Any, batches: Iterable[tuple]) -> tuple[Array, Any]:
    """The mean over batches of loss_fn(model, *batch) and of its gradients, with one batch's memory.

    Errors:  ValueError if there is no batch
    """
    step = value_and_grad(loss_fn)
    loss, grads, count = None, None, 0
    for batch in batches:
        part, part_grads = step(model, *batch)
        loss = part if loss is None else loss + part
        grads = part_grads if grads is None else tree.map(lambda a, b: a + b, grads, part_grads)
        count += 1
    if loss is None:
        raise ValueError("accumulate: got no batches; it needs at least one")
    return (loss, grads) if count == 1 else (loss / count, tree.map(lambda g: g / count, grads))
