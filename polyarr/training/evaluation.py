"""Evaluation of language models on documents: loss, perplexity and bits per byte, by sliding windows."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from polyarr import creation, ops
from polyarr.capture.compile import compile
from polyarr.core.array import Array
from polyarr.models.decoder import LanguageModel
from polyarr.text.documents import Document
from polyarr.text.tokens import IGNORED
from polyarr.training.run import perplexity


@dataclass(frozen=True)
class Score:
    """Score of a model on some text.

    Attributes:
        name: Name of the text.
        tokens: Number of tokens that were scored.
        bytes: Size of their text in UTF-8.
        total: Sum of their losses, in nats.
    """

    name: str
    tokens: int
    bytes: int
    total: float

    @property
    def loss(self) -> float:
        """Mean loss per token, in nats; nan if no token was scored."""
        return self.total / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return perplexity(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """Sum of the losses in bits per byte of text, which does not depend on the tokenizer."""
        return self.total / math.log(2) / self.bytes if self.bytes else math.nan


def total_score(name: str, scores: Iterable[Score]) -> Score:
    """Return the score on several texts together; each token has the same weight."""
    found = list(scores)
    counts = sum(score.tokens for score in found), sum(score.bytes for score in found)
    return Score(name, *counts, math.fsum(score.total for score in found))


def score_documents(
    model: LanguageModel, documents: Iterable[Document], length: int, stride: int, batch_size: int
) -> list[Score]:
    """Return the score of a model on each document, without dropout.

    Each token is scored once. The windows of a document advance by `stride` tokens, and each scores those tokens that
    no window before it had; so a token has at least length - stride tokens before it, or all that there are.

    Args:
        model: The model.
        documents: The documents.
        length: Number of inputs per window, at most the model's context_length.
        stride: Number of tokens by which windows advance, from 1 to length.
        batch_size: Number of windows per batch.

    Raises:
        ValueError: `stride` or `length` is out of range.
    """
    context = model.config.context_length
    if not 1 <= stride <= length <= context:
        raise ValueError(
            f"evaluate: the window is {length}, the stride {stride}; the stride must be from 1 to the window, and the "
            f"window at most the model's context of {context}"
        )
    model, losses_of = model.copy().eval(), compile(_losses)
    found, totals, rows = list[tuple[str, int, int]](), list[list[float]](), list[tuple[int, np.ndarray]]()

    def run_batch() -> None:
        batch = np.full((batch_size, 2, length), IGNORED, np.int32)  # one shape, which is compiled once
        batch[:, 0] = 0
        for at, (_, row) in enumerate(rows):
            batch[at] = row
        losses = losses_of(model, creation.asarray(batch)).numpy()
        for (number, _), loss in zip(rows, losses[: len(rows)].tolist(), strict=True):
            totals[number].append(loss)
        rows.clear()

    for number, document in enumerate(documents):
        found.append((document.name, int(document.is_scored.sum()), document.bytes))
        totals.append([])
        for row in _windows(document, length, stride):
            rows.append((number, row))
            if len(rows) == batch_size:
                run_batch()
    if rows:
        run_batch()
    return [Score(*described, math.fsum(each)) for described, each in zip(found, totals, strict=True)]


def _losses(model: LanguageModel, windows: Array) -> Array:
    """Return the sum of the losses of each window, (B,), of inputs and targets (B, 2, T)."""
    return ops.sum(model.loss(windows[:, 0], windows[:, 1], reduction="none"), axis=1)


def _windows(document: Document, length: int, stride: int) -> Iterator[np.ndarray]:
    """Yield inputs and targets (2, length) of a document's windows that have tokens to score."""
    targets = np.where(document.is_scored, document.tokens, IGNORED)[1:]
    done = 0
    while done < len(targets):
        end = min(max(length, done + stride), len(targets))
        first = max(end - length, 0)
        row = np.full((2, length), IGNORED, np.int32)
        row[0] = 0
        row[0, : end - first] = document.tokens[first:end]
        row[1, done - first : end - first] = targets[done:end]
        done = end
        if (row[1] != IGNORED).any():
            yield row
