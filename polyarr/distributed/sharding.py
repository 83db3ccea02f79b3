"""Optimiser states divided over ranks: each keeps, and updates, its share of every parameter."""

from dataclasses import replace
from typing import Any

from polyarr import ops, tree
from polyarr.capture.compile import compile
from polyarr.core.array import Array
from polyarr.distributed.world import World
from polyarr.optim import Optimizer, State, trainable


class Sharded:
    """An optimiser of which each rank has one part in as many as there are ranks: of the state, and of the work.

    Any optimiser of polyarr.optim will do, for what they do is elementwise but for the global norm, which is taken of
    all gradients. Gradients are whole, and the same on all ranks, as World.mean gives them; the new parameters are
    gathered. So model and gradients take what they take without, and the moments of AdamW 8 / size bytes for each
    parameter instead of 8: see memory.

        optimizer = polyarr.distributed.Sharded(world, polyarr.optim.AdamW(3e-4))
        state = optimizer.init(model)
        model, state = optimizer.update(world.mean(grads), state, model)

    update is captured here, as far as it can be: it cannot be called in a compiled function.
    """

    def __init__(self, world: World, optimizer: Optimizer) -> None:
        self.world, self.optimizer = world, optimizer
        self._captured = compile(self._update)

    def init(self, model: Any) -> State:
        """This rank's part of the state before the first step."""
        return self._of(trainable(model)).init(self._shares(trainable(model)))

    def update(self, grads: Any, state: State, model: Any) -> tuple[Any, State]:
        """One step of all ranks: a new model, the same on all, and this rank's part of the new state.

        Errors:  as Optimizer.update
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
        """How many bytes of moments this rank keeps, and how many they would be on one."""
        params, kept = trainable(model).values(), len(self.optimizer.moments)
        sizes = [(p.size, 8 if p.dtype.itemsize == 8 else 4) for p in params]
        own = sum(-(-size // self.world.size) * nbytes for size, nbytes in sizes)
        return kept * own, kept * sum(size * nbytes for size, nbytes in sizes)

    def gathered(self, state: State, model: Any) -> State:
        """The whole state, as the optimiser alone has it, from all ranks' parts: to save."""
        moments = self.world.all_gather({m: state[m] for m in self.optimizer.moments})
        params = trainable(model)
        whole = {m: {name: _whole(a, params[name]) for name, a in moments[m].items()} for m in moments}
        return {**state, **whole}

    def divided(self, state: State) -> State:
        """This rank's part of a whole state: to go on, on however many ranks."""
        return {**state, **{m: self._shares(state[m]) for m in self.optimizer.moments}}

    def _update(self, grads: dict[str, Array], state: State, params: dict[str, Array]) -> tuple[Any, State]:
        norm = ops.global_norm([*grads.values()]) if self.optimizer.needs_norm else None
        return self._of(params).update(self._shares(grads), state, self._shares(params), norm)

    def _of(self, params: dict[str, Array]) -> Optimizer:
        """The optimiser for shares, which have lost their shapes: what decays is what would without."""
        decays = {name: self.optimizer.decays(name, p) for name, p in params.items()}
        return replace(self.optimizer, decays=lambda name, p: decays[name])

    def _shares(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return {name: self._share(a) for name, a in arrays.items()}

    def _share(self, a: Array) -> Array:
        """This rank's part of an array's elements, one in as many as there are ranks; zeros fill up the last."""
        rank, size = self.world.rank, self.world.size
        if size == 1:
            return a
        count, flat = -(-a.size // size), ops.reshape(a, shape=(a.size,))
        own = flat[min(rank * count, a.size) : min((rank + 1) * count, a.size)]
        if own.size == count:
            return own
        return ops.concat([own, ops.full(0.0, a, shape=(count - own.size,), dtype=a.dtype)])


def _whole(flat: Array, like: Array) -> Array:
    if flat.shape == like.shape:
        return flat
    return ops.reshape(flat[: like.size], shape=like.shape)
