"""Conversations with a model, whose history is kept within its context."""

from collections.abc import Generator
from typing import Any, cast

from polyarr.models.completion import Writer
from polyarr.text.sandbox import SandboxedTokenizer


class Conversation:
    """Conversation with a model that has a chat template.

    The oldest turns, each a message of the user with its answer, are dropped when the history, and the tokens that are
    reserved for an answer, no longer fit into the model's context. The system prompt stays.

    Args:
        writer: Writer whose tokenizer is a SandboxedTokenizer with a chat template.
        system: System prompt, or None.

    Attributes:
        messages: Messages so far, each with a "role" and a "content".
        dropped: Number of messages that the last answer dropped.
    """

    def __init__(self, writer: Writer, system: str | None = None) -> None:
        self._writer, self._system = writer, [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        """Drop all messages but the system prompt."""
        self.messages, self.dropped = list(self._system), 0

    def answer(self, text: str, max_new_tokens: int, **options: Any) -> Generator[str]:
        """Yield the answer to a message piece by piece; what was yielded becomes part of the history.

        Args:
            text: The message.
            max_new_tokens: Largest number of tokens of the answer. Up to half of the context is reserved for it.
            **options: stop, seed and sampling options of Writer.write.

        Raises:
            ValueError: The message does not fit into the context, or the chat template refuses the messages.
        """
        before = len(self.messages)
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt, messages = self._fitted(messages, max_new_tokens)
        parts, said = self._writer.write([prompt], max_new_tokens, stop_at_context=True, **options), ""
        try:
            for part in parts:
                said += part.text
                yield part.text
        finally:
            self.messages = [*messages, {"role": "assistant", "content": said}]
            self.dropped = before + 1 - len(messages)

    def _fitted(self, messages: list[dict[str, str]], reserved: int) -> tuple[list[int], list[dict[str, str]]]:
        """Return the tokens of the newest messages that fit, and these messages."""
        context, first = self._writer.model.config.context_length, len(self._system)
        longest = context - min(reserved, context // 2)
        while True:
            tokens = cast("SandboxedTokenizer", self._writer.tokenizer).encode_messages(messages, longest)
            if len(tokens) <= longest:
                return tokens, messages
            later = [n for n, message in enumerate(messages) if message["role"] == "user" and n > first]
            if not later:
                raise ValueError(
                    f"the message has {len(tokens):,} tokens or more with what the template adds; it may have "
                    f"{longest:,} of the model's context of {context:,}"
                )
            messages = [*messages[:first], *messages[later[0] :]]
