"""`polyarr prepare`: tokenize texts into a folder, from which training reads windows on demand."""

import sys
from pathlib import Path

import click

from polyarr.cli.output import in_shell
from polyarr.cli.train import chosen_tokenizer
from polyarr.cli.values import FileName
from polyarr.extras import extra
from polyarr.text import find_files, is_prepared, open_prepared, prepare
from polyarr.text.corpus import VALIDATION
from polyarr.text.prepared import has_strangers
from polyarr.text.sources import FIELD
from polyarr.text.tokens import Records


def _check(folder: Path) -> None:
    """Verify the tokens in a folder, and say so."""
    extra("jsonschema")
    corpus = open_prepared(folder, check=True)
    what = "records" if isinstance(corpus.train, Records) else "tokens"
    click.echo(f"{folder}: {len(corpus.train) + len(corpus.validation):,} {what}, as they were written")


@click.command()
@click.argument("data", metavar="DATA...", nargs=-1, type=FileName())
@click.option("--out", type=FileName(file_okay=False), help="Folder to write.  [required]")
@click.option(
    "--tokenizer", "tokens", metavar="FILE|char|byte", default="char", show_default=True,
    help="Tokenizer: a tokenizer.json, a folder with one or with GPT-2's files, characters or bytes.",
)
@click.option(
    "--validation", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=VALIDATION, show_default=True,
    help="Share of the tokens or the records, at the end, for validation.",
)
@click.option("--field", default=FIELD, show_default=True, help="Key of the text in JSON lines.")
@click.option("--overwrite", is_flag=True, help="Replace the tokens in --out.")
@click.option(
    "--check", metavar="DIR", type=FileName(),
    help="Only verify the checksum of the tokens in DIR.",
)
def command(
    data: tuple[Path, ...], out: Path | None, tokens: str, validation: float, field: str, overwrite: bool,
    check: Path | None,
) -> None:
    """Tokenize texts into a folder, once, for `polyarr train --data`.

    DATA are UTF-8 texts, JSON lines (.jsonl) of texts, conversations or prompts with completions, folders of such
    files, or patterns in quotes; they may be larger than memory.
    """
    if check is not None:
        if data or out is not None:
            raise click.UsageError(f"--check only verifies {check}; leave out DATA and --out")
        _check(check)
        return
    if not data or out is None:
        wanted = "argument 'DATA...'" if not data else "option '--out'"
        raise click.UsageError(f"Missing {wanted}.")
    if has_strangers(out):
        raise click.UsageError(f"{out} holds other files; give a folder of its own as --out")
    if is_prepared(out) and not overwrite:
        raise click.UsageError(f"{out} holds tokens already; give another --out, or --overwrite")
    for module in ("jsonschema", "tqdm"):
        extra(module)
    files, tokenizer = find_files(data), chosen_tokenizer(tokens)
    with extra("tqdm").tqdm(unit="B", unit_scale=True, file=sys.stderr, disable=None) as bar:
        found = prepare(files, out, tokenizer, validation=validation, field=field, progress=bar.update)
    count, size = found["tokens"]["count"], found["tokenizer"]["vocab_size"]
    last, what = count - found["validation"]["first"], "record" if "records" in found else "text"
    what += "s" * (found["texts"] > 1)
    click.echo(
        f"{found['bytes']:,} bytes of {found['texts']:,} {what} {'is' if found['texts'] == 1 else 'are'} {count:,} "
        f"tokens of {size:,} different ones; the last {last:,} are for validation\n"
        f"saved in {out}; now try: polyarr train --data {in_shell(out)}"
    )
