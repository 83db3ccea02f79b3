"""Writer of many callers: their texts share the rows of one Batch, and come and go between tokens."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from polyarr.models.batch import Batch
from polyarr.models.completion import Part, Row, Writer
from polyarr.models.decoder import LanguageModel
from polyarr.models.sampling import Sampling
from polyarr.ops.validation import whole
from polyarr.text import Tokenizer
from polyarr.text.constraints import Constraint, Constraints


class Call:
    """Request of one caller of a SharedWriter: the texts after some prompts.

    Attributes:
        client: Name of the caller, among whose calls rows are shared out.
        left: Number of texts that are not complete.
        has_begun: True if a text has a row, or had one.
        error: Error of the call's grammar, after which its texts never become complete; None if there is none.
    """

    error: ValueError | None = None
    has_begun = False

    def __init__(
        self,
        prompts: list[np.ndarray],
        rows: list[Row],
        how: Sampling,
        seed: int | None,
        top: int | None,
        echo: bool,
        constraints: list[Constraint] | None,
        client: str,
    ) -> None:
        self.client, self.sizes = client, [len(p) + row.most for p, row in zip(prompts, rows, strict=True)]
        self.constraints = constraints
        self.prompts, self.rows, self.how, self.top, self.echo = prompts, rows, how, top, echo
        self.seeds = [None if seed is None else seed + i for i in range(len(rows))]
        self.left = len(rows)

    @property
    def is_scored(self) -> bool:
        """True if the log-probabilities of the prompts are wanted, too."""
        return self.echo and self.top is not None

    @property
    def is_done(self) -> bool:
        """True if all texts are complete, or there was an error."""
        return not self.left or self.error is not None


class SharedWriter(Writer):
    """Writer whose callers' texts are written side by side.

    A text does not depend on the texts of other callers, to the bit: see Batch. The methods are for one thread.

    Args:
        model: A language model.
        tokenizer: The tokenizer of the model.
        rows: Number of texts that are written at a time; more wait. A free row goes to the client with the fewest
            tokens in rows; of several such clients to the one whose last row is the longest ago.
        length: Largest number of tokens of a prompt and its text; None for the model's context.
        drafts: Number of tokens that are drafted at a time while there is only one text; 0 for none. See Batch.
        draft_model: Smaller model of the same tokens, which drafts; None: n-grams of the text do.

    Attributes:
        constraints: Constraints of texts by grammars, whose process starts with the first one.

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

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        rows: int,
        length: int | None = None,
        drafts: int = 0,
        draft_model: LanguageModel | None = None,
    ) -> None:
        super().__init__(model, tokenizer, draft_model)
        self.constraints = Constraints(tokenizer)
        self._new_batch = lambda: Batch(self.model, rows, length, self._size, drafts, self._draft_model)
        self.reset()

    def reset(self) -> None:
        """Forget all calls, and begin with empty caches, such as after an error of the device."""
        self._waiting: list[tuple[Call, int]] = []
        self._turns: dict[str, int] = {}  # by client: the larger, the later was its last row
        self._running: dict[int, tuple[Call, int]] = {}
        self._ready: list[tuple[Call, Part]] = []
        self._batch = self._new_batch()

    @property
    def reused(self) -> int:
        """Number of tokens of prompts that were copied from another text's caches rather than computed."""
        return self._batch.reused

    @property
    def waiting(self) -> dict[str, int]:
        """Number of texts that wait: for a free row ("row"), or for their prompt to be computed ("prompt")."""
        return {"row": len(self._waiting), "prompt": self._batch.beginning}

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
        grammar: str | None = None,
        client: str = "",
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
            grammar: Grammar of the texts, in llguidance's form of Lark; None: any text. A text ends where nothing may
                follow.
            client: Name of the caller.
            **sampling: As in Writer.write.

        Raises:
            ValueError: As in Writer.write; or a prompt is longer than `length` allows.
        """
        encoded, how = self._checked(prompts, stop, logprobs), Sampling(**sampling)
        if whole("SharedWriter", "max_new_tokens", max_new_tokens) < 0:
            raise ValueError(f"SharedWriter: max_new_tokens is {max_new_tokens}; it must not be negative")
        length = self._batch.length
        if (longest := max(map(len, encoded))) > length:
            raise ValueError(f"SharedWriter: a prompt has {longest} tokens; it must have at most {length}")
        ends = self.tokenizer.ends if ends is None else ends
        rows = [
            Row(self.tokenizer, prompt, stop, ends, min(max_new_tokens, length - len(prompt))) for prompt in encoded
        ]
        constraints = [self.constraints.begin(grammar) for _ in rows] if grammar else None
        call = Call(encoded, rows, how, seed, logprobs, echo, constraints, client)
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
        self._waiting = [pair for pair in self._waiting if pair[0] is not call]
        self._ready = [pair for pair in self._ready if pair[0] is not call]

    def step(self) -> list[tuple[Call, Part]]:
        """Write one more token of each running text, and return the parts that became known by call.

        A call whose grammar fails gets an `error`, and has no more parts.
        """
        self._begin_texts()
        results = [one for one in self._batch.step() if one.row in self._running]
        going = {row for row, (call, i) in self._running.items() if call.rows[i].finish is None}  # not only scored
        tokens = {one.row: one.token for one in results if one.token is not None and one.row in going}
        last = self._last_rows(tokens)
        tokens = {row: token for row, token in tokens.items() if row in self._running}  # whose grammars did not fail
        rows = [call.rows[i] for call, i in (self._running[row] for row in tokens)]
        texts = dict(zip(tokens, Row.decoded(rows, [*tokens.values()]), strict=True))
        for one in results:
            if one.row not in self._running:  # its prompt was scored, and no more was asked for
                continue
            call, i = self._running[one.row]
            given = one.logprobs, call.top
            if one.token is None:
                part = self._prompt_part(i, call.rows[i], call.prompts[i], *given)
            else:
                part = self._token_part(i, call.rows[i], one.token, texts[one.row], *given, one.row in last)
            self._add_part(call, part)
            if part.finish:
                self._remove(one.row)
        ready, self._ready = self._ready, []
        return ready

    def _begin_texts(self) -> None:
        """Put texts that wait into free rows."""
        chosen = self._chosen(self._batch.free)
        masks = self._masks(chosen)
        for call, i in chosen:
            if call.error is not None:
                self._forget(call, i)
                continue
            mask = masks.get((call, i))
            if (call, i) in masks and mask is None:  # nothing may follow the prompt
                call.rows[i].finish = "stop"
                if not call.is_scored:
                    self._forget(call, i)
                    self._add_part(call, Part(i, "", 0, "stop"))
                    continue
            asked = call.how, call.seeds[i], None if call.top is None else max(call.top, 1), call.is_scored
            self._running[self._batch.add(call.prompts[i], *asked, mask)] = call, i

    def _chosen(self, count: int) -> list[tuple[Call, int]]:
        """Return up to `count` texts that wait no more, chosen fairly by the tokens that each client has in rows."""
        tokens = Counter[str]()
        for call, i in self._running.values():
            tokens[call.client] += call.sizes[i]
        here = {call.client for call, _ in self._waiting} | {*tokens}
        self._turns = {client: turn for client, turn in self._turns.items() if client in here}
        found: list[tuple[Call, int]] = []
        while self._waiting and len(found) < count:
            clients = [call.client for call, _ in self._waiting]
            client = min(clients, key=lambda client: (tokens[client], self._turns.get(client, 0)))
            call, i = one = self._waiting.pop(clients.index(client))
            tokens[call.client] += call.sizes[i]
            self._turns[call.client] = max(self._turns.values(), default=0) + 1
            call.has_begun = True
            found.append(one)
        return found

    def _last_rows(self, tokens: dict[int, int]) -> set[int]:
        """Let the grammars of rows follow their new tokens; return the rows after whose tokens nothing may follow."""
        texts = {self._running[row]: row for row in tokens if self._running[row][0].constraints}
        for (call, i), row in texts.items():
            if call.constraints:
                call.constraints[i].tokens.append(tokens[row])
        masks = self._masks([*texts])
        for text, mask in masks.items():
            if mask is not None:
                self._batch.restrict(texts[text], mask)
        return {texts[text] for text, mask in masks.items() if mask is None}

    def _masks(self, texts: list[tuple[Call, int]]) -> dict[tuple[Call, int], np.ndarray | None]:
        """Return the tokens (V,) that may follow those of these texts that have a grammar; None: nothing may follow.

        Calls whose grammar fails end.
        """
        constraints = {(call, i): call.constraints[i] for call, i in texts if call.constraints}
        texts = [*constraints]
        found = self.constraints.masks([*constraints.values()]) if texts else []
        masks = {}
        for text, mask in zip(texts, found, strict=True):
            mask = mask if mask is None or isinstance(mask, ValueError) else mask[: self._size]
            if isinstance(mask, np.ndarray) and not mask.any():  # only the end that the tokenizer lacks may follow
                mask = None
            if isinstance(mask, ValueError):
                self._fail(text[0], mask)
            else:
                masks[text] = mask
        return masks

    def _fail(self, call: Call, error: ValueError) -> None:
        call.error = error
        self.end(call)

    def _add_part(self, call: Call, part: Part) -> None:
        call.left -= part.finish is not None
        self._ready.append((call, part))

    def _remove(self, row: int) -> None:
        self._forget(*self._running.pop(row))
        self._batch.remove(row)

    def _forget(self, call: Call, i: int) -> None:
        """Let the worker forget a text that ends, if it has a grammar."""
        if call.constraints:
            self.constraints.end(call.constraints[i])
