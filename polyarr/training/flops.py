"""Number of floating-point operations that training takes."""

from polyarr import tree
from polyarr.models.decoder import LanguageModel


def flops_per_token(model: LanguageModel, length: int | None = None) -> float:
    """Return the floating-point operations of a forward and backward pass per token: 6 N + 12 L T D, as in PaLM.

    N is the number of parameters that tokens are multiplied by, without embeddings that are only looked up. Frozen
    parameters need no gradient of their own, and count 4 instead of 6. L is the number of layers, T the length of the
    text, and D the width of all heads together; the causal mask is ignored. Recomputed activations count once. Of the
    weights of experts those that a token chooses count.

    Args:
        model: The model.
        length: Length of the text; None: the model's context_length.

    Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B
    """
    looked_up = {"pos_emb.weight"} | ({"tok_emb.weight"} if model.out_head else set())
    parameters = tree.by_name(model)
    trained, config = tree.trainable(model), model.config
    multiplied = 0.0
    for name, leaf in parameters.items():
        chosen = config.experts_per_token / config.n_experts if ".expert_" in name else 1.0
        multiplied += 0 if name in looked_up else (6 if name in trained else 4) * leaf.size * chosen
    att = model.blocks[0].att
    return multiplied + 12 * len(model.blocks) * (length or config.context_length) * att.n_heads * att.head_size
