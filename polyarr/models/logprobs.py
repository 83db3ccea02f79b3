"""Log-probabilities of tokens, those of a prompt and those that are sampled."""

from typing import NamedTuple

from polyarr import ops
from polyarr.core.array import Array
from polyarr.core.spec import float32
from polyarr.models.decoder import LanguageModel
from polyarr.models.sampling import in_whole_vectors

_MAX_LOGITS = 2**25  # logits of a prompt that are computed at once, which bounds the memory


class Logprobs(NamedTuple):
    """Log-probabilities of tokens under a model, before any bias, penalty or temperature.

    Attributes:
        chosen: Those of the tokens, float32 of shape (B, T).
        top: The K largest ones at each position, the largest first, float32 of shape (B, T, K).
        tokens: The tokens of `top`, integers of shape (B, T, K).
    """

    chosen: Array
    top: Array
    tokens: Array


def logprobs_of(logits: Array, tokens: Array, top: int, size: int) -> Logprobs:
    """Return the log-probabilities of tokens.

    Args:
        logits: Floating-point array of shape (B, T, V).
        tokens: The tokens, integers of shape (B, T).
        top: Number K of the most likely tokens at each position, at least 1; at most `size` are returned.
        size: Only tokens below it are among the most likely ones.
    """
    wide = in_whole_vectors(ops.astype(logits, dtype=float32))
    each = ops.log_softmax(wide, axis=-1)[:, :, : logits.shape[-1]]  # (B, T, V)
    chosen = ops.take_along_axis(each, tokens[:, :, None], axis=-1)[:, :, 0]  # (B, T)
    return Logprobs(chosen, *ops.topk(each[:, :, :size], k=min(top, size)))


def prompt_logprobs(model: LanguageModel, features: Array, tokens: Array, top: int, size: int) -> Logprobs | None:
    """Return the log-probabilities of the tokens of prompts after the first ones; None if there are no others.

    Args:
        model: The model.
        features: Input of the model's head, (B, T, C), for all tokens.
        tokens: The prompts, integers of shape (B, T).
        top: As in `logprobs_of`.
        size: As in `logprobs_of`.

    Returns:
        Logprobs of shapes (B, T - 1) and (B, T - 1, K).
    """
    rows, length = tokens.shape
    step = max(1, _MAX_LOGITS // (rows * model.config.vocab_size))
    parts = [
        logprobs_of(model.head(features[:, at:end]), tokens[:, at + 1 : end + 1], top, size)
        for at in range(0, length - 1, step)
        for end in [min(at + step, length - 1)]
    ]
    return Logprobs(*(ops.concat(list(each), axis=1) for each in zip(*parts, strict=True))) if parts else None
