"""Sharded optimizer states: each rank keeps and updates its share of every parameter (ZeRO stage 1)."""

from dataclasses import replace
from typing import Any

from polyarr import ops, tree
from polyarr.capture.compile import compile
from polyarr.core.array import Array
from polyarr.distributed.world import World
from polyarr.optim import Optimizer, State, trainable


class Sharded:
    """Optimizer whose state and work are divided over the ranks.

    Gradients are whole and equal on all ranks, as `World.mean` returns them; each rank updates its share, and the new
    parameters are gathered. AdamW then keeps 8 / size bytes of moments per parameter instead of 8; see `memory`.
    `update` is compiled and cannot be called inside a compiled function.

    Args:
        world: The ranks.
        optimizer: Any but Muon: its updates are elementwise except for the global norm, which is taken over the whole
            gradients.

    Raises:
        ValueError: The optimizer needs whole matrices, as Muon does.

    Examples:
        >>> import polyarr as pa
        >>> world, model = pa.distributed.init(), pa.nn.Linear(2, 1)
        >>> optimizer = pa.distributed.Sharded(world, pa.optim.AdamW(3e-4))
        >>> state = optimizer.init(model)
        >>> grads = pa.tree.map(pa.ones_like, model)
        >>> model, state = optimizer.update(world.mean(grads), state, model)
    """

    def __init__(self, world: World, optimizer: Optimizer) -> None:
        if not optimizer.elementwise:
            name = type(optimizer).__name__
            raise ValueError(f"Sharded: optimizer is {name}, which needs whole matrices; it must be another one")
        self.world, self.optimizer = world, optimizer
        self._captured = compile(self._update)

    def init(self, model: Any) -> State:
        """Return this rank's part of the initial state."""
        return self._of(trainable(model)).init(self._shares(trainable(model)))

    def update(self, grads: Any, state: State, model: Any) -> tuple[Any, State]:
        """Update the parameters on all ranks.

        Args:
            grads: Whole gradients, equal on all ranks.
            state: This rank's part of the state.
            model: Tree of parameters.

        Returns:
            The new model, equal on all ranks, and this rank's part of the new state.

        Raises:
            ValueError: As `Optimizer.update`.
        """
        if self.world.size == 1:
            return self.optimizer.update(grads, state, model)
        given, leaves = tree.by_name(grads), tree.by_name(model)
        self.optimizer.check(grads, state, model, given, leaves)
        params = {name: p for name, p in trainable(model).items() if name in given}
        shares, state = self._captured({name: given[name] for name in params}, state, params)
        gathered = self.world.all_gather(shares)
        new = {name: _whole(gathered[name], p) for name, p in params.items()}
        return tree.unflatten(model, {**leaves, **new}.values()), state

    def memory(self, model: Any) -> tuple[int, int]:
        """Return the bytes of moments on this rank, and those without sharding."""
        params, kept = trainable(model).values(), len(self.optimizer.moments)
        sizes = [(p.size, 8 if p.dtype.itemsize == 8 else 4) for p in params]
        own = sum(-(-size // self.world.size) * nbytes for size, nbytes in sizes)
        return kept * own, kept * sum(size * nbytes for size, nbytes in sizes)

    def gathered(self, state: State, model: Any) -> State:
        """Return the whole state, as the plain optimizer has it, gathered from all ranks: for saving."""
        moments = self.world.all_gather({m: state[m] for m in self.optimizer.moments})
        params = trainable(model)
        whole = {m: {name: _whole(a, params[name]) for name, a in moments[m].items()} for m in moments}
        return {**state, **whole}

    def divided(self, state: State) -> State:
        """Return this rank's part of a whole state: for resuming on any number of ranks."""
        return {**state, **{m: self._shares(state[m]) for m in self.optimizer.moments}}

    def _update(self, grads: dict[str, Array], state: State, params: dict[str, Array]) -> tuple[Any, State]:
        norm = ops.global_norm([*grads.values()]) if self.optimizer.needs_norm else None
        return self._of(params).update(self._shares(grads), state, self._shares(params), norm)

    def _of(self, params: dict[str, Array]) -> Optimizer:
        """Return the optimizer for flat shares, with the weight decay of the unflattened parameters."""
        decays = {name: self.optimizer.decays(name, p) for name, p in params.items()}
        return replace(self.optimizer, decays=lambda name, p: decays[name])

    def _shares(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return {name: self._share(a) for name, a in arrays.items()}

    def _share(self, a: Array) -> Array:
        """Return this rank's equal part of an array's elements, flat; the last part is padded with zeros."""
        rank, size = self.world.rank, self.world.size
        if size == 1:
            return a
        count, flat = -(-a.size // size), ops.reshape(a, shape=(a.size,))
        own = flat[min(rank * count, a.size) : min((rank + 1) * count, a.size)]
        if own.size == count:
            return own
        return ops.concat([own, ops.fill(0.0, a, shape=(count - own.size,), dtype=a.dtype)])


def _whole(flat: Array, like: Array) -> Array:
    if flat.shape == like.shape:
        return flat
    return ops.reshape(flat[: like.size], shape=like.shape)
