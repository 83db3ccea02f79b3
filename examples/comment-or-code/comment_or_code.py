"""An encoder that classifies lines as comments or code, trained on the source of Python's standard library.

It reads lines character by character, comments without their #, and then classifies lines that you type.
"""

import argparse
import io
import time
import tokenize

import numpy as np

import polyarr as pa
from polyarr import optim
from polyarr.models import EncoderClassifier
from polyarr.text import CharTokenizer, standard_library_text

LENGTH = 48  # characters of a line that the model sees
KINDS = ("code", "comment")
CONFIG = {"context_length": LENGTH, "emb_dim": 64, "n_heads": 4, "n_layers": 2, "hidden_dim": 128, "norm_first": True}


def lines_of(source):
    """Return {line: whether it is a comment} for a source, without lines that occur as both."""
    found = {False: set(), True: set()}
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and token.line.strip() == token.string:
                found[True].add(token.string.lstrip("#!: ").strip())
            elif token.type in (tokenize.NAME, tokenize.OP) and token.line.count("\n") == 1:
                found[False].add(token.line.partition("#")[0].strip())
    except (tokenize.TokenError, SyntaxError):  # incomplete source
        pass
    return {line: kind for kind in found for line in found[kind] - found[not kind] if len(line) > 2}


def encoded(tokenizer, lines):
    """Return tokens (n, LENGTH) and their padding mask."""
    tokens, keep = np.zeros((len(lines), LENGTH), np.int32), np.zeros((len(lines), LENGTH), bool)
    for i, line in enumerate(lines):
        found = tokenizer.encode(line[:LENGTH])
        tokens[i, : len(found)], keep[i, : len(found)] = found, True
    return tokens, keep


def data(limit):
    """Return (tokenizer, lines, kinds) with as many comments as lines of code, in a fixed random order."""
    source = standard_library_text(limit)
    rng, found = np.random.default_rng(0), lines_of(source)
    comments, code = (sorted(line for line, kind in found.items() if kind is k) for k in (True, False))
    few = min(len(comments), len(code))
    lines = [*rng.permutation(comments)[:few], *rng.permutation(code)[:few]]
    order = rng.permutation(2 * few)
    return CharTokenizer.from_text(source), [str(lines[i]) for i in order], (order < few).astype(np.int32)


@pa.compile
def accuracy(model, tokens, keep, targets):
    """Return the fraction of lines that are classified correctly."""
    return pa.mean(pa.argmax(model(tokens, keep), axis=-1) == targets)


def trained(model, arrays, steps, batch_size=64):
    """Return the model after `steps` training steps on random batches."""
    optimizer = optim.AdamW(lr=optim.warmup_cosine(2e-3, steps // 10, steps), clip=1.0, weight_decay=0.05)
    state, rng = optimizer.init(model), np.random.default_rng(1)

    @pa.compile
    def step(model, state, tokens, keep, targets):
        loss, grads = pa.value_and_grad(lambda m: m.loss(tokens, targets, keep))(model)
        return loss, *optimizer.update(grads, state, model)

    for i in range(steps):
        chosen = rng.integers(0, len(arrays[0]), batch_size)
        loss, model, state = step(model, state, *(pa.asarray(a[chosen]) for a in arrays))
        if i % 100 == 99 or i + 1 == steps:
            print(f"step {i + 1:4}/{steps}  loss {float(loss):.3f}")
    return model


def main(arguments=None):
    """Train, print the accuracy on 1,000 held-out lines, and classify some lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--limit", type=int, default=4_000_000, help="how many characters of source to read")
    parser.add_argument("lines", nargs="*", default=["the result of the last call", "result = last(call)"])
    args = parser.parse_args(arguments)
    with pa.use_backend(args.backend):
        pa.random.seed(0)
        tokenizer, lines, targets = data(args.limit)
        arrays = (*encoded(tokenizer, lines), targets)
        held = min(1000, len(lines) // 5)
        print(f"{len(lines) - held:,} lines to learn from, {held:,} to try on")
        started, model = time.perf_counter(), EncoderClassifier({"vocab_size": tokenizer.vocab_size, **CONFIG}, 2)
        model = trained(model, [a[held:] for a in arrays], args.steps).eval()
        right = float(accuracy(model, *(pa.asarray(a[:held]) for a in arrays)))
        print(f"{right:.1%} of the lines to try on are right, after {time.perf_counter() - started:.0f} s")
        found = pa.argmax(model(*map(pa.asarray, encoded(tokenizer, args.lines))), axis=-1).tolist()
        for line, kind in zip(args.lines, found, strict=True):
            print(f"{KINDS[kind]:8} {line}")
    return right


if __name__ == "__main__":
    main()
