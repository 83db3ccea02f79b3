"""Text for language models: corpora, tokenizers, chat templates and folders of prepared tokens."""

from polyarr.text.characters import CharTokenizer
from polyarr.text.chat import ChatTemplate
from polyarr.text.corpus import Corpus
from polyarr.text.library import standard_library_text
from polyarr.text.numbers import NumberTokenizer
from polyarr.text.prepared import is_prepared, open_prepared, prepare
from polyarr.text.sources import find_files
from polyarr.text.subword import SubwordTokenizer, byte_tokenizer, train_bpe
from polyarr.text.tokenizer import Tokenizer, load_tokenizer, same_tokens, start_of, tokenizer_from_dict

__all__ = [
    "CharTokenizer",
    "ChatTemplate",
    "Corpus",
    "NumberTokenizer",
    "SubwordTokenizer",
    "Tokenizer",
    "byte_tokenizer",
    "find_files",
    "is_prepared",
    "load_tokenizer",
    "open_prepared",
    "prepare",
    "same_tokens",
    "standard_library_text",
    "start_of",
    "tokenizer_from_dict",
    "train_bpe",
]
