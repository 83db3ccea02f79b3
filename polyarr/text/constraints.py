"""Constraints of texts by grammars, which are followed in a worker process."""

import base64
import threading
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from polyarr.extras import extra
from polyarr.text.sandbox import Limits, Sandbox
from polyarr.text.tokenizer import Tokenizer

MAX_GRAMMAR = 2**16  # characters
_LIMITS = Limits(cpu=1.0, wall=5.0)


class Constraint:
    """Constraint of one text: its grammar, and the tokens of the text so far.

    Args:
        key: Number of the text.
        grammar: The grammar.
    """

    def __init__(self, key: int, grammar: str) -> None:
        self.key, self.grammar, self.tokens = key, grammar, list[int]()
        self.known = 0  # tokens that the worker has


class Constraints:
    """Constraints of a tokenizer's texts by grammars in llguidance's form of Lark.

    The worker process starts at the first use.

    Args:
        tokenizer: The tokenizer.

    Examples:
        >>> from polyarr.text import CharTokenizer
        >>> from polyarr.text.constraints import Constraints
        >>> Constraints(CharTokenizer("abc")).masks([])
        []
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._keys, self._ended = tokenizer, count(), list[int]()
        self._lock = threading.Lock()
        self._worker: Sandbox | None = None

    def check(self, grammar: str) -> None:
        """Raise ValueError unless a text can follow a grammar.

        Raises:
            ValueError: The grammar is damaged, too large, takes too long, or needs tokens that are missing.
            RuntimeError: The library llguidance is missing.
            OSError: No worker can be started.
        """
        if len(grammar) > MAX_GRAMMAR:
            raise ValueError(f"it has {len(grammar):,} characters; there may be {MAX_GRAMMAR:,}")
        self._sandbox.ask("check", grammar)

    def begin(self, grammar: str) -> Constraint:
        """Return the constraint of a new text."""
        return Constraint(next(self._keys), grammar)

    def end(self, constraint: Constraint) -> None:
        """Forget a text."""
        self._ended.append(constraint.key)

    def masks(self, constraints: Sequence[Constraint]) -> list[np.ndarray | ValueError | None]:
        """Return the tokens that may follow each text.

        Args:
            constraints: The constraints of the texts.

        Returns:
            For each text bool (V,), or more than V; None where nothing may follow, or the error of its grammar.
        """
        if not constraints:
            return []
        try:
            found = self._asked(constraints)
        except ValueError:  # of one text, which must not end the others
            found = [self._alone(one) for one in constraints]
        for one in constraints:
            one.known = len(one.tokens)
        return [one if isinstance(one, ValueError) else _mask(one) for one in found]

    def close(self) -> None:
        """End the worker; later requests raise SandboxError."""
        if self._worker is not None:
            self._worker.close()

    def _asked(self, constraints: Sequence[Constraint]) -> list[Any]:
        ended, self._ended = self._ended, []
        texts = [(one.key, one.tokens[one.known :]) for one in constraints]
        found = self._sandbox.ask("masks", texts, ended)
        return [self._opened(one) if mask is None else mask for one, mask in zip(constraints, found, strict=True)]

    def _opened(self, constraint: Constraint) -> Any:
        """Return the mask of a text that the worker does not know, since it is new or the worker was restarted."""
        self._sandbox.ask("open", constraint.key, constraint.grammar, constraint.tokens)
        return self._sandbox.ask("masks", [(constraint.key, [])], [])[0]

    def _alone(self, constraint: Constraint) -> Any:
        try:
            return self._opened(constraint)
        except ValueError as error:
            return error

    @property
    def _sandbox(self) -> Sandbox:
        """The worker process, which is started once."""
        with self._lock:
            if self._worker is None:
                extra("llguidance", "serve")
                described = {name: value for name, value in self._tokenizer.to_dict().items() if name != "chat"}
                self._worker = Sandbox("grammar", {"grammars": described}, _LIMITS)
            return self._worker


def _mask(found: dict[str, str]) -> np.ndarray | ValueError | None:
    if "error" in found:
        return ValueError(found["error"])
    if "mask" not in found:
        return None
    bits = np.frombuffer(base64.b64decode(found["mask"]), np.uint8)
    return np.unpackbits(bits, bitorder="little").astype(bool)
