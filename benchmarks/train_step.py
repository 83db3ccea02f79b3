"""How long is a training step of a small GPT, beside PyTorch's eager CPU step of the same model?

    python benchmarks/train_step.py [--backend opencl] [--steps 60] [--threads 2]

Both do forward, backward, clipping and AdamW on the preset `shakespeare-char`, from the same weights, on the same
batches, in one process, taking turns. The first losses must agree, or nothing is timed. Every step is timed until its
results are there. PyTorch is optional: pip install torch
"""

import argparse
import statistics
import time

import numpy as np

import polyarr as pa
from polyarr.models.gpt import GPTModel
from polyarr.training import PRESETS
from polyarr.training.loop import loss_of

VOCABULARY = 65
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
        self.state, self.step = self.optimizer.init(model), pa.value_and_grad(loss_of)

    def __call__(self, windows):
        loss, grads = self.step(self.model, pa.asarray(windows))
        self.model, self.state = self.optimizer.update(grads, self.state, self.model)
        pa.synchronize()
        return float(loss)


class TorchStep:
    """The same step in PyTorch, on the same weights."""

    def __init__(self, recipe, model):
        self.recipe, self.config = recipe, model.config
        self.p = {
            name: torch.nn.Parameter(torch.from_numpy(np.array(p.numpy())))
            for name, p in model.named_parameters().items()
        }
        decayed = [p for p in self.p.values() if p.ndim >= 2]
        plain = [p for p in self.p.values() if p.ndim < 2]
        groups = [
            {"params": decayed, "weight_decay": recipe.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=1e-8)
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
        tokens = torch.from_numpy(windows).long()
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(self.done)
        self.done += 1
        logits = self.logits(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.p.values(), self.recipe.clip)
        self.optimizer.step()
        return loss.item()


def measure(steps, recipe, count):
    """The times of each step function, by name, taken in turns."""
    generator = np.random.default_rng(0)
    shape = (recipe.batch_size, recipe.model["context_length"] + 1)
    batches = [generator.integers(0, VOCABULARY, shape, dtype=np.int32) for _ in range(WARM_UP)]
    losses = {name: [step(batch) for batch in batches] for name, step in steps.items()}
    for found in losses.values():
        np.testing.assert_allclose(found, losses["polyarr"], rtol=1e-3, err_msg="the two models differ")
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
    options = parser.parse_args()
    backend, recipe = pa.set_backend(options.backend), PRESETS[options.preset]
    pa.random.seed(0)
    model = GPTModel(recipe.config(VOCABULARY))
    steps = {"polyarr": PolyarrStep(recipe, model)}
    if torch is None:
        print("PyTorch is not installed, so there is nothing to compare with: pip install torch")
    else:
        torch.set_num_threads(options.threads)
        steps["PyTorch"] = TorchStep(recipe, model)
    times = measure(steps, recipe, options.steps)
    tokens = recipe.batch_size * recipe.model["context_length"]
    size = f"{model.num_parameters():,} parameters, {tokens} tokens a step"
    print(f"{options.preset}: {size}; polyarr on {backend.hardware}")
    print(f"{'':8}  {'median ms':>9}  {'best ms':>9}  {'tokens/s':>9}")
    for name, found in times.items():
        median = statistics.median(found)
        print(f"{name:8}  {1e3 * median:9.1f}  {1e3 * min(found):9.1f}  {tokens / median:9,.0f}")
    if torch is not None:
        ratios = [of(times["polyarr"]) / of(times["PyTorch"]) for of in (statistics.median, min)]
        print(
            f"polyarr takes {ratios[0]:.2f} x PyTorch's time by medians, {ratios[1]:.2f} x by the best steps "
            f"(eager, CPU, {torch.get_num_threads()} threads); where they differ much, the machine was busy"
        )


if __name__ == "__main__":
    main()
