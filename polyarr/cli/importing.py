"""`polyarr import`: save a pretrained model as a run, for `polyarr generate` and `polyarr train --from`."""

from pathlib import Path

import click

from polyarr.cli.output import in_shell
from polyarr.cli.starting import dtype_option
from polyarr.cli.values import FileName
from polyarr.text import NumberTokenizer, load_tokenizer
from polyarr.training.pretrained import import_model


@click.command()
@click.argument("path", type=FileName())
@click.option("--out", type=FileName(), required=True, help="Folder of the run.")
@click.option("--context", type=click.IntRange(min=1), help="Shorten the model's context to N tokens, for good.")
@click.option(
    "--tokenizer", metavar="FILE", type=FileName(), help="The tokenizer, if it is not beside the model."
)
@click.option(
    "--adapters", metavar="DIR", type=FileName(), help="Merge low-rank adapters that PEFT saved."
)
@dtype_option
@click.option(
    "--keep-quantized", is_flag=True, help="Keep layers quantized: Q8_0, Q4_0 of a GGUF file, AWQ, GPTQ, MXFP4."
)
@click.option("--overwrite", is_flag=True, help="Replace the run in --out.")
def command(
    path: Path, out: Path, context: int | None, tokenizer: Path | None, adapters: Path | None, dtype: str | None,
    keep_quantized: bool, overwrite: bool,
) -> None:
    """Import a language model from a Hugging Face folder, a safetensors file or a GGUF file.

    It may be a GPT-2, gpt-oss, Llama, Mistral, Phi, Granite, SmolLM3, Qwen, Seed-OSS, Gemma or OLMo, or the tutorial's
    GPT. A safetensors file needs its config.json beside it. Quantized weights, of a GGUF file or a folder of AWQ, GPTQ
    or MXFP4, are dequantized, or stay quantized with --keep-quantized. Nothing is ever unpickled.
    """
    given = None if tokenizer is None else load_tokenizer(tokenizer)
    model, found, *_ = import_model(
        path, out, context_length=context, dtype=dtype, tokenizer=given, adapters=adapters, overwrite=overwrite,
        keep_quantized=keep_quantized,
    )  # fmt: skip
    config = model.config
    click.echo(
        f"{type(model).__name__}: {model.num_parameters():,} {model.tok_emb.weight.dtype} parameters, "
        f"{config.n_layers} layers, "
        f"texts of up to {config.context_length:,} tokens of {config.vocab_size:,} different ones"
    )
    if isinstance(found, NumberTokenizer):
        click.echo("no tokenizer is beside it: its text is the numbers of tokens; or give one with --tokenizer")
    run = in_shell(out)
    click.echo(f"saved in {out}; now try: polyarr generate {run}, or polyarr train --from {run} --data FILE")
