"""Check of vmap: what it gives for all examples at once is what a loop over the examples gives."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import polyarr
from polyarr import ops, tree
from polyarr.core.array import Array
from polyarr.core.backend import Backend
from polyarr.core.op import Op
from polyarr.ops.declare import ELEMENTWISE
from polyarr.testing.checks import carries_gradient, check, cotangents_of, gradients_of, label_of
from polyarr.testing.compare import CheckFailure, close, values
from polyarr.testing.strategies import Data, Sample
from polyarr.testing.tolerance import GRADIENT_FLOOR, largest


class Batch(NamedTuple):
    """Two examples of the inputs of a call, and both of them as one batch.

    Attributes:
        examples: The inputs of each example.
        inputs: The inputs with the examples of the mapped ones along `axis`.
        chosen: Indices of the mapped inputs among the leaves.
        axis: Axis of the examples.
    """

    examples: list[tuple]
    inputs: tuple
    chosen: list[int]
    axis: int

    @property
    def in_axes(self) -> tuple:
        """The axes as vmap takes them."""
        axes = [self.axis if i in self.chosen else None for i in range(len(tree.leaves(self.inputs)))]
        return tree.unflatten(self.inputs, axes)


@check
def check_batched(op: Op, backend: Backend, sample: Sample) -> None:
    """Check that vmap of an op gives the results and gradients of a loop, whichever inputs are mapped."""
    for template in (sample, *_with_fewer_axes(op, sample)):
        _check_call(op, backend, template)


def _check_call(op: Op, backend: Backend, sample: Sample) -> None:
    has_gradient = carries_gradient(op, sample)

    def call(*args: Any) -> Any:
        return op(*args, **sample.params)

    def both(*args: Any) -> tuple:
        return call(*args), gradients_of(op, args, sample) if has_gradient else {}

    for batch in _batches(sample, backend):
        place = f"{label_of(op, backend)}: vmap over inputs {batch.chosen} along axis {batch.axis}"
        due = [both(*example) for example in batch.examples]
        found = _mapped(both, batch)(*batch.inputs)
        _agree(place, "of each example", found, due)
        if has_gradient:
            cotangents = _stacked([cotangents_of(value, sample) for value, _ in due])
            _, pull = polyarr.vjp(_mapped(call, batch), *batch.inputs)
            grads = [_of_inputs(op, example, sample) for example in batch.examples]
            _agree_outside(place, batch, pull(cotangents), grads)


def _mapped(fn: Callable, batch: Batch) -> Callable:
    return polyarr.vmap(fn, batch.in_axes, randomness="same")


def _batches(sample: Sample, backend: Backend) -> Iterator[Batch]:
    """Yield batches with all inputs mapped along the first axis, and with one of them mapped along its last axis."""
    first, second = sample.arrays(backend), _second(sample, backend)
    leaves = [*zip(tree.leaves(first), tree.leaves(second), strict=True)]
    places = [i for i, (a, _) in enumerate(leaves) if type(a) is Array]
    choices = [(places, 0)] if places else []
    if len(places) > 1:
        choices += [(places[:1], -1), (places[-1:], -1)]
    for chosen, axis in choices:
        example = tree.unflatten(first, [b if i in chosen else a for i, (a, b) in enumerate(leaves)])
        stacked = [ops.stack(pair, axis=axis) if i in chosen else pair[0] for i, pair in enumerate(leaves)]
        yield Batch([first, example], tree.unflatten(first, stacked), chosen, axis)


def _second(sample: Sample, backend: Backend) -> tuple:
    """Return another example: with other numbers, indices, masks and targets."""
    other = sample.mapped(lambda d: replace(d, seed=d.seed + 50))
    return replace(sample, inputs=other).arrays(backend)


def _with_fewer_axes(op: Op, sample: Sample) -> Iterator[Sample]:
    """Yield the call of an op whose inputs broadcast with one axis less in its last array."""
    places = [i for i, data in enumerate(sample.inputs) if isinstance(data, Data) and data.shape]
    if len(places) > 1 and op in (*ELEMENTWISE, ops.where):
        last = replace(sample.inputs[places[-1]], shape=sample.inputs[places[-1]].shape[1:])
        yield replace(sample, inputs=tuple(last if i == places[-1] else a for i, a in enumerate(sample.inputs)))


def _of_inputs(op: Op, example: tuple, sample: Sample) -> tuple:
    """Return the gradients of all inputs, as gradients_of has them by name."""
    value, pull = polyarr.vjp(lambda *args: op(*args, **sample.params), *example)
    return pull(cotangents_of(value, sample))


def _stacked(trees: list) -> Any:
    flat = zip(*map(tree.leaves, trees), strict=True)
    return tree.unflatten(trees[0], [ops.stack(each) for each in flat])


def _agree(place: str, what: str, found: Any, due: list) -> None:
    """Compare the slices of a batched tree with the trees of the examples."""
    for i, expected in enumerate(due):
        if (paths := [p for p, _ in tree.items(found)]) != [p for p, _ in tree.items(expected)]:
            raise CheckFailure(f"{place}: the results {what} are {paths}")
        for got, e in zip(values(place, found), values(place, expected), strict=True):
            _close(place, f"result or gradient {what}, {i},", got[i], e)


def _agree_outside(place: str, batch: Batch, found: tuple, due: list[tuple]) -> None:
    """Compare the gradients of a batched call: slices for mapped inputs, sums for the others."""
    places = {path: i for i, (path, _) in enumerate(tree.items(batch.inputs))}
    each = [dict(tree.items(grads)) for grads in due]
    for path, g in tree.items(found):
        parts = [values(place, grads[path])[0] for grads in each]
        is_mapped = places[path] in batch.chosen
        expected = np.stack(parts, axis=batch.axis) if is_mapped else np.sum(np.stack(parts, dtype=np.float64), axis=0)
        _close(place, f"the gradient of input {path} through vmap", values(place, g)[0], expected)


def _close(place: str, what: str, got: np.ndarray, expected: np.ndarray) -> None:
    close(place, what, got, expected, "gradient", max(GRADIENT_FLOOR, largest(expected)))
