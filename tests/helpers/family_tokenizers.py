"""Small tokenizers in the format of each model family: its special tokens and where they are inserted."""

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = "The quick brown fox jumps over the lazy dog; naïve 日本 😀\n  1234 apples aren't 56 pears.\n" * 4
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Qwen2's words. transformers has them in its own code, and does not look into the file for them.
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# o200k_base's words, as the tokenizer.json of gpt-oss has them.
_GPT_OSS_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(special, words=None, size=340):
    """Return a byte-level BPE tokenizer whose first tokens are bytes, and whose last ones are special."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    if words:
        split = pre_tokenizers.Split(tokenizers.Regex(words), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, made.pre_tokenizer])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens(special)
    return made


def gpt2():
    """Return a tokenizer whose one special token begins and ends texts and is never inserted."""
    made = _byte_level(["<|endoftext|>"])
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made, dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")


def llama2():
    """Return a tokenizer like sentencepiece's: spaces are letters, unknown characters are bytes, <s> precedes texts."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("o", "x"), ("f", "ox"), ("▁", "fox")]
    letters = sorted({*"▁Tthequickbrownfxjmpsvlazydg1234567890;.'\n"})
    words = dict.fromkeys([*letters, *("".join(pair) for pair in merges)])
    vocabulary |= {word: len(vocabulary) + number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return made, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}


def llama3():
    """Return a tokenizer whose template inserts <|begin_of_text|>; turns and texts end with different tokens."""
    made = _byte_level(["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"])
    begin = made.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B", special_tokens=[("<|begin_of_text|>", begin)]
    )
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    chat = "{{ bos_token }}" + CHATML
    return made, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "chat_template": chat}


def qwen2():
    """Return a tokenizer with two tokens that end a text and none that begins one; each digit is a word."""
    made = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], _QWEN2_WORDS)
    made.normalizer = normalizers.NFC()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made, {
        "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False,
        "chat_template": CHATML,
    }  # fmt: skip


def smollm2():
    """Return a tokenizer whose digits are tokens, with tokens that begin and end a turn of a conversation."""
    made = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), made.pre_tokenizer])
    return made, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHATML}


def gpt_oss():
    """Return a tokenizer whose special tokens name the parts of a message; a contraction belongs to its word."""
    names = ("startoftext", "endoftext", "return", "channel", "start", "end", "message")
    made = _byte_level([f"<|{name}|>" for name in names], _GPT_OSS_WORDS)
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    chat = CHATML.replace("<|im_start|>", "<|start|>").replace("'\n' + m", "'<|message|>' + m").replace("im_end", "end")
    return made, {
        "bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>", "chat_template": chat,
    }  # fmt: skip


# Of each family: the tokenizer, the tokens that end texts by generation_config.json, and the one by config.json.
FAMILIES = {
    "gpt2": (gpt2, ["<|endoftext|>"], "<|endoftext|>"),
    "llama 2": (llama2, ["</s>"], "</s>"),
    "llama 3": (llama3, ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"], "<|end_of_text|>"),
    "qwen2": (qwen2, ["<|im_end|>", "<|endoftext|>"], "<|im_end|>"),
    "gpt-oss": (gpt_oss, ["<|return|>", "<|endoftext|>"], "<|return|>"),
    "smollm2": (smollm2, ["<|im_end|>"], "<|endoftext|>"),
}


def write(folder, family):
    """Write a family's tokenizer into a folder, with the ids of its special tokens as the model's settings."""
    make, ends, end = FAMILIES[family]
    made, config = make()
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    bos = config["bos_token"] and made.token_to_id(config["bos_token"])
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": bos, "eos_token_id": [made.token_to_id(name) for name in ends]})
    )
    return {"vocab_size": made.get_vocab_size(), "bos_token_id": bos, "eos_token_id": made.token_to_id(end)}
