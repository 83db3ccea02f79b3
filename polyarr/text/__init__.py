"""Text: where it comes from, and how it becomes numbers."""

from polyarr.text.characters import CharTokenizer
from polyarr.text.corpus import read_text, split_text, standard_library_text
from polyarr.text.numbers import NumberTokenizer
from polyarr.text.subword import SubwordTokenizer, byte_tokenizer, train_bpe
from polyarr.text.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_dict

__all__ = [
    "CharTokenizer",
    "NumberTokenizer",
    "SubwordTokenizer",
    "Tokenizer",
    "byte_tokenizer",
    "load_tokenizer",
    "read_text",
    "split_text",
    "standard_library_text",
    "tokenizer_from_dict",
    "train_bpe",
]
