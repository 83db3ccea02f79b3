"""Parts of a Batch's rows and caches that may be computed in place of all of them: those that give the same bits."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyarr import creation, ops
from polyarr.capture.compile import Compiled, compile
from polyarr.core.array import Array
from polyarr.core.spec import float32
from polyarr.models.decoder import LanguageModel
from polyarr.models.prompts import set_span
from polyarr.models.sampling import ROW_MULTIPLE, sums_of
from polyarr.nn import KeyValueCache

# Steps for which a part must give the bits of the whole: as many as give _PROOFS logits, within limits.
_PROOFS, _LEAST_STEPS, _MOST_STEPS = 2**16, 4, 32
_DRAWS = 4  # times that the sums of a part must have the bits of all rows'
# Rows of the inputs of a step: the position of the last token; the random number, in units of UNIT; the number of the
# text's kind of sampling.
INPUTS = ("position", "unit", "kind")


class Part(NamedTuple):
    """Part of a batch: its first rows, and the first positions of each.

    Attributes:
        rows: Number of rows whose logits are computed.
        span: Number of positions that are attended to.
        sampled: Number of rows whose tokens are sampled, at least `rows`.
    """

    rows: int
    span: int
    sampled: int


class Parts:
    """The parts of a batch that give the bits of the whole.

    Args:
        model: The model.
        caches: The caches of the batch, which get random keys and values.
        spans: Numbers of positions that may be attended to; the last is the capacity of the caches.
        length: Largest number of tokens of a text.
        size: Number of tokens to sample from.

    Attributes:
        each: The parts, by what they cost; the last is the whole.
    """

    def __init__(
        self, model: LanguageModel, caches: list[KeyValueCache], spans: Sequence[int], length: int, size: int
    ) -> None:
        self._model, self._caches, self._length, self._size = model, caches, length, size
        self._programs: dict[Part, Compiled] = {}
        self._rows = rows = caches[0].both.shape[1]
        *shorter, span = spans
        self._randomize()
        counts = [2**power for power in range(rows.bit_length()) if 2**power < rows]
        counts = [*self._equal(counts, span), rows]
        sampled = self._sampled(counts)
        pairs = [(count, one) for one in shorter if rows in (equal := self._equal(counts, one)) for count in equal]
        self.each = [Part(count, one, sampled[count]) for count, one in (*pairs, *((count, span) for count in counts))]
        self._programs = {part: program for part, program in self._programs.items() if part in self.each}

    def least(self, rows: int, span: int) -> Part:
        """Return the part that costs least of those with so many rows and positions."""
        return next(one for one in self.each if one.rows >= rows and one.span >= span)

    def logits(self, last: Array, inputs: Array, part: Part) -> Array:
        """Return the logits (S, V) that a part gives after the last tokens (B, 1), S being `part.sampled`.

        Those of rows after `part.rows` are zeros.

        Args:
            last: The last tokens of the batch, int32 of shape (B, 1).
            inputs: INPUTS of the rows that are sampled, int32 of shape (3, S).
            part: The part.
        """
        set_span(self._caches, part.span)
        if part not in self._programs:  # each has its own, since a compiled function is fastest with one signature
            self._programs[part] = compile(_logits, constants="count", donate="caches")
        return self._programs[part](self._model, last, inputs, self._caches, part.rows)

    def _randomize(self) -> None:
        for number, cache in enumerate(self._caches):
            noise = ops.random_bits(number, 0, cache.both, shape=cache.both.shape)
            cache.both.rebind(ops.astype(ops.astype(noise >> 8, dtype=float32) * 2.0**-23 - 1, dtype=cache.both.dtype))

    def _equal(self, counts: Sequence[int], span: int) -> list[int]:
        """Return the numbers of rows that, with a span, give the bits of the whole, for random tokens of each row.

        How attention splits its work may depend on rows and positions together, so each pair is measured. The whole is
        computed once for all numbers of rows.
        """
        generator, whole = np.random.default_rng(0), Part(self._rows, self._caches[0].size, self._rows)
        steps = {count: min(max(_LEAST_STEPS, _PROOFS // (count * self._size)), _MOST_STEPS) for count in counts}
        equal = [*counts]
        for step in range(_MOST_STEPS):
            last = creation.asarray(generator.integers(0, self._size, (self._rows, 1)).astype(np.int32))
            inputs = np.zeros((len(INPUTS), self._rows), np.int32)
            inputs[INPUTS.index("position")] = generator.integers(0, min(span, self._length), self._rows)
            if not (parts := [Part(count, span, count) for count in equal if step < steps[count]]):
                break
            wanted, *found = (
                self.logits(last, creation.asarray(inputs[:, : one.sampled]), one).numpy() for one in (whole, *parts)
            )
            for part, own in zip(parts, found, strict=True):
                if own.tobytes() != wanted[: part.rows].tobytes():
                    equal.remove(part.rows)
        return equal

    def _sampled(self, counts: list[int]) -> dict[int, int]:
        """Return how many rows are sampled where the logits of `counts` ones are computed; the last count is all.

        They are the fewest whose sums over random logits have the bits of those of all rows.
        """
        generator, equal = np.random.default_rng(0), {count: True for count in counts}
        for width in (self._size, min(self._size, ROW_MULTIPLE)) * _DRAWS:
            logits = creation.asarray(3 * generator.standard_normal((self._rows, width)).astype(np.float32))
            wanted = [each.numpy() for each in sums_of(logits)]
            for count in counts:
                found = [each.numpy() for each in sums_of(logits[:count])]
                pairs = zip(found, wanted, strict=True)
                equal[count] &= all(one.tobytes() == other[:count].tobytes() for one, other in pairs)
        return {count: next(one for one in counts if one >= count and equal[one]) for count in counts}


def _logits(model: LanguageModel, last: Array, inputs: Array, caches: list[KeyValueCache], count: int) -> Array:
    """Return the logits (S, V) of the next token in the first `count` rows, and zeros, for inputs of a step (3, S)."""
    sampled, positions = inputs.shape[1], inputs[INPUTS.index("position")][:count]
    logits = model.next_token_logits(last[:count], caches, positions)  # (count, V)
    if count == sampled:
        return logits
    return ops.concat([logits, ops.fill(0, logits, shape=(sampled - count, logits.shape[1]), dtype=logits.dtype)])
