"""Text: where it comes from, and how it becomes numbers."""

from polyarr.text.corpus import read_text, split_text, standard_library_text
from polyarr.text.tokenizer import CharTokenizer

__all__ = ["CharTokenizer", "read_text", "split_text", "standard_library_text"]
