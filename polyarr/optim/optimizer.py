"""The base of all optimizers: weight decay, clipping and loss scaling around a step, and the state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyarr import ops, tree
from polyarr.core.array import Array
from polyarr.core.keywords import FOREIGN, refuse_foreign
from polyarr.core.names import answer_attribute
from polyarr.core.number import Number, evaluate
from polyarr.core.spec import FLOATS, described, float32, float64, shown
from polyarr.ops.validation import number, within
from polyarr.optim.gradients import scale_for

Schedule = Callable[[int], float]
State = dict[str, Any]


def at_least_two_axes(name: str, p: Array) -> bool:
    """Return whether weight decay applies to an array by default: to matrices, not to biases and weights of norms.

    Args:
        name: Dotted name of the array.
        p: The array.

    Returns:
        bool.
    """
    return p.ndim >= 2 and name.rpartition(".")[2] != "bias"  # the biases of experts, (experts, out), have two axes


@dataclass(frozen=True)
class LossScale:
    """Dynamic loss scaling: the factor of a loss that keeps float16 gradients from vanishing.

    Optimizers take it as `loss_scale`. Differentiate loss * loss_scale(state); update divides the gradients by the
    factor. A step with gradients that are not finite changes neither parameters nor moments; nothing is read to find
    out.

    Args:
        first: Scale at the beginning, above 0.
        growth: Factor of the scale after `every` steps in a row with finite gradients, at least 1.
        backoff: Factor of the scale after a step with gradients that are not finite, between 0 and 1.
        every: Number of steps, at least 1.

    Raises:
        ValueError: A number is out of range.

    Examples:
        >>> from polyarr import optim
        >>> optim.AdamW(loss_scale=optim.LossScale(first=1024.0)).loss_scale.first
        1024.0

    Source: Micikevicius et al. 2017, arXiv:1710.03740
    """

    first: float = 2.0**15
    growth: float = 2.0
    backoff: float = 0.5
    every: int = 2000

    kept = ("scale", "steps")  # keys of the state: the scale, and the number of finite steps with it

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
        """Return the state before the first step, on the backend of `like` or the current one.

        Args:
            like: Array whose backend the state is on; None for the current backend.

        Returns:
            Dict of the float32 arrays "scale" and "steps".
        """
        numbers = zip(self.kept, (self.first, 0.0), strict=True)
        return {name: ops.fill(value, like, shape=(), dtype=float32) for name, value in numbers}

    def after(self, state: dict[str, Array], finite: Array) -> dict[str, Array]:
        """Return the state after a step.

        Args:
            state: State before the step.
            finite: bool array (): whether all gradients were finite.

        Returns:
            State as init returns it.
        """
        scale, steps = state["scale"], ops.where(finite, state["steps"] + 1, 0)
        grows = steps >= self.every
        kept = ops.minimum(ops.where(grows, scale * self.growth, scale), _LARGEST_SCALE)
        return {"scale": ops.where(finite, kept, scale * self.backoff), "steps": ops.where(grows, 0, steps)}


_LARGEST_SCALE = 2.0**24  # if all gradients are 0, a scale would grow for ever


def loss_scale(state: State) -> Array | float:
    """Return the factor of the loss before it is differentiated.

    Args:
        state: State of an optimizer.

    Returns:
        Array (), or 1.0 without a LossScale.

    Examples:
        >>> from polyarr import nn, optim
        >>> optim.loss_scale(optim.AdamW().init(nn.Linear(2, 1)))
        1.0
    """
    return state["loss_scale"]["scale"] if "loss_scale" in state else 1.0


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Base class of optimizers: weight decay, clipping and loss scaling around the step that a subclass defines.

    An optimizer is a value without state: `init(model)` makes the state, and `update(grads, state, model)` returns a
    new model and a new state.

    Args:
        lr: Learning rate: a number, or a schedule from the number of steps done to a number.
        weight_decay: Rate at which the arrays that `decays` chooses shrink.
        clip: Largest global norm of the gradients; larger gradients are scaled down to it. None for no limit.
        decays: Function of dotted name and array that returns whether weight decay applies; by default it does to
            arrays of two axes or more, and not to biases and weights of norms.
        loss_scale: LossScale for gradients of float16, or None.

    Raises:
        ValueError: A number is out of range.
        TypeError: A setting has a wrong type, or is given by position; only lr may be.
    """

    if not TYPE_CHECKING:  # to a type checker, every attribute would seem to be there
        __getattr__ = answer_attribute("Optimizer")

        def __new__(cls, *args: Any, **settings: Any) -> Any:  # before __init__ finds lr given twice
            if not FOREIGN.isdisjoint(settings):
                refuse_foreign(cls, settings)
            lr = args[0] if args else settings.get("lr")
            if type(lr) is not Array and any(type(leaf) is Array for leaf in tree.leaves(lr)):
                required = "it must be a number or a function of the step; the model is given to init(model)"
                raise TypeError(f"{cls.__name__}: lr is {described(lr)}; {required}")
            if len(args) > 1 and sum(not f.kw_only for f in fields(cls)) == 1:  # other libraries order them otherwise
                given = f"{cls.__name__}: {shown(args[1])} is given by position"
                raise TypeError(f"{given}; only lr may be, name the others, as in {cls.__name__}(1e-3, clip=1.0)")
            return super().__new__(cls)

    lr: float | Array | Schedule = field(default=1e-3, kw_only=False)
    weight_decay: float = 0.0
    clip: float | None = None
    decays: Callable[[str, Array], bool] = at_least_two_axes
    loss_scale: LossScale | None = None

    moments: ClassVar[tuple[str, ...]] = ()  # names of the states per parameter
    elementwise = True  # whether a step computes each element of a parameter alone, but for the norm

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
            raise TypeError(f"{name}: betas is {shown(betas)}; it must be two numbers")
        for key, share in {"betas[0]": betas[0], "betas[1]": betas[1], "alpha": given.get("alpha", 0)}.items():
            if not isinstance(share, Number) and not 0 <= number(name, key, share) < 1:
                raise ValueError(f"{name}: {key} is {share}; it must be at least 0 and below 1")
        if not callable(self.decays):
            raise TypeError(f"{name}: decays is {shown(self.decays)}; it must be a function of a name and an array")
        if not isinstance(self.loss_scale, LossScale | None):
            raise TypeError(f"{name}: loss_scale is {shown(self.loss_scale)}; it must be a LossScale or None")

    def init(self, model: Any) -> State:
        """Return the state before the first step.

        Args:
            model: Tree of arrays, such as a Module.

        Returns:
            Dict with "step", 0, and for each moment a dict of zeros by dotted name: float32, or float64 for float64
            parameters.
        """
        params = trainable(model)
        zeros = {m: {name: _zeros(p) for name, p in kept.items()} for m, kept in self.kept(params).items()}
        scale = {"loss_scale": self.loss_scale.init(next(iter(params.values()), None))} if self.loss_scale else {}
        return {"step": 0, **zeros, **scale}

    def kept(self, params: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the parameters that have a state, for each of `moments`.

        Args:
            params: Arrays or Specs by dotted name.

        Returns:
            Dict of the names of `moments` to those of params that have one.
        """
        return dict.fromkeys(self.moments, params)

    def learning_rate(self, step: int | Array) -> float | Array:
        """Return the learning rate after `step` steps.

        Args:
            step: Number of steps done. For a schedule, an array is read.

        Returns:
            Number or array without axes.
        """
        return evaluate(self.lr, step.item() if type(step) is Array else step) if callable(self.lr) else self.lr

    def update(self, grads: Any, state: State, model: Any, norm: Array | None = None) -> tuple[Any, State]:
        """Return the model and the state after one step. The old ones stay as they are.

        Parameters that are frozen, and those whose gradient is None, do not change, but the step counts for them, too.
        Nothing is read from the device.

        Args:
            grads: Tree of gradients, like model.
            state: State as init or the last update returned it.
            model: Tree of arrays.
            norm: Global norm of all gradients, if grads holds only some of them; None to compute it.

        Returns:
            Tuple (model, state).

        Raises:
            ValueError: grads or state belong to another model, or grads and model are swapped.
            TypeError: state is not a state.
        """
        given, leaves = tree.by_name(grads), tree.by_name(model)
        self.check(grads, state, model, given, leaves)
        params = {name: p for name, p in trainable(model).items() if name in given}
        if not params:
            return model, {**state, "step": state["step"] + 1}
        gradients = [given[name] for name in params]
        kept = {moment: self._moment(state, moment, own) for moment, own in self.kept(params).items()}
        decay = tuple(self.weight_decay if self.decays(name, p) else 0.0 for name, p in params.items())
        (scale, finite), after = self._scale(gradients, state, norm), {}
        before = [params, *kept.values()]
        found = self._step(params, gradients, [[*held.values()] for held in before[1:]], state["step"], scale, decay)
        if self.loss_scale and finite is not None:
            chosen = partial(map, partial(ops.where, finite))
            found = [chosen(new, old.values()) for new, old in zip(found, before, strict=True)]
            after = {"loss_scale": self.loss_scale.after(state["loss_scale"], finite)}
        named = [dict(zip(old, new, strict=True)) for old, new in zip(before, found, strict=True)]
        moments = {m: {**state[m], **new} for m, new in zip(self.moments, named[1:], strict=True)}
        new_model = tree.unflatten(model, {**leaves, **named[0]}.values())
        return new_model, {"step": state["step"] + 1, **moments, **after}

    @property
    def needs_norm(self) -> bool:
        """Return whether update uses the global norm of the gradients, its only part that is not elementwise."""
        return self.clip is not None or self.loss_scale is not None

    def _scale(self, grads: list[Array], state: State, norm: Array | None) -> tuple[float | Array, Array | None]:
        """Return the factor of the gradients and, with a loss scale, whether they are finite, as unread arrays."""
        if not self.needs_norm:
            return 1.0, None
        norm = ops.global_norm(grads) if norm is None else norm
        if not self.loss_scale:
            return 1.0 if self.clip is None else scale_for(norm, self.clip), None
        by = loss_scale(state)
        return (1.0 if self.clip is None else scale_for(norm / by, self.clip)) / by, ops.isfinite(norm)

    def check(self, grads: Any, state: State, model: Any, given: dict[str, Any], leaves: dict[str, Any]) -> None:
        """Raise the errors of update. given and leaves are the arrays of grads and model by name."""
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

    def _moment(self, state: State, moment: str, params: dict[str, Array]) -> dict[str, Array]:
        held = state.get(moment, {})
        lacking = [name for name, p in params.items() if name not in held or held[name].shape != p.shape]
        if lacking:
            name = type(self).__name__
            raise ValueError(f"{name}.update: the state has no {moment} for {lacking[0]}; call init(model)")
        return {name: held[name] for name in params}

    def _step(
        self, params: dict[str, Array], grads: list, moments: list, done: int, scale: Any, decay: tuple
    ) -> Sequence:
        """Return new parameters, then new moments, as lists in the order of params."""
        raise TypeError(f"{type(self).__name__} is no optimizer; take one of polyarr.optim, such as AdamW")


def _holds_gradients(model: Any) -> bool:
    return getattr(model, "is_gradient", False)


def _zeros(p: Array) -> Array:
    """Return zeros like p, in float32 at least: squares of small gradients vanish in float16."""
    return ops.zeros_like(p, dtype=float64 if p.dtype == float64 else float32)


def trainable(model: Any) -> dict[str, Array]:
    """Return the arrays that an optimizer changes: floating-point arrays that are not frozen, by dotted name.

    Args:
        model: Tree of arrays, such as a Module.

    Returns:
        Dict from dotted names to arrays.

    Examples:
        >>> from polyarr import nn, optim
        >>> list(optim.trainable(nn.Linear(2, 1)))
        ['weight', 'bias']
    """
    return {name: a for name, a in tree.trainable(model).items() if type(a) is Array and a.dtype in FLOATS}
