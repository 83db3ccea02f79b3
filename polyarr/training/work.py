"""How many floating-point operations training takes."""

from polyarr import tree
from polyarr.models.decoder import LanguageModel


def operations_per_token(model: LanguageModel) -> float:
    """Of a forward and a backward pass for each token of a full window: 6 N + 12 L T D, as in PaLM's report.

    N are the numbers that tokens are multiplied by: parameters, without embeddings that are looked up only. Those that
    are frozen have no gradient of their own: 4 instead of 6. L are layers, T the context, D the width of all heads
    together; a causal mask is not taken into account. What activation checkpoints compute twice counts once.

    Source:  Chowdhery et al. 2022, arXiv:2204.02311, appendix B
    """
    looked_up = {"pos_emb.weight"} | ({"tok_emb.weight"} if model.out_head else set())
    parameters = tree.by_name(model)
    trained = tree.trainable(model)
    multiplied = sum(
        (6 if name in trained else 4) * leaf.size for name, leaf in parameters.items() if name not in looked_up
    )
    config, att = model.config, model.blocks[0].att
    return multiplied + 12 * config.n_layers * config.context_length * att.n_heads * att.head_size
