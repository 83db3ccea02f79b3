"""Speed of texts that a server writes side by side, compared with one text alone: tokens per second, in one process.

    python benchmarks/many_texts.py [--preset shakespeare-char] [--backend opencl] [--dtype float32] [--texts 1 4 8]
                                    [--tokens 128] [--turns 5]

Each number of texts is written by a SharedWriter with that many rows, and by one with rows for the largest number; one
text alone is written by a Writer, too. Texts are sampled (temperature 0.8, top_k 50) from random weights after prompts
of 20 tokens. The ways alternate; a turn is timed from the first token of all texts to the last one.
"""

import argparse
import statistics
import time

import numpy as np
from train_step import VOCABULARIES

import polyarr as pa
from polyarr.models import Writer
from polyarr.models.families import new_model
from polyarr.models.llama import PRESETS as LLAMAS
from polyarr.models.llama import LlamaConfig
from polyarr.models.shared_writer import SharedWriter
from polyarr.text import byte_tokenizer
from polyarr.training import PRESETS

PROMPT = list(range(20))
SAMPLING = {"temperature": 0.8, "top_k": 50, "ends": ()}


def config_of(preset, context):
    if preset in LLAMAS:
        return LlamaConfig(**{**LLAMAS[preset], "context_length": context})
    return PRESETS[preset].config(VOCABULARIES.get(preset, 65))


def alone(writer, tokens):
    """Write one text; return tokens per second."""
    parts = writer.write([PROMPT], tokens, seed=0, **SAMPLING)
    next(parts)
    began = time.perf_counter()
    count = sum(1 for _ in parts)
    return count / (time.perf_counter() - began)


def together(writer, texts, tokens):
    """Write texts of as many callers; return tokens per second of all."""
    calls = [writer.begin([PROMPT], tokens, seed=seed, **SAMPLING) for seed in range(texts)]
    for _ in calls:  # a step computes one prompt
        writer.step()
    began, count = time.perf_counter(), 0
    while not writer.is_idle:
        count += len(writer.step())
    return count / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="shakespeare-char", choices=[*PRESETS, *LLAMAS])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--context", type=int, default=1024, help="context of a Llama")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    pa.set_backend(args.backend)
    pa.random.seed(0)
    model, tokenizer = new_model(config_of(args.preset, args.context)).eval().astype(args.dtype), byte_tokenizer()
    most = max(args.texts)
    writers = {rows: SharedWriter(model, tokenizer, rows) for rows in {*args.texts, most}}
    single = Writer(model, tokenizer)
    ways = {"1 text, Writer": lambda: alone(single, args.tokens)}
    for texts in args.texts:
        for rows in sorted({texts, most}):
            ways[f"{texts} texts, {rows} rows"] = lambda w=writers[rows], n=texts: together(w, n, args.tokens)
    found = {name: [] for name in ways}
    for turn in range(args.turns + 2):
        for name, way in ways.items():
            speed = way()
            found[name] += [speed] if turn > 1 else []
    print(f"{args.preset}, {args.dtype}, {pa.get_backend().name}: tokens/s, median of {args.turns} turns")
    base = np.array(found["1 text, Writer"])
    for name, speeds in found.items():
        print(f"{name:24} {statistics.median(speeds):10,.0f} {np.median(np.array(speeds) / base):8.2f} x one text")


if __name__ == "__main__":
    main()
