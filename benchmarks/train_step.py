"""Training steps of a GPT, compared with PyTorch's eager step of the same model.

    python benchmarks/train_step.py [--backend opencl] [--steps 60] [--threads 2]
    python benchmarks/train_step.py --preset gpt2-124m --batch-size 8 --torch-device cuda [--dtype bfloat16]
                                    [--precision high] [--steps 20] [--torch-compile] [--decompositions] [--donate]
    either with                     [--json FILE] [--png FILE]

polyarr's step is that of `polyarr train`, captured by polyarr.compile, without donation; next to it the same step
eagerly, and "donated" with donation. With another dtype PyTorch runs under autocast; with another precision it stays at
float32. All run forward, backward, clipping and AdamW from the same weights on the same batches, alternating in one
process. The first losses must agree, or nothing is timed. "decompositions" is the same model, captured, without Fused
kernels except those of products and attention: other ops, such as norms, run as their decompositions. Every step is
timed until its results are computed; "host" is the time until the call returns. PyTorch is optional: pip install torch
"""

import argparse
import statistics
import time

import numpy as np
import report

import polyarr as pa
from polyarr.models.gpt import GPTModel
from polyarr.training import PRESETS
from polyarr.training.steps import step_of

VOCABULARIES = {"gpt2-124m": 50257}  # by preset; the vocabulary of others is characters
WARM_UP = 5
TURN = 5  # steps per turn

try:
    import torch
    import torch.nn.functional as F  # noqa: N812  the customary name
except ImportError:
    torch = None


class PolyarrStep:
    """A training step in polyarr; a call returns the loss without waiting."""

    def __init__(self, recipe, model, step, backend):
        self.model, self.step, self.backend = model.to(backend), step, backend
        self.state = recipe.new_optimizer().init(self.model)

    def __call__(self, windows):
        with pa.use_backend(self.backend):
            loss, self.model, self.state, _ = self.step(self.model, self.state, [pa.asarray(windows)])
        return loss


def without_fused_kernels(backend):
    """Return the backend without Fused kernels, except those of products and attention."""
    kept = pa.ops.linear, pa.ops.attention
    pairs = {op: backend.kernels[op] for op in kept if op in backend.kernels}
    return backend._replace(kernels={**backend.without_fused().kernels, **pairs})


class TorchStep:
    """The same training step in PyTorch, from the same weights."""

    def __init__(self, recipe, model, device, is_compiled=False):
        self.recipe, self.config, self.device = recipe, model.config, device
        self.p = {
            name: torch.nn.Parameter(torch.from_numpy(np.array(p.numpy())).to(device))
            for name, p in model.named_parameters().items()
        }
        decayed = [p for p in self.p.values() if p.ndim >= 2]
        plain = [p for p in self.p.values() if p.ndim < 2]
        groups = [
            {"params": decayed, "weight_decay": recipe.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        fused = device == "cuda"  # PyTorch's fastest implementation
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=1e-8, fused=fused)
        self.schedule, self.done = recipe.new_optimizer().lr, 0
        if is_compiled:
            self.logits = torch.compile(self.logits)

    def linear(self, x, name):
        return F.linear(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def attention(self, x, name):
        b, t, c = x.shape
        parts = self.linear(x, f"{name}.qkv").view(b, t, 3, self.config.n_heads, -1)
        q, k, v = (a.transpose(1, 2) for a in parts.unbind(2))  # (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.linear(y.transpose(1, 2).reshape(b, t, c), f"{name}.out")

    def embedded(self, tokens):
        return F.embedding(tokens, self.p["tok_emb.weight"]) + self.p["pos_emb.weight"][: tokens.shape[1]]

    def logits(self, tokens):
        x = self.embedded(tokens)  # (B, T, C)
        for i in range(self.config.n_layers):
            name = f"blocks.{i}"
            x = x + self.attention(self.norm(x, f"{name}.norm1"), f"{name}.att")
            up = F.gelu(self.linear(self.norm(x, f"{name}.norm2"), f"{name}.ff.up"), approximate="tanh")
            x = x + self.linear(up, f"{name}.ff.down")
        head = self.p.get("out_head.weight", self.p["tok_emb.weight"])
        return F.linear(self.norm(x, "final_norm"), head)

    def __call__(self, windows):
        tokens = torch.from_numpy(windows).long().to(self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(self.done)
        self.done += 1
        narrow = self.recipe.dtype != "float32"
        with torch.autocast(self.device, getattr(torch, self.recipe.dtype) if narrow else None, enabled=narrow):
            logits = self.logits(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.p.values(), self.recipe.clip)
        self.optimizer.step()
        return loss.detach()


def measure(steps, recipe, vocabulary, count):
    """Return the times of each step function and the host's share of them, by name; they alternate."""
    generator = np.random.default_rng(0)
    shape = (recipe.batch_size, recipe.model["context_length"] + 1)
    batches = [generator.integers(0, vocabulary, shape, dtype=np.int32) for _ in range(WARM_UP)]
    losses = {name: [float(step(batch)) for batch in batches] for name, step in steps.items()}
    for found in losses.values():
        tolerance = 1e-3 if recipe.dtype == "float32" else 2e-2
        np.testing.assert_allclose(found, losses["polyarr"], rtol=tolerance, err_msg="the two models differ")
    times, host = ({name: [] for name in steps} for _ in range(2))
    for _ in range(-(-count // TURN)):
        for name, step in steps.items():
            for batch in batches[:TURN]:
                started = time.perf_counter()
                loss = step(batch)
                host[name].append(time.perf_counter() - started)
                float(loss)  # waits for all earlier work in the queue
                times[name].append(time.perf_counter() - started)
    return times, host


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--preset", default="shakespeare-char", choices=list(PRESETS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2, help="for PyTorch")
    parser.add_argument("--torch-device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--precision", default="highest", choices=["highest", "high"])
    parser.add_argument("--batch-size", type=int, help="windows a step, instead of the preset's")
    parser.add_argument("--donate", action="store_true", help="also one that is given model and state")
    parser.add_argument("--decompositions", action="store_true", help="also from the ops' definitions")
    parser.add_argument("--torch-compile", action="store_true", help="PyTorch's model by torch.compile, too")
    options = report.parsed(parser)
    backend, recipe = pa.set_backend(options.backend), PRESETS[options.preset]
    size = options.batch_size or recipe.batch_size
    recipe = recipe.changed(dtype=options.dtype, precision=options.precision, batch_size=size)
    recipe = recipe.changed(model={**recipe.model, "drop_rate": 0.0})  # dropout masks would differ
    vocabulary = VOCABULARIES.get(options.preset, 65)
    pa.random.seed(0)
    model = GPTModel(recipe.config(vocabulary))
    step = step_of(recipe)
    steps = {
        "polyarr": PolyarrStep(recipe, model, pa.compile(step), backend),
        "polyarr eager": PolyarrStep(recipe, model, step, backend),
    }
    if options.donate:
        own = pa.tree.map(lambda a: a + 0, model)
        steps["polyarr donated"] = PolyarrStep(recipe, own, pa.compile(step, donate=("model", "state")), backend)
    if options.decompositions:
        steps["polyarr decompositions"] = PolyarrStep(recipe, model, pa.compile(step), without_fused_kernels(backend))
    if torch is None:
        print("PyTorch is not installed, so there is nothing to compare with: pip install torch")
    else:
        torch.set_num_threads(options.threads)
        steps["PyTorch"] = TorchStep(recipe, model, options.torch_device)
        if options.torch_compile:
            steps["PyTorch compiled"] = TorchStep(recipe, model, options.torch_device, is_compiled=True)
    times, host = measure(steps, recipe, vocabulary, options.steps)
    tokens = recipe.batch_size * recipe.model["context_length"]
    size = f"{model.num_parameters():,} parameters, {tokens} tokens a step"
    print(f"{options.preset}: {size}, {options.dtype}, {options.precision}; polyarr on {backend.hardware}")
    print(f"{'':16}  {'median ms':>9}  {'best ms':>9}  {'host ms':>9}  {'tokens/s':>9}  {'polyarr takes':>13}")
    medians, on_host = ({name: statistics.median(f) for name, f in all.items()} for all in (times, host))
    for name, found in times.items():
        row = [1e3 * medians[name], 1e3 * min(found), 1e3 * on_host[name]]
        ratio = f"{medians['polyarr'] / medians[name]:.2f}, best {min(times['polyarr']) / min(found):.2f}"
        print(f"{name:16}  {'  '.join(f'{r:9.1f}' for r in row)}  {tokens / medians[name]:9,.0f}  {ratio:>15}")
    facts = {"preset": options.preset, "dtype": options.dtype, "precision": options.precision, "all": times}
    title = f"A training step of {options.preset} on {backend.hardware}"
    report.write(options, {**facts, "seconds": medians, "host": on_host}, title, "seconds", {"step": medians})


if __name__ == "__main__":
    main()
