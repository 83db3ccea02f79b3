"""Decoding speed of language models, token by token: eager, captured by polyarr.compile, and compared with PyTorch.

    python benchmarks/decode.py [--preset shakespeare-char] [--backend opencl] [--batch-size 1] [--tokens 128]
                                [--turns 5] [--threads 2] [--weights int8,q8_0,q4_0]
    python benchmarks/decode.py --preset gpt2-124m --torch-device cuda [--dtype bfloat16] [--torch-compile]
    python benchmarks/decode.py --preset llama-3.2-1b --torch-device cuda --dtype bfloat16 [--torch-compile]
    either with                 [--json FILE] [--png FILE]

All decode greedily from the same random weights, from the start of a text, alternating in one process. polyarr's KV
cache has the length of the whole context and is overwritten in place if compiled; PyTorch's eager model has one that
grows, and with --torch-compile a model that becomes CUDA graphs has one as long as polyarr's. If transformers is
installed, its model of the same weights decodes with its own `generate`. A turn is timed
until its tokens are computed; nothing is read before. "host" is the CPU time of the calling thread. polyarr's tokens
must be equal in both modes, and first logits must agree, or nothing is timed; for float32 the agreement with
transformers' text is printed. Both are optional: pip install torch transformers
"""

import argparse
import statistics
import tempfile
import time
from itertools import chain

import numpy as np
import report
from train_step import VOCABULARIES, TorchStep, torch

import polyarr as pa
from polyarr.models import save_pretrained
from polyarr.models.gpt import GPTModel
from polyarr.models.llama import PRESETS as LLAMAS
from polyarr.models.llama import LlamaModel
from polyarr.nn import turns
from polyarr.training import PRESETS

try:
    import transformers
except ImportError:
    transformers = None

FIRST = 1  # token of every text
OTHERS = {"PyTorch", "transformers", "torch.compile"}
CONTEXT = 1024  # positions of a Llama's cache
OPTIONS = {"triton.cudagraphs": True, "coordinate_descent_tuning": True}  # of torch.compile: its fastest


class Writer:
    """A model that decodes one token per call after begin()."""

    def write(self, count):
        """Decode `count` tokens, each of which stays on its device."""
        self.begin()
        found = []
        for _ in range(count):
            self()
            found.append(self.token)
        return found


class Polyarr(Writer):
    """polyarr's model; a call returns the logits of the next token."""

    def __init__(self, model, batch, way):
        self.model, self.batch, self.way, self.step = model, batch, way, way(self.following)

    @staticmethod
    def following(model, token, caches, position):
        logits = model(token, caches, position)[:, -1]  # (B, V)
        return logits, pa.argmax(logits, axis=-1)[:, None].astype("int32")

    def begin(self):
        self.caches = self.model.caches(self.batch, self.model.config.context_length)
        self.position, self.token = 0, pa.full((self.batch, 1), FIRST, dtype="int32")

    def __call__(self):
        logits, self.token = self.step(self.model, self.token, self.caches, self.position)
        self.position += 1
        return logits

    def tokens(self, found):
        return pa.concat(found, axis=1).numpy()


class PyTorch(Writer, TorchStep if torch else object):
    """PyTorch's eager model, with a KV cache that grows with every token."""

    def __init__(self, recipe, model, device, batch, dtype):
        super().__init__(recipe, model, device)
        self.p, self.batch = {name: p.detach().to(dtype) for name, p in self.p.items()}, batch

    def begin(self):
        self.caches, self.position = {}, 0
        self.token = torch.full((self.batch, 1), FIRST, device=self.device)

    def attention(self, x, name):
        b, t, c = x.shape
        parts = self.linear(x, f"{name}.qkv").view(b, t, 3, self.config.n_heads, -1)
        q, *new = (a.transpose(1, 2) for a in parts.unbind(2))  # (B, H, T, D)
        before = self.caches.get(name)
        k, v = new if before is None else (torch.cat(pair, 2) for pair in zip(before, new, strict=True))
        self.caches[name] = k, v
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.linear(y.transpose(1, 2).reshape(b, t, c), f"{name}.out")

    def embedded(self, tokens):
        places = self.p["pos_emb.weight"][self.position : self.position + tokens.shape[1]]
        return torch.nn.functional.embedding(tokens, self.p["tok_emb.weight"]) + places

    def __call__(self):
        with torch.no_grad():
            logits = self.logits(self.token)[:, -1]
            self.token = logits.argmax(-1, keepdim=True)
        self.position += 1
        return logits

    def tokens(self, found):
        return torch.cat(found, 1).cpu().numpy()


class Transformers(Writer):
    """transformers' model of the same weights, with its own generate."""

    def __init__(self, model, device, batch, dtype):
        with tempfile.TemporaryDirectory() as folder:
            save_pretrained(f"{folder}/model", model)
            found = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/model")
        self.model, self.device, self.batch = found.to(dtype).to(device).eval(), device, batch

    def begin(self):
        self.token = torch.full((self.batch, 1), FIRST, device=self.device)

    def __call__(self):
        with torch.no_grad():
            return self.model(self.token).logits[:, -1]

    def write(self, count):
        self.begin()
        mask = torch.ones_like(self.token)
        how = {"do_sample": False, "min_new_tokens": count, "max_new_tokens": count, "pad_token_id": 0}
        return [self.model.generate(self.token, attention_mask=mask, **how)[:, 1:]]

    def tokens(self, found):
        return torch.cat(found, 1).cpu().numpy()


class Compiled(Writer):
    """A model in PyTorch by torch.compile with CUDA graphs, with a KV cache of the whole context."""

    def compile(self, batch, heads, size, dtype):
        """Make the cache, and compile the step of a token."""
        config, shape = self.config, (batch, heads, self.config.context_length, size)
        self.places, self.at = torch.arange(config.context_length, device=self.device), None
        self.static = {f"blocks.{i}.att": [torch.zeros(shape, device=self.device, dtype=dtype) for _ in "kv"]
                       for i in range(config.n_layers)}  # fmt: skip
        for x in chain(self.p.values(), *self.static.values()):
            torch._dynamo.mark_static_address(x)  # so that a graph reads weights, and writes caches, where they are
        self.step = torch.compile(self.following, options=OPTIONS, fullgraph=True)

    def begin(self):
        self.token = torch.full((self.batch, 1), FIRST, device=self.device)
        self.now = torch.zeros(1, dtype=torch.int64, device=self.device)

    def attended(self, q, new, name):
        """Store new keys and values (B, heads, 1, D), and return attention of queries (B, heads, n, D)."""
        for cache, x in zip(self.static[name], new, strict=True):
            cache.index_copy_(2, self.at, x)
        return torch.nn.functional.scaled_dot_product_attention(q, *self.static[name], attn_mask=self.seen)

    def following(self, token, at):
        self.at, self.seen = at, self.places[None] <= at
        logits = self.logits(token)[:, -1]
        return logits, logits.argmax(-1, keepdim=True)

    def __call__(self):
        with torch.no_grad():
            logits, token = self.step(self.token, self.now)
        self.token, self.now = token.clone(), self.now + 1  # a graph overwrites its results
        return logits

    def tokens(self, found):
        return torch.cat(found, 1).cpu().numpy()


class CompiledGPT(Compiled, PyTorch):
    """A GPT of the same weights, by torch.compile."""

    def __init__(self, recipe, model, device, batch, dtype):
        PyTorch.__init__(self, recipe, model, device, batch, dtype)
        self.compile(batch, self.config.n_heads, self.config.emb_dim // self.config.n_heads, dtype)

    def attention(self, x, name):
        b, t, c = x.shape
        parts = self.linear(x, f"{name}.qkv").view(b, t, 3, self.config.n_heads, -1)
        q, *new = (a.transpose(1, 2) for a in parts.unbind(2))  # (B, H, 1, D)
        return self.linear(self.attended(q, new, name).transpose(1, 2).reshape(b, t, c), f"{name}.out")

    def embedded(self, tokens):
        places = torch.nn.functional.embedding(self.at, self.p["pos_emb.weight"])
        return torch.nn.functional.embedding(tokens, self.p["tok_emb.weight"]) + places


class CompiledLlama(Compiled):
    """A Llama of the same weights, by torch.compile; queries that share keys are rows of one product."""

    def __init__(self, model, device, batch, dtype):
        config = model.config
        self.config, self.device, self.batch = config, device, batch
        parameters = model.named_parameters().items()
        self.p = {name: torch.from_numpy(p.numpy()).to(device).to(dtype) for name, p in parameters}
        count, size = config.context_length, config.head_size
        tables = turns(model.tok_emb.weight, size, count, theta=config.rope_theta, scaling=config.rope_scaling)
        self.turns = [torch.from_numpy(np.tile(t.numpy(), 2)).to(device) for t in tables]  # (T, D), float32
        self.compile(batch, config.n_kv_heads, size, dtype)

    def linear(self, x, name):
        return torch.nn.functional.linear(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def norm(self, x, name):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.p[f"{name}.weight"], self.config.norm_eps)

    def rotated(self, x):
        first, second = x.chunk(2, -1)
        cos, sin = (table[self.at] for table in self.turns)
        return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)

    def attention(self, x, name):
        (b, t, _), config = x.shape, self.config
        heads = config.n_heads, config.n_kv_heads, config.n_kv_heads
        parts = self.linear(x, f"{name}.qkv").view(b, sum(heads), 1, config.head_size).split(heads, 1)
        q = self.rotated(parts[0]).view(b, config.n_kv_heads, -1, config.head_size)
        y = self.attended(q, (self.rotated(parts[1]), parts[2]), name)
        return self.linear(y.reshape(b, t, -1), f"{name}.out")

    def logits(self, tokens):
        x = torch.nn.functional.embedding(tokens, self.p["tok_emb.weight"])  # (B, 1, C)
        for i in range(self.config.n_layers):
            name = f"blocks.{i}"
            x = x + self.attention(self.norm(x, f"{name}.norm1"), f"{name}.att")
            y = self.norm(x, f"{name}.norm2")
            gate = torch.nn.functional.silu(self.linear(y, f"{name}.ff.gate"))
            x = x + self.linear(gate * self.linear(y, f"{name}.ff.up"), f"{name}.ff.down")
        head = self.p.get("out_head.weight", self.p["tok_emb.weight"])
        return torch.nn.functional.linear(self.norm(x, "final_norm"), head)


def turn(writer, count):
    """Return a text's tokens, its wall-clock seconds, and the CPU seconds of the calling thread."""
    pa.synchronize()
    began, host_began = time.perf_counter(), time.thread_time()
    found = writer.write(count)
    host = time.thread_time() - host_began
    found = writer.tokens(found)
    return found, time.perf_counter() - began, host


def check(writers, dtype):
    """Check that the first logits agree."""
    found = {}
    for name, writer in writers.items():
        writer.begin()
        logits = writer()
        found[name] = logits.float().cpu().numpy() if name in OTHERS else logits.astype("float32").numpy()
    np.testing.assert_array_equal(found["captured"], found["eager"])
    for name in OTHERS & found.keys():
        largest = np.abs(found[name]).max()
        tolerance = (1e-4 if dtype == "float32" else 5e-2) * largest
        np.testing.assert_allclose(found["captured"], found[name], rtol=0, atol=tolerance, err_msg=name)


def measured(writers, count, turns):
    """Return, by name, the best and median tokens per second, and the host's microseconds per token."""
    seconds, host, texts = ({name: [] for name in writers} for _ in range(3))
    for i in range(turns + 1):
        for name, writer in writers.items():
            text, took, on_host = turn(writer, count)
            texts[name].append(text)
            if i:  # in the first turn kernels are compiled
                seconds[name].append(took)
                host[name].append(on_host)
        np.testing.assert_array_equal(texts["captured"][-1], texts["eager"][-1])
    if "transformers" in texts:
        ours, theirs = texts["captured"][-1], texts["transformers"][-1]
        same = np.logical_and.accumulate(ours == theirs, axis=1).sum(axis=1)
        print(f"transformers' text is the same for {same.min()} of {count} tokens")
    rate = {name: text.size / statistics.median(seconds[name]) for name, (text, *_) in texts.items()}
    best = {name: text.size / min(seconds[name]) for name, (text, *_) in texts.items()}
    each = {name: 1e6 * statistics.median(host[name]) / count for name in writers}
    return {name: {"tokens/s": rate[name], "best": best[name], "host us": each[name]} for name in writers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--preset", choices=[*PRESETS, *LLAMAS], default="shakespeare-char")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128, help="of a text")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--weights", default="", help="captured with quantized weights, too: int8, q8_0, q4_0")
    parser.add_argument("--threads", type=int, default=2, help="for PyTorch")
    parser.add_argument("--torch-device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--torch-compile", action="store_true", help="compare with torch.compile and CUDA graphs, too")
    options = report.parsed(parser)
    backend, recipe = pa.set_backend(options.backend), PRESETS.get(options.preset)
    pa.random.seed(0)
    if recipe:
        model = GPTModel(recipe.config(VOCABULARIES.get(options.preset, 65))).eval()
    else:
        model = LlamaModel(LLAMAS[options.preset] | {"context_length": CONTEXT}).eval()
    narrow = model if options.dtype == "float32" else model.astype(options.dtype)
    writers = {
        "captured": Polyarr(narrow, options.batch_size, lambda fn: pa.compile(fn, donate="caches")),
        "eager": Polyarr(narrow, options.batch_size, lambda fn: fn),
    }
    for kind in filter(None, options.weights.split(",")):
        writers[kind] = Polyarr(narrow.quantized(kind), options.batch_size, writers["captured"].way)
    if torch is None:
        print("PyTorch is not installed, so there is nothing to compare with: pip install torch")
    else:
        torch.set_num_threads(options.threads)
        dtype = getattr(torch, options.dtype)
        if recipe:
            given = recipe, model, options.torch_device, options.batch_size, dtype
            writers["PyTorch"] = PyTorch(*given)
        if options.torch_compile:
            given = model, options.torch_device, options.batch_size, dtype
            writers["torch.compile"] = CompiledGPT(recipe, *given) if recipe else CompiledLlama(*given)
        if transformers:
            writers["transformers"] = Transformers(model, options.torch_device, options.batch_size, dtype)
    check(writers, options.dtype)
    found = measured(writers, min(options.tokens, model.config.context_length), options.turns)
    print(f"{options.preset}, {options.dtype}, {options.batch_size} at once; polyarr on {backend.hardware}")
    print(f"{'':14}{'tokens/s':>10}{'best':>10}{'host us':>10}{'captured is':>14}")
    for name, row in found.items():
        times = found["captured"]["tokens/s"] / row["tokens/s"]
        print(f"{name:14}" + "".join(f"{value:10,.0f}" for value in row.values()) + f"{times:12.2f} x")
    rows = {"tokens/s": {name: row["tokens/s"] for name, row in found.items()}}
    report.write(options, found, f"Tokens of {options.preset} on {backend.hardware}", "tokens/s", rows)


if __name__ == "__main__":
    main()
