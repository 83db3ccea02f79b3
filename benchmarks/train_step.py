"""How long is a training step of a GPT, beside PyTorch's eager step of the same model?

    python benchmarks/train_step.py [--backend opencl] [--steps 60] [--threads 2]
    python benchmarks/train_step.py --preset gpt2-124m --batch-size 8 --torch-device cuda [--dtype bfloat16]
                                    [--precision high] [--steps 20]
    either with                     [--json FILE] [--png FILE]

With another dtype PyTorch computes under autocast; with another precision it stays at float32. Both do forward,
backward, clipping and AdamW from the same weights, on the same batches, in one process, taking turns. The first losses
must agree, or nothing is timed. Every step is timed until its results are there. PyTorch is optional: pip install torch
"""

import argparse
import statistics
import time

import numpy as np
import report

import polyarr as pa
from polyarr.models.gpt import GPTModel
from polyarr.training import PRESETS
from polyarr.training.loop import loss_of

VOCABULARIES = {"gpt2-124m": 50257}  # of a preset; otherwise characters
WARM_UP = 5
TURN = 5  # steps before the other one has its turn

try:
    import torch
    import torch.nn.functional as F  # noqa: N812  the name it has everywhere
except ImportError:
    torch = None


class PolyarrStep:
    """A training step in polyarr; a call gives the loss."""

    def __init__(self, recipe, model):
        self.model, self.optimizer = model, recipe.optimizer()
        self.state, self.recipe = self.optimizer.init(model), recipe
        self.step = pa.value_and_grad(lambda model, windows: loss_of(model.astype(recipe.dtype), windows))

    def __call__(self, windows):
        with pa.use_matmul_precision(self.recipe.precision):
            loss, grads = self.step(self.model, pa.asarray(windows))
        self.model, self.state = self.optimizer.update(grads, self.state, self.model)
        pa.synchronize()
        return float(loss)


class TorchStep:
    """The same step in PyTorch, on the same weights."""

    def __init__(self, recipe, model, device):
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
        fused = device == "cuda"  # the fastest that there is
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=1e-8, fused=fused)
        self.schedule, self.done = recipe.optimizer().lr, 0

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

    def logits(self, tokens):
        x = (
            F.embedding(tokens, self.p["tok_emb.weight"]) + self.p["pos_emb.weight"][: tokens.shape[1]]
        )  # (B, T, C)
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
        return loss.item()


def measure(steps, recipe, vocabulary, count):
    """The times of each step function, by name, taken in turns."""
    generator = np.random.default_rng(0)
    shape = (recipe.batch_size, recipe.model["context_length"] + 1)
    batches = [generator.integers(0, vocabulary, shape, dtype=np.int32) for _ in range(WARM_UP)]
    losses = {name: [step(batch) for batch in batches] for name, step in steps.items()}
    for found in losses.values():
        tolerance = 1e-3 if recipe.dtype == "float32" else 2e-2
        np.testing.assert_allclose(found, losses["polyarr"], rtol=tolerance, err_msg="the two models differ")
    times = {name: [] for name in steps}
    for _ in range(-(-count // TURN)):
        for name, step in steps.items():
            for batch in batches[:TURN]:
                started = time.perf_counter()
                step(batch)
                times[name].append(time.perf_counter() - started)
    return times


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
    options = report.parsed(parser)
    backend, recipe = pa.set_backend(options.backend), PRESETS[options.preset]
    recipe = recipe.changed(dtype=options.dtype, precision=options.precision, batch_size=options.batch_size)
    recipe = recipe.changed(model={**recipe.model, "drop_rate": 0.0})  # whose masks would differ
    vocabulary = VOCABULARIES.get(options.preset, 65)
    pa.random.seed(0)
    model = GPTModel(recipe.config(vocabulary))
    steps = {"polyarr": PolyarrStep(recipe, model)}
    if torch is None:
        print("PyTorch is not installed, so there is nothing to compare with: pip install torch")
    else:
        torch.set_num_threads(options.threads)
        steps["PyTorch"] = TorchStep(recipe, model, options.torch_device)
    times = measure(steps, recipe, vocabulary, options.steps)
    tokens = recipe.batch_size * recipe.model["context_length"]
    size = f"{model.num_parameters():,} parameters, {tokens} tokens a step"
    print(f"{options.preset}: {size}, {options.dtype}, {options.precision}; polyarr on {backend.hardware}")
    print(f"{'':8}  {'median ms':>9}  {'best ms':>9}  {'tokens/s':>9}")
    for name, found in times.items():
        median = statistics.median(found)
        print(f"{name:8}  {1e3 * median:9.1f}  {1e3 * min(found):9.1f}  {tokens / median:9,.0f}")
    medians = {name: statistics.median(found) for name, found in times.items()}
    facts = {"preset": options.preset, "dtype": options.dtype, "precision": options.precision, "all": times}
    title = f"A training step of {options.preset} on {backend.hardware}"
    report.write(options, {**facts, "seconds": medians}, title, "seconds", {"step": medians})
    if torch is not None:
        ratios = [of(times["polyarr"]) / of(times["PyTorch"]) for of in (statistics.median, min)]
        print(
            f"polyarr takes {ratios[0]:.2f} x PyTorch's time by medians, {ratios[1]:.2f} x by the best steps (eager, "
            f"{options.torch_device}, {torch.get_num_threads()} threads); where they differ much, the machine was busy"
        )


if __name__ == "__main__":
    main()
