"""Tokenizers in the metadata of GGUF files: byte-level BPE and SentencePiece's BPE, read and written."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from polyarr.extras import extra
from polyarr.saving.gguf_file import GGUFFile
from polyarr.schema import in_one_line
from polyarr.text.chat import ChatTemplate
from polyarr.text.panics import is_panic, without_panics
from polyarr.text.special import SpecialTokens
from polyarr.text.subword import SubwordTokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)  # types of tokens
_SPACE = "▁"  # SentencePiece's
_NONE = ("none", "no_vocab")  # models of files without a tokenizer
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_ENDS = ("eos", "eot", "eom")
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_ENGLISH_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _ENGLISH_ENDS +
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _ENGLISH_ENDS +
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Words(NamedTuple):
    """How a byte-level tokenizer cuts a text into words.

    Attributes:
        pattern: Pattern of a word; None for GPT-2's, which the library has.
        has_digits: Whether each digit is a word.
        ignores_merges: Whether a word that is a token needs no merges.
        is_normalized: Whether texts are normalized to NFC.
        adds_bos: Whether BOS precedes texts if the metadata do not say.
    """

    pattern: str | None = None
    has_digits: bool = False
    ignores_merges: bool = False
    is_normalized: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self, library: Any) -> Any:
        """Return the library's pre-tokenizer."""
        made = library.pre_tokenizers
        steps = [made.Digits(individual_digits=True)] if self.has_digits else []
        if self.pattern is not None:
            steps.append(made.Split(library.Regex(self.pattern), "isolated"))
        steps.append(made.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        return steps[0] if len(steps) == 1 else made.Sequence(steps)


_GPT2, _DIGITS, _QWEN2 = Words(), Words(has_digits=True), Words(_QWEN2_WORDS, is_normalized=True)
_LLAMA3 = Words(_LLAMA3_WORDS, ignores_merges=True, adds_bos=True)
# By the name that llama.cpp has for them (tokenizer.ggml.pre); the first of several is written.
WORDS = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "dbrx": Words(_LLAMA3_WORDS),
    **dict.fromkeys(("gpt-4o", "llama4"), Words(_O200K_WORDS)),  # the first is gpt-oss's
    "tekken": Words(_TEKKEN_WORDS, ignores_merges=True, adds_bos=True),
}


# ---- reading -----------------------------------------------------------------------------------------------------


def load_gguf_tokenizer(path: Path) -> SubwordTokenizer:
    """Load the tokenizer of a GGUF file.

    Raises:
        OSError: The file cannot be read; a FileNotFoundError if it has no tokenizer.
        ValueError: The file is damaged, or has a tokenizer that polyarr does not have.
        RuntimeError: The library tokenizers, or gguf, is missing.
    """
    try:
        metadata = GGUFFile(path).metadata
        if metadata.get("tokenizer.ggml.model", "none") in _NONE:
            raise FileNotFoundError(f"{path}: it has no tokenizer")
        return _tokenizer(metadata)
    except ValueError as error:
        raise ValueError(f"{path}: {in_one_line(error)}") from error


def _tokenizer(metadata: Mapping[str, Any]) -> SubwordTokenizer:
    library = extra("tokenizers")
    given = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    tokens, types = _tokens(given)
    kind = given["model"]
    if not isinstance(kind, str) or kind not in _BUILDERS:
        known = " or ".join(map(repr, _BUILDERS))
        raise ValueError(f"its tokenizer is {str(kind)[:100]!r}; polyarr reads {known}: give another with --tokenizer")
    try:
        with without_panics():
            made, adds_bos = _BUILDERS[kind](library, given, tokens, types)
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):
            raise
        raise ValueError(f"its tokenizer is damaged: {in_one_line(error)}") from error
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in (_UNKNOWN, _CONTROL)]
    made.add_special_tokens([library.AddedToken(token, normalized=False, special=True) for token in special])
    own = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER]
    made.add_tokens([library.AddedToken(token, normalized=False) for token in own])
    names = {name: tokens[n] for name, key in _NAMED.items() if (n := _id(given, key, len(tokens))) is not None}
    if _flag(given, "add_bos_token", adds_bos) and "bos_token" in names:
        bos = names["bos_token"]
        made.post_processor = library.processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, given["bos_token_id"])]
        )
    ends = [number for key in _ENDS if (number := _id(given, key, len(tokens))) is not None]
    chat = ChatTemplate.of(given.get("tokenizer.chat_template"), names)
    special_tokens = SpecialTokens(names, _id(given, "bos", len(tokens)), tuple(ends))
    return SubwordTokenizer(made.to_str(), None, chat, special_tokens)


def _tokens(given: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Return the tokens and their types, without unused ones at the end."""
    tokens = _texts(given, "tokens")
    types = given.get("token_type", [_NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens) or not all(type(kind) is int for kind in types):
        raise ValueError("its token_type is not a list of a number for each token")
    while types and types[-1] == _UNUSED:
        tokens, types = tokens[:-1], types[:-1]
    if len(set(tokens)) < len(tokens):
        raise ValueError("its tokenizer has a token twice")
    return tokens, types


def _texts(given: Mapping[str, Any], name: str) -> list[str]:
    found = given.get(name, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError(f"its tokenizer.ggml.{name} is not a list of texts")
    return found


def _id(given: Mapping[str, Any], name: str, count: int) -> int | None:
    """Return the number of a special token, or None; some files have 2**32 - 1 for none."""
    found = given.get(f"{name}_token_id")
    return found if type(found) is int and 0 <= found < count else None


def _flag(given: Mapping[str, Any], name: str, default: bool) -> bool:
    found = given.get(name, default)
    return found if isinstance(found, bool) else default


def _byte_level(library: Any, given: Mapping[str, Any], tokens: list[str], _: list[int]) -> tuple[Any, bool]:
    """Return a byte-level BPE tokenizer, and whether it adds BOS by default."""
    name = given.get("pre")
    if not isinstance(name, str) or name not in WORDS:
        known = ", ".join(WORDS)
        raise ValueError(f"its pre-tokenizer is {name!r}; polyarr has {known}: import it with another --tokenizer")
    merges = [tuple(merge.split(" ")) for merge in _texts(given, "merges")]
    if not all(len(merge) == 2 for merge in merges):
        raise ValueError("its tokenizer.ggml.merges are not pairs of tokens")
    words, numbers = WORDS[name], {token: number for number, token in enumerate(tokens)}
    made = library.Tokenizer(library.models.BPE(numbers, merges, ignore_merges=words.ignores_merges))
    if words.is_normalized:
        made.normalizer = library.normalizers.NFC()
    made.pre_tokenizer, made.decoder = words.pre_tokenizer(library), library.decoders.ByteLevel()
    return made, words.adds_bos


def _sentencepiece(library: Any, given: Mapping[str, Any], tokens: list[str], types: list[int]) -> tuple[Any, bool]:
    """Return a tokenizer of SentencePiece's BPE with bytes for unknown characters, and that it adds BOS by default."""
    scores = given.get("scores")
    if not isinstance(scores, list) or len(scores) < len(tokens) or not all(type(s) is float for s in scores):
        raise ValueError("its tokenizer.ggml.scores is not a list of a number for each token")
    if str(given.get("general.architecture")).startswith("gemma"):  # which orders merges as its tokens
        scores = [-float(number) for number in range(len(tokens))]
    numbers = {token: number for number, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    merges = _merges(numbers, [n for n, kind in enumerate(types) if kind == _NORMAL], tokens, scores)
    bpe = library.models.BPE(numbers, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    made, steps = library.Tokenizer(bpe), library.normalizers
    replace, decode = steps.Replace(" ", _SPACE), library.decoders
    has_prefix = _flag(given, "add_space_prefix", True)
    made.normalizer = steps.Sequence([steps.Prepend(_SPACE), replace]) if has_prefix else replace
    strip = [decode.Strip(" ", 1, 0)] if has_prefix else []
    made.decoder = decode.Sequence([decode.Replace(_SPACE, " "), decode.ByteFallback(), decode.Fuse(), *strip])
    return made, True


def _merges(
    numbers: Mapping[str, int], normal: list[int], tokens: list[str], scores: list[float]
) -> list[tuple[str, str]]:
    """Return the pairs that merge to normal tokens, those of the best scores first."""
    found = []
    for number in sorted(normal, key=lambda n: (-scores[n], n)):
        token = tokens[number]
        parts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        found += [pair for pair in parts if pair[0] in numbers and pair[1] in numbers]
    return found


_BUILDERS: dict[str, Callable[..., tuple[Any, bool]]] = {"gpt2": _byte_level, "llama": _sentencepiece}


# ---- writing -----------------------------------------------------------------------------------------------------


def gguf_metadata(tokenizer: SubwordTokenizer, size: int) -> dict[str, Any]:
    """Return the metadata that describe a tokenizer in a GGUF file.

    Args:
        tokenizer: The tokenizer.
        size: Number of tokens of the model; unused ones are added to those of the tokenizer.

    Raises:
        ValueError: llama.cpp has no such tokenizer.
    """
    described = json.loads(tokenizer.to_json())
    model, added = described["model"], {one["id"]: one for one in described["added_tokens"]}
    if model["type"] != "BPE":
        raise ValueError(f"its tokenizer is of the type {model['type']}; llama.cpp has BPE")
    tokens = [tokenizer.token(number) or f"[PAD{number}]" for number in range(max(size, tokenizer.vocab_size))]
    types = [_type_of(token, number, added, tokenizer.vocab_size, model) for number, token in enumerate(tokens)]
    merges = [one.split(" ") if isinstance(one, str) else one for one in model["merges"]]
    if model.get("byte_fallback"):
        found = {"model": "llama", "scores": _scores(tokens, merges), "add_space_prefix": _has_prefix(described)}
    else:
        found = {"model": "gpt2", "pre": _words_of(described), "merges": [" ".join(pair) for pair in merges]}
    found |= {"tokens": tokens, "token_type": types, "add_bos_token": bool(tokenizer.begin)}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in (found | _special_ids(tokenizer)).items()}
    return metadata | ({"tokenizer.chat_template": tokenizer.chat.source} if tokenizer.chat else {})


def _type_of(token: str, number: int, added: Mapping[int, Any], size: int, model: Mapping[str, Any]) -> int:
    if token == model.get("unk_token"):
        return _UNKNOWN
    if number in added:
        return _CONTROL if added[number]["special"] else _USER
    if number >= size or (token == f"[PAD{number}]" and token not in model["vocab"]):
        return _UNUSED
    return _BYTE if model.get("byte_fallback") and len(token) == 6 and token.startswith("<0x") else _NORMAL


def _scores(tokens: list[str], merges: list[list[str]]) -> list[float]:
    """Return a score of each token, the higher the earlier it is merged."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges, 1):
        ranks.setdefault("".join(pair), rank)
    return [-float(ranks.get(token, 0)) for token in tokens]


def _has_prefix(described: Mapping[str, Any]) -> bool:
    """Return whether a space is put before a text."""
    steps = json.dumps([described["normalizer"], described["pre_tokenizer"]])
    return '"Prepend"' in steps or '"prepend_scheme": "first"' in steps or '"prepend_scheme": "always"' in steps


def _words_of(described: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the way in which a byte-level tokenizer cuts texts."""
    library, normalizer = extra("tokenizers"), described["normalizer"]
    ignores = bool(described["model"].get("ignore_merges"))
    if normalizer in (None, {"type": "NFC"}):
        for name in sorted(WORDS, key=lambda name: WORDS[name].ignores_merges != ignores):
            made = library.Tokenizer(library.models.BPE())
            made.pre_tokenizer = WORDS[name].pre_tokenizer(library)
            if _bare(json.loads(made.to_str())["pre_tokenizer"]) == _bare(described["pre_tokenizer"]):
                return name
    raise ValueError(f"its tokenizer cuts texts in a way that llama.cpp has no name for; it has {', '.join(WORDS)}")


def _bare(step: Any) -> Any:
    """Return a pre-tokenizer's description without what does not change tokens."""
    if isinstance(step, list):
        return [_bare(one) for one in step]
    return {k: _bare(v) for k, v in step.items() if k != "trim_offsets"} if isinstance(step, dict) else step


def _special_ids(tokenizer: SubwordTokenizer) -> dict[str, int]:
    """Return the numbers of the special tokens that have a key of their own."""
    names = {**(tokenizer.chat.tokens if tokenizer.chat else {}), **tokenizer.special.names}
    found = {key: tokenizer.number(names[name]) for name, key in _NAMED.items() if name in names}
    found |= dict(zip(_ENDS, tokenizer.ends, strict=False))
    if tokenizer.begin or tokenizer.special.bos is not None:
        found["bos"] = tokenizer.begin[0] if tokenizer.begin else tokenizer.special.bos
    return {f"{key}_token_id": number for key, number in found.items() if number is not None}
