"""Records in JSON lines: conversations, and prompts with completions, as tokens that are learned in part."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyarr.text.chat import Part
from polyarr.text.sources import FIELD, is_json_lines, read_lines
from polyarr.text.tokenizer import Tokenizer
from polyarr.text.tokens import FIRST, LEARNED

ROLES = ("system", "developer", "user", "assistant", "tool")
_KEYS = {"messages", "prompt", "completion"}


def are_records(files: Sequence[Path], field: str = FIELD) -> bool:
    """Return whether the first JSON line of files is a record instead of a text.

    A record has "messages", or "prompt" and "completion", and no text as `field`.

    Raises:
        OSError: A file cannot be read.
        ValueError: The line is not JSON.
    """
    found = next((one for path in files if is_json_lines(path) for one in read_lines(path, lambda value: value)), None)
    return isinstance(found, dict) and field not in found and bool(_KEYS & found.keys())


def encoded_records(files: Sequence[Path], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the tokens of each record of JSON lines, as uint32 with the bits FIRST and LEARNED, and its text's bytes.

    Args:
        files: JSON lines (.jsonl, .ndjson).
        tokenizer: The tokenizer. Its chat template writes messages; a prompt and a completion that are texts follow
            each other without anything between, with the special tokens around a text.

    Raises:
        OSError: A file cannot be read.
        ValueError: A line is no record, the tokenizer has no chat template for messages, or nothing is to be learned.
    """
    if tokenizer.vocab_size > FIRST:
        raise ValueError(f"records: the tokenizer has {tokenizer.vocab_size:,} tokens; it may have {FIRST:,}")
    for path in files:
        if not is_json_lines(path):
            raise ValueError(f"{path}: not JSON lines (.jsonl, .ndjson), as the other files with records are")
        yield from read_lines(path, lambda record: _encoded(record, tokenizer))


def _encoded(record: Any, tokenizer: Tokenizer) -> tuple[np.ndarray, int]:
    """Return the tokens of a record, and the size of its text in bytes."""
    if not isinstance(record, dict):
        raise ValueError("it must be a JSON object with messages, or with a prompt and a completion")
    parts, is_plain = _parts(record, tokenizer)
    text = "".join(text for text, _ in parts)
    data = text.encode()  # raises a ValueError for a lone surrogate
    tokens, offsets = tokenizer.encode_with_offsets(text)
    is_learned, at = np.zeros(len(tokens), bool), 0
    for part, is_learned_part in parts:
        if is_learned_part:
            is_learned |= (offsets[:, 1] > at) & (offsets[:, 0] < at + len(part))
        at += len(part)
    marked = tokens.astype(np.uint32) | np.where(is_learned, LEARNED, np.uint32(0))
    if is_plain:
        begin = np.array(tokenizer.begin, np.uint32)
        end = np.array([] if tokenizer.end is None else [tokenizer.end], np.uint32)
        marked = np.concatenate([begin, marked, end | LEARNED])
    if len(marked):
        marked[0] = marked[0] & ~LEARNED | FIRST  # nothing before it predicts it
    if not (marked & LEARNED).any():
        raise ValueError("it has no answer to learn")
    return marked, len(data)


def _parts(record: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[list[Part], bool]:
    """Return the parts of a record's text, and whether special tokens belong around it."""
    if record.get("tools"):
        raise ValueError("it has tools, which are not supported; records without them are")
    if "messages" in record:
        messages = _messages("messages", record["messages"])
        if not any(message["role"] == "assistant" for message in messages):
            raise ValueError("its messages have no answer; at least one must be of the role assistant")
        return _template(tokenizer).parts(messages), False
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion:
            raise ValueError("its completion is empty; it must have at least one character")
        return [(prompt, False), (completion, True)], True
    if isinstance(prompt, list) and isinstance(completion, list):
        before, after = _messages("prompt", prompt), _messages("completion", completion)
        return _template(tokenizer).parts_after(before, after), False
    raise ValueError("it must have messages, or a prompt and a completion, both texts or both lists of messages")


def _template(tokenizer: Tokenizer) -> Any:
    if tokenizer.chat is None:
        raise ValueError(
            "the tokenizer has no chat template to write messages; use a model with one, or records with a prompt and "
            "a completion that are texts"
        )
    return tokenizer.chat


def _messages(name: str, given: Any) -> list[dict[str, Any]]:
    """Return messages, with contents that consist of parts joined to one text."""
    if not isinstance(given, list) or not given:
        raise ValueError(f"{name!r} is {'empty' if given == [] else 'no list'}; it must be a list of messages")
    return [_message(name, number, message) for number, message in enumerate(given, 1)]


def _message(name: str, number: int, message: Any) -> dict[str, Any]:
    which = f"message {number} of {name!r}"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        role = repr(message.get("role"))[:50] if isinstance(message, dict) else "missing"
        raise ValueError(f"{which}: its role is {role}; it must be one of {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        content = "".join(part["text"] for part in content)
    if content is None and message.get("tool_calls"):
        return message
    if not isinstance(content, str):
        raise ValueError(f"{which}: its content must be a text, or a list of parts of the type text")
    return {**message, "content": content}


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def shown_record(tokens: np.ndarray, is_learned: np.ndarray, tokenizer: Tokenizer) -> list[Part]:
    """Return the text of a record's tokens in parts, each with whether it is learned."""
    ends = [*(np.flatnonzero(is_learned[1:] != is_learned[:-1]) + 1).tolist(), len(tokens)]
    starts = [0, *ends[:-1]]
    return [
        (tokenizer.decode(tokens[start:end].tolist()), bool(is_learned[start]))
        for start, end in zip(starts, ends, strict=True)
    ]
