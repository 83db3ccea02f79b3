"""Writer of many callers: their texts share the rows of one Batch, and come and go between tokens."""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from polyarr.models.batch import Batch
from polyarr.models.completion import Part, Row, Writer
from polyarr.models.decoder import LanguageModel
from polyarr.models.sampling import Sampling
from polyarr.text import Tokenizer


class Call:
    """Request of one caller of a SharedWriter: the texts after some prompts."""

    def __init__(
        self, prompts: list[np.ndarray], rows: list[Row], how: Sampling, seed: int | None, top: int | None, echo: bool
    ) -> None:
        self.prompts, self.rows, self.how, self.top, self.echo = prompts, rows, how, top, echo
        self.seeds = [None if seed is None else seed + i for i in range(len(rows))]
        self.left = len(rows)  # texts that are not complete

    @property
    def is_scored(self) -> bool:
        """True if the log-probabilities of the prompts are wanted, too."""
        return self.echo and self.top is not None

    @property
    def is_done(self) -> bool:
        """True if all texts are complete."""
        return not self.left


class SharedWriter(Writer):
    """Writer whose callers' texts are written side by side.

    A text does not depend on the texts of other callers, to the bit: see Batch. The methods are for one thread.

    Args:
        model: A language model.
        tokenizer: The tokenizer of the model.
        rows: Number of texts that are written at a time; more wait, the first to come first.
        length: Largest number of tokens of a prompt and its text; None for the model's context.

    Examples:
        >>> from polyarr.models import GPTModel
        >>> from polyarr.models.shared_writer import SharedWriter
        >>> from polyarr.text import CharTokenizer
        >>> sizes = {"vocab_size": 3, "context_length": 8, "emb_dim": 8, "n_heads": 2, "n_layers": 1}
        >>> model = GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False})
        >>> writer = SharedWriter(model, CharTokenizer("abc"), rows=4)
        >>> calls = [writer.begin([prompt], 3) for prompt in ("a", "cab")]
        >>> while not all(call.is_done for call in calls):
        ...     parts = writer.step()
        >>> parts[-1][0] is calls[1], parts[-1][1].tokens
        (True, 3)
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, rows: int, length: int | None = None) -> None:
        super().__init__(model, tokenizer)
        self._new_batch = lambda: Batch(self.model, rows, length, self._size)
        self.reset()

    def reset(self) -> None:
        """Forget all calls, and begin with empty caches, such as after an error of the device."""
        self._waiting: deque[tuple[Call, int]] = deque()
        self._running: dict[int, tuple[Call, int]] = {}
        self._ready: list[tuple[Call, Part]] = []
        self._batch = self._new_batch()

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to do."""
        return not (self._waiting or self._running or self._ready)

    def begin(
        self,
        prompts: Sequence[str | Sequence[int]],
        max_new_tokens: int,
        *,
        stop: Sequence[str] = (),
        ends: Collection[int] | None = None,
        seed: int | None = None,
        logprobs: int | None = None,
        echo: bool = False,
        **sampling: Any,
    ) -> Call:
        """Begin the texts after prompts; `step` returns their parts.

        Args:
            prompts: As in Writer.write.
            max_new_tokens: As in Writer.write; fewer where a prompt leaves room for fewer.
            stop: As in Writer.write.
            ends: As in Writer.write.
            seed: As in Writer.write.
            logprobs: As in Writer.write.
            echo: As in Writer.write.
            **sampling: As in Writer.write.

        Raises:
            ValueError: As in Writer.write; or a prompt is longer than `length` allows.
        """
        encoded, how = self._checked(prompts, stop, logprobs), Sampling(**sampling)
        length = self._batch.length
        if (longest := max(map(len, encoded))) > length:
            raise ValueError(f"SharedWriter: a prompt has {longest} tokens; it must have at most {length}")
        ends = self.tokenizer.ends if ends is None else ends
        rows = [
            Row(self.tokenizer, prompt, stop, ends, min(max_new_tokens, length - len(prompt))) for prompt in encoded
        ]
        call = Call(encoded, rows, how, seed, logprobs, echo)
        for i, row in enumerate(rows):
            if not call.is_scored and (echo or row.finish):
                self._add_part(call, Part(i, "", 0, row.finish))
            if call.is_scored or row.finish is None:
                self._waiting.append((call, i))
        return call

    def end(self, call: Call) -> None:
        """End the texts of a call, such as after its caller left."""
        for row, (other, _) in list(self._running.items()):
            if other is call:
                self._remove(row)
        self._waiting = deque(pair for pair in self._waiting if pair[0] is not call)
        self._ready = [pair for pair in self._ready if pair[0] is not call]

    def step(self) -> list[tuple[Call, Part]]:
        """Write one more token of each running text, and return the parts that became known by call."""
        while self._waiting and self._batch.free:
            call, i = self._waiting.popleft()
            asked = call.how, call.seeds[i], None if call.top is None else max(call.top, 1), call.is_scored
            self._running[self._batch.add(call.prompts[i], *asked)] = call, i
        results = self._batch.step()
        tokens = {one.row: one.token for one in results if one.token is not None and one.row in self._running}
        rows = [call.rows[i] for call, i in map(self._running.get, tokens)]
        texts = dict(zip(tokens, Row.decoded(rows, [*tokens.values()]), strict=True))
        for one in results:
            if one.row not in self._running:  # its prompt was scored, and no more was asked for
                continue
            call, i = self._running[one.row]
            if one.token is None:
                part = self._prompt_part(i, call.rows[i], call.prompts[i], one.logprobs, call.top)
            else:
                part = self._token_part(i, call.rows[i], one.token, texts[one.row], one.logprobs, call.top)
            self._add_part(call, part)
            if part.finish:
                self._remove(one.row)
        found, self._ready = self._ready, []
        return found

    def _add_part(self, call: Call, part: Part) -> None:
        call.left -= part.finish is not None
        self._ready.append((call, part))

    def _remove(self, row: int) -> None:
        del self._running[row]
        self._batch.remove(row)
