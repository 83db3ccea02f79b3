"""Batch: texts that one model writes side by side, and that come and go between tokens (continuous batching)."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyarr import creation, ops
from polyarr.capture.compile import Compiled, compile
from polyarr.core.array import Array, read_later
from polyarr.core.current import get_backend
from polyarr.core.errors import DeviceMemoryError
from polyarr.core.spec import float32, int32
from polyarr.models.decoder import LanguageModel
from polyarr.models.drafting import Drafting
from polyarr.models.generation import cache_capacity, sampled
from polyarr.models.logprobs import Logprobs, prompt_logprobs
from polyarr.models.parts import INPUTS, Parts
from polyarr.models.prompts import CHUNK, UNIT, Kind, Pass, Prompts, Text, row_of, set_span
from polyarr.models.sampling import Sampling, history_of
from polyarr.models.speculation import PENALTIES, accepted
from polyarr.nn import KeyValueCache

_MAX_KINDS = 32  # kinds of sampling whose compiled programs are kept
_MAX_COUNTS = 32  # numbers of rows that are sampled, for each of which a kind has a program
_MAX_PASSES = 16  # shapes of passes of prompts, after each of which a kind has a program for the first tokens


class Sampled(NamedTuple):
    """One more token of a text, or the log-probabilities of its prompt.

    Attributes:
        row: The row of the text.
        token: The token; None for a prompt.
        logprobs: Log-probabilities of the token, or of the prompt's tokens after the first one; None if they were not
            asked for.
    """

    row: int
    token: int | None
    logprobs: tuple[np.ndarray, ...] | None


class _Launched(NamedTuple):
    """Results of some rows that the device computes: tokens, or the log-probabilities of a prompt."""

    texts: dict[int, Text]
    places: Sequence[int]  # of the texts in the arrays
    tokens: Callable[[], np.ndarray] | None
    logprobs: Logprobs | None
    draft: Sequence[int] = ()  # the draft, if the arrays have a row for each token after it


class Batch:
    """Texts that one model writes side by side; each may begin and end at any token of the others.

    A step computes one more token of each text. The device computes the tokens of the next step while the caller uses
    those of this one. Prompts are computed in chunks, so that a long one does not hold up the others. Whole chunks with
    which the prompt of a row begins, too, are copied from its caches, also after its text has ended (prefix reuse).

    The tokens of a text, to the bit, do not depend on which other texts there are. So a step computes and samples fewer
    than all rows, and reads fewer than all positions of the caches, only where the device gives the bits that all of
    them give, which is measured at the beginning.

    Args:
        model: A language model. The batch keeps a copy in evaluation mode.
        rows: Number of texts at a time.
        length: Largest number of tokens of a prompt and its text; None for the model's context.
        vocab_size: Sample only tokens below it; None: all.
        drafts: Number of tokens that are drafted and checked in one pass while there is only one text, in the first
            row, without penalties, log-probabilities or masks; 0 for none. The tokens stay the same, to the bit.
        draft_model: Smaller model of the same tokens, which drafts; None: n-grams of the text do.

    Raises:
        DeviceMemoryError: There is no memory for the caches of as many texts.
        ValueError: The device computes several tokens to other bits than single ones.

    Examples:
        >>> import numpy as np
        >>> from polyarr.models import Batch, GPTModel, Sampling
        >>> sizes = {"vocab_size": 11, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> batch = Batch(GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False}), rows=2)
        >>> row = batch.add(np.array([1, 2, 3]), Sampling(temperature=0))
        >>> [one.row == row for _ in range(2) for one in batch.step()]
        [True, True]
        >>> batch.remove(row)
    """

    def __init__(
        self,
        model: LanguageModel,
        rows: int,
        length: int | None = None,
        vocab_size: int | None = None,
        drafts: int = 0,
        draft_model: LanguageModel | None = None,
    ) -> None:
        self._model = model.copy().eval()
        own = self._model.config
        self.length = min(length or own.context_length, own.context_length)
        self._size = min(vocab_size or own.vocab_size, own.vocab_size)
        size = cache_capacity(self._model, self.length, 0)
        self._spans = [*(CHUNK * 2**power for power in range(size.bit_length()) if CHUNK * 2**power < size), size]
        try:
            self._caches = self._model.caches(rows, size)
        except MemoryError as error:
            texts = f"{rows:,} texts (batch) of {size:,} tokens (length)"
            raise DeviceMemoryError(f"Batch: no memory for the key-value caches of {texts}: {error}") from error
        self._texts: list[Text | None] = [None] * rows
        at_once = get_backend().rows_at_once
        self._prompts = Prompts(self._model, self._caches, self._spans, at_once)
        self._state: dict[Kind, _State] = {}
        self._last = creation.zeros((rows, 1), dtype=int32)  # the last token of each row
        self._launched: list[_Launched] = []
        self._choose: dict[Kind, Compiled] = {}
        self._first = _first_sampler()
        self._parts = Parts(self._model, self._caches, self._spans, self.length, self._size)
        self._held: list[Sampled] = []  # tokens of a right draft, which come one at a time
        self._drafting = Drafting(drafts, draft_model) if drafts else None
        if self._drafting:
            self._drafting.check_equal(self._model, self._caches, self._spans, self._logits_of_first)

    @property
    def free(self) -> int:
        """Number of rows without a text."""
        return self._texts.count(None)

    @property
    def beginning(self) -> int:
        """Number of texts whose prompts are not complete."""
        return len(self._prompts.waiting)

    @property
    def reused(self) -> int:
        """Number of tokens of prompts that were copied rather than computed."""
        return self._prompts.reused

    def add(
        self,
        prompt: np.ndarray,
        how: Sampling,
        seed: int | None = None,
        logprobs: int | None = None,
        echo: bool = False,
        mask: np.ndarray | None = None,
    ) -> int:
        """Begin a text and return its row.

        Args:
            prompt: Tokens, integers of shape (T,), at least one and at most `length`.
            how: The parameters of the sampling.
            seed: Seed of the sampling; None: numbers are drawn from polyarr.random.
            logprobs: Number of the most likely tokens whose log-probabilities are computed, at least 1; None: none.
            echo: Whether the first result is of the prompt, with its log-probabilities.
            mask: The tokens that the first one may be, bool (V,), at least one; then each later token waits for
                `restrict`. None: all tokens, always.

        Raises:
            ValueError: There is no free row, or the prompt is empty or too long.
        """
        if not self.free:
            raise ValueError(f"Batch: all {len(self._texts)} rows have a text; remove one first")
        if not 0 < len(prompt) <= self.length:
            raise ValueError(f"Batch: the prompt has {len(prompt)} tokens; it must have 1 to {self.length}")
        row = self._texts.index(None)
        self._texts[row] = Text(np.asarray(prompt, np.int32), how, seed, logprobs, echo, mask, self._size)
        self._prompts.waiting.append(row)
        return row

    def restrict(self, row: int, mask: np.ndarray) -> None:
        """Set which tokens the next token of a text may be.

        Args:
            row: The row of the text, which began with a mask.
            mask: The tokens, bool (V,), at least one.
        """
        if (text := self._texts[row]) is not None:
            text.mask = mask

    def remove(self, row: int) -> None:
        """End the text of a row."""
        self._texts[row] = None
        self._held = [one for one in self._held if one.row != row]
        if row in self._prompts.waiting:
            self._prompts.waiting.remove(row)

    def forget(self) -> None:
        """Forget the prompts whose texts have ended, whose caches later texts would reuse."""
        for row, text in enumerate(self._texts):
            if text is None:
                self._prompts.prefixes[row] = np.zeros(0, np.int32)

    def step(self) -> list[Sampled]:
        """Compute up to CHUNK tokens of prompts, and one more token of each text whose prompt is complete.

        Where other texts are being written, the first tokens of a text come a step later, and a text with masks has a
        token at every second step. A text may have as many tokens as fit into `length` beside its prompt; after that,
        it must be removed.

        Returns:
            The results by row; [] if there are no texts, or no prompt is complete.

        Raises:
            ValueError: A text is as long as `length` allows.
        """
        if self._held:
            return [self._held.pop(0)]
        now = self._launched or self._begun() or self._launch()
        found = self._results(now) if self._drafting else None  # which the next draft follows
        self._launched = self._launch(now) + self._begun()  # the device goes on while this step is read
        found = self._results(now) if found is None else found
        return sorted(found, key=lambda one: (one.row, one.token is not None))

    # ---- prompts -----------------------------------------------------------------------------------------------------

    def _begun(self) -> list[_Launched]:
        """Compute the next chunks of the prompts that came first, and the first tokens of those that are complete."""
        found = list[_Launched]()
        for each in self._prompts.passes(self._texts):
            texts = {row: text for row in each.rows if (text := self._texts[row]) is not None}
            for row, text in texts.items():
                if text.echo:
                    scored = self._scored(text, each.features[:, : each.counts[0]])
                    found.append(_Launched({row: text}, [0], None, scored))
            complete = {row: text for row, text in texts.items() if text.done == len(text.prompt)}
            for kind in dict.fromkeys(text.kind for text in complete.values()):
                own = {row: text for row, text in complete.items() if text.kind == kind}
                found.append(self._first_tokens(kind, own, each))
        return found

    def _scored(self, text: Text, features: Array) -> Logprobs | None:
        """Return the log-probabilities of the tokens of a prompt, from its features (1, T, C)."""
        tokens = creation.asarray(text.prompt[None])
        return prompt_logprobs(self._model, features, tokens, text.top or 1, self._size) if text.top else None

    def _first_tokens(self, kind: Kind, texts: dict[int, Text], of: Pass) -> _Launched:
        """Copy keys and values of prompts to their rows, compute their first tokens, and put them into their state.

        All of a pass compute as many tokens, the last of these texts again where there are fewer.
        """
        count = of.features.shape[0]
        filled = ([*texts.items()] + [[*texts.items()][-1]] * count)[:count]
        units = {row: text.draw() * UNIT for row, text in texts.items()}
        numbers = [(units[row], *text.numbers.values()) for row, text in filled]
        places = tuple((at := of.rows.index(row), row, of.counts[at] - 1) for row, _ in filled)
        history = self._histories(filled)
        biases = {row: bias for row, text in texts.items() if (bias := text.take_bias()) is not None}
        bias = ops.stack([biases[row] for row, _ in filled]) if biases else None
        if kind not in self._state:
            if len(self._state) >= _MAX_KINDS:
                self._forget()
            self._state[kind] = _State(len(self._texts), self._size, history, None if kind.has_mask else bias)
            self._choose[kind] = _sampler()
        tokens, self._last, history, logprobs = self._first(
            self._model, of.features, of.caches, of.span, self._caches, places, self._last,
            creation.asarray(np.array(numbers, np.float32).T[..., None]), kind.names, history, bias,
            (kind.ranked, self._size, kind.top),
        )  # fmt: skip
        for number, (row, text) in enumerate(texts.items()):
            self._state[kind].put(row, number, text.numbers, history, bias)
            text.has_begun = True
        return _Launched(texts, range(len(texts)), read_later(tokens), logprobs)

    def _histories(self, texts: list[tuple[int, Text]]) -> dict[str, Array]:
        """Return the histories of prompts, of one kind, for the penalties: (R, V) each."""
        if PENALTIES.isdisjoint(texts[0][1].numbers):
            return {}
        found = [history_of(creation.asarray(one.prompt[None]), None, self._size, one.numbers) for _, one in texts]
        return {name: ops.concat([history[name] for history in found]) for name in found[0]}

    def _forget(self) -> None:
        """Forget kinds of sampling that no text has."""
        used = Counter(text.kind for text in self._texts if text is not None)
        self._state = {kind: state for kind, state in self._state.items() if used[kind]}
        self._choose = {kind: self._choose[kind] for kind in self._state}
        self._first = _first_sampler()

    # ---- tokens ------------------------------------------------------------------------------------------------------

    def _logits_of_first(self, token: int, position: int) -> Array:
        """Return the logits (V,) after a token of the first row at a position."""
        inputs = np.zeros((len(INPUTS), len(self._texts)), np.int32)
        inputs[INPUTS.index("position")] = position
        last = creation.asarray(np.full((len(self._texts), 1), token, np.int32))
        return self._parts.logits(last, creation.asarray(inputs), self._parts.each[-1])[0]

    def _launch(self, before: Sequence[_Launched] = ()) -> list[_Launched]:
        """Begin to compute one more token of each text, after those that are being computed already."""
        if self._drafting and (drafted := self._drafted(self._drafting)):
            return [drafted]
        texts = {row: text for row, text in enumerate(self._texts) if text is not None and text.is_ready}
        if not (texts := self._without_full(texts, before)):
            return []
        kinds = sorted({text.kind for text in texts.values()}, key=repr)
        if self._drafting:
            self._catch_up(texts)
        part = self._parts.least(max(texts) + 1, max(text.done for text in texts.values()) + 1)
        inputs, found = creation.asarray(self._inputs(texts, kinds, part.sampled)), []
        logits = self._parts.logits(self._last, inputs, part)  # (S, V)
        for number, kind in enumerate(kinds):
            own = texts if len(kinds) == 1 else {row: text for row, text in texts.items() if text.kind == kind}
            state, limits = self._state[kind], (kind.ranked, self._size, kind.top)
            bias = self._masked_biases(own, part.sampled) if kind.has_mask else state.bias
            self._last, state.history, logprobs = self._choose[kind](
                logits, self._last, inputs, number, state.history, state.inputs(), bias, limits
            )
            found.append(_Launched(own, [*own], read_later(self._last), logprobs))
        return found

    def _without_full(self, texts: dict[int, Text], before: Sequence[_Launched]) -> dict[int, Text]:
        """Return the texts without those that have all tokens they may have, with the ones being computed.

        Raises:
            ValueError: One has no token that is being computed.
        """
        if not (full := {row for row, text in texts.items() if text.done >= self.length}):
            return texts
        if lost := full - {row for one in before for row in one.texts}:
            raise ValueError(f"Batch: the text of row {min(lost)} has {self.length} tokens, which is all it may have")
        return {row: text for row, text in texts.items() if row not in full}

    def _catch_up(self, texts: dict[int, Text]) -> None:
        """Give the device the last tokens that drafts had."""
        for row, text in texts.items():
            if text.is_behind:
                self._last = _with_rows(self._last, creation.asarray(np.array([text.new[-1:]], np.int32)), row)
                text.is_behind = False

    def _drafted(self, drafting: Drafting) -> _Launched | None:
        """Begin to check a draft of the next tokens; None without a draft."""
        text, count = self._texts[0], drafting.count + 1
        if text is None or not text.has_begun or self.free < len(self._texts) - 1:
            drafting.forget()
            return None
        if text.top is not None or text.kind.has_mask or text.done + count > self.length:
            return None
        units = text.peek(count)
        if not (draft := drafting.next(text, units[:-1], self.length, self._size)):
            return None
        set_span(self._caches, self._prompts.span(text.done + count))
        found = drafting.checked(text, draft, self._model, self._caches, units, self._size)
        text.is_behind = True
        return _Launched({0: text}, [0], read_later(found), None, draft)

    def _inputs(self, texts: dict[int, Text], kinds: list[Kind], count: int) -> np.ndarray:
        """Return INPUTS of the first rows, int32 (3, count); each text then has one more token in the caches."""
        # Each row gets a key and a value: one that waits for its mask where those of its next token will be, one
        # without a text after the chunks that may be reused.
        inputs, is_one = list[tuple[int, int, int]](), len(kinds) == 1
        for row, text in enumerate(self._texts[:count]):
            if text is not None and row in texts:
                number = 0 if is_one else kinds.index(text.kind)
                inputs.append((text.done, text.draw(), number))
                text.done += 1
            else:
                done = text.done if text is not None and text.has_begun else len(self._prompts.prefixes[row])
                inputs.append((min(done, self._spans[-1] - 1), 0, -1))
        return np.array(inputs, np.int32).T

    def _masked_biases(self, texts: dict[int, Text], count: int) -> Array:
        """Return the masked biases of these texts, (count, V), with zeros for the other rows."""
        zero = ops.fill(0, self._last, shape=(self._size,), dtype=float32)
        biases = {row: text.take_bias() for row, text in texts.items()}
        return ops.stack([zero if (own := biases.get(row)) is None else own for row in range(count)])

    def _results(self, launched: list[_Launched]) -> list[Sampled]:
        """Return what was computed for the texts that are still there."""
        results = list[Sampled]()
        for texts, places, tokens, logprobs, draft in launched:
            drawn: list[int] = [] if tokens is None else tokens()[:, 0].tolist()
            scored = logprobs and [each.numpy() for each in logprobs]
            for at, (row, text) in zip(places, texts.items(), strict=True):
                if self._texts[row] is not text:
                    continue
                found = text.asked([each[at] for each in scored]) if scored else None
                results.append(Sampled(row, drawn[at] if drawn else None, found))
                if drawn and self._drafting:
                    new = accepted(draft, drawn) if draft else drawn[at : at + 1]
                    if draft:
                        text.take(len(new))
                        text.done += len(new)
                    text.new += new
                    self._drafting.add(text, new)
                    self._held += [Sampled(row, token, None) for token in new[1:]]
        return results


class _State:
    """Inputs of one kind of sampling for all rows: numbers, penalties' history and bias."""

    def __init__(self, rows: int, size: int, history: dict[str, Array], bias: Array | None) -> None:
        self._rows, self._numbers, self._inputs = rows, dict[str, np.ndarray](), dict[str, Array]()
        self.history = {name: ops.fill(0, seen, shape=(rows, size), dtype=seen.dtype) for name, seen in history.items()}
        self.bias = None if bias is None else ops.fill(0, bias, shape=(rows, size), dtype=bias.dtype)

    def put(
        self, row: int, number: int, numbers: dict[str, float], history: dict[str, Array], bias: Array | None
    ) -> None:
        """Set the inputs of a row; its history and bias are rows of the given ones, whose number is given."""
        for name, value in numbers.items():
            held = self._numbers.setdefault(name, np.ones((self._rows, 1), np.float32))
            held[row] = value
        self._inputs = {}
        for name, seen in history.items():
            self.history[name] = _with_rows(self.history[name], seen[number : number + 1], row)
        if bias is not None and self.bias is not None:
            self.bias = _with_rows(self.bias, bias[number : number + 1], row)

    def inputs(self) -> dict[str, Array]:
        """Return the numbers, float32 of shape (B, 1)."""
        if not self._inputs:
            self._inputs = {name: creation.asarray(values.copy()) for name, values in self._numbers.items()}
        return self._inputs


def _with_rows(x: Array, new: Array, first: int = 0) -> Array:
    """Return x (B, any) with new rows from the first one on."""
    return new if new.shape == x.shape else ops.slice_update(x, new, (first, 0), steps=(1, 1))


def _sampler() -> Compiled:
    """Return a compiled function that samples the next tokens of one kind of sampling."""
    choose = compile(_choose, constants="limits", donate="history")
    choose.many = _MAX_COUNTS
    return choose


def _first_sampler() -> Compiled:
    """Return a compiled function that samples the first tokens of texts."""
    first = compile(_first, constants=("limits", "names", "span"), donate="caches")
    first.many = _MAX_KINDS * _MAX_PASSES
    return first


def _first(
    model: LanguageModel, features: Array, own: list[KeyValueCache], span: int, caches: list[KeyValueCache],
    places: tuple[tuple[int, int, int], ...], tokens: Array, inputs: Array, names: tuple[str, ...],
    history: dict[str, Array], bias: Array | None, limits: tuple[int | None, int, int | None],
) -> tuple[Array, Array, dict[str, Array], Logprobs | None]:  # fmt: skip
    """Return the first tokens (R, 1) of some rows, the last tokens of all rows (B, 1) with them, and as `_choose`.

    Features (R, T, C) and own caches are those of a pass. Places are: the prompt's number in it, the row, the position
    of the last token. Keys and values are copied from the first `span` positions to the rows. The inputs (N, R, 1) are
    random numbers and the sampling's numbers.
    """
    for cache, new in zip(caches, own, strict=True):
        for number, row, _ in places:
            both = row_of(new, number, span)
            cache.both.rebind(ops.slice_update(cache.both, both, (0, row, 0, 0, 0), steps=(1, 1, 1, 1, 1)))
    one, shape = (1, 1, 1), (1, 1, features.shape[2])
    last = [ops.slice(features, (number, end, 0), steps=one, shape=shape) for number, _, end in places]
    logits = model.head(ops.concat(last))[:, 0]  # (R, V)
    like = ops.fill(0, logits, shape=(len(places), 1), dtype=int32)
    numbers = {name: inputs[1 + i] for i, name in enumerate(names)}
    found, history, logprobs = sampled(logits, like, history, (inputs[0], 0), numbers, bias, limits)
    for i, (_, row, _) in reversed([*enumerate(places)]):  # of one row, the first is the one that is read
        tokens = _with_rows(tokens, found[i : i + 1], row)
    return found, tokens, history, logprobs


def _choose(
    logits: Array, last: Array, inputs: Array, number: int, history: dict[str, Array], numbers: dict[str, Any],
    bias: Array | None, limits: tuple[int | None, int, int | None],
) -> tuple[Array, dict[str, Array], Logprobs | None]:  # fmt: skip
    """Return the last tokens (B, 1), the histories after them, and log-probabilities of the rows that are sampled.

    These are the first S rows, which the logits (S, V) and the inputs (3, S) are of. The others, and rows of another
    kind of sampling than the given number, keep their last token and history.
    """
    count = logits.shape[0]
    is_own = inputs[INPUTS.index("kind")][:, None] == number  # (S, 1)
    units = ops.astype(inputs[INPUTS.index("unit")], dtype=float32)[:, None] * UNIT
    before, seen = last[:count], {name: each[:count] for name, each in history.items()}
    numbers, bias = {name: each[:count] for name, each in numbers.items()}, None if bias is None else bias[:count]
    tokens, after, logprobs = sampled(logits, before, seen, (units, 0), numbers, bias, limits)
    after = {name: ops.where(is_own, each, seen[name]) for name, each in after.items()}
    history = {name: _with_rows(each, after[name]) for name, each in history.items()}
    return _with_rows(last, ops.where(is_own, tokens, before)), history, logprobs
