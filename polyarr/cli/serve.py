"""`polyarr serve`: serve a trained model over HTTP, until Ctrl-C."""

from pathlib import Path
from typing import Any

import click

from polyarr.cli.output import escaped, print_error
from polyarr.cli.starting import check_exists, loaded, model_options
from polyarr.cli.train import SIGNALLED, choose_backend
from polyarr.cli.values import FileName
from polyarr.cli.writing import loaded_draft
from polyarr.core.current import get_backend
from polyarr.extras import extra
from polyarr.models.completion import DRAFTED


@click.command()
@click.argument("folder", metavar="DIR", type=FileName())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: one that the system chooses."
)
@click.option("--name", help="Name of the model for clients.  [default: the folder's name]")
@model_options
@click.option(
    "--length",
    type=click.IntRange(min=2),
    help="Largest number of tokens of a prompt and its completion.  [default: the model's context, at most 4096]",
)
@click.option(
    "--batch", type=click.IntRange(min=1), default=8, show_default=True,
    help="Number of texts that are written at a time; their caches take memory for --length tokens each.",
)
@click.option(
    "--draft", metavar="DIR", type=FileName(),
    help="Let a smaller model with the same tokenizer draft tokens while one text is written.",
)
@click.option(
    "--speculate", type=click.IntRange(0, 64), metavar="N",
    help="Draft N tokens at a time while one text is written, by --draft, or from the text so far.  "
    "[default: 4 with --draft, or 0]",
)
@click.option(
    "--waiting", type=click.IntRange(min=0), default=32, show_default=True, help="Number of requests that may wait."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Time limit of a request in seconds, waiting included.",
)
@click.option(
    "--allowed-host", "hosts", multiple=True, metavar="NAME",
    help="Host name by which clients may call the server, or *.NAME; may be repeated.",
)
@click.option(
    "--api-key-file", "file", type=FileName(), help="Require one of the API keys in a file."
)
@click.option(
    "--api-key", "key", metavar="KEY", envvar="POLYARR_API_KEY",
    help="Require an API key; better in the environment, since others can see a command.  [default: $POLYARR_API_KEY]",
)
@click.option(
    "--cors", "origins", multiple=True, metavar="ORIGIN",
    help="Let web pages of an origin, such as https://app.example, use the server; may be repeated.  *: all pages.",
)
@click.option(
    "--per-client", type=click.IntRange(min=1),
    help="Largest number of concurrent requests of one client.  [default: all; beyond this machine a quarter]",
)
@click.option(
    "--tokens-per-client", type=click.IntRange(min=1),
    help="Largest number of tokens of one client's concurrent requests, prompts included.  [default: any number]",
)
@click.option(
    "--trust-messages", is_flag=True, help="Allow control tokens, such as <|im_end|>, in messages."
)
def command(
    folder: Path,
    host: str,
    port: int,
    name: str | None,
    backend: str | None,
    checkpoint: str,
    weights: str | None,
    dtype: str | None,
    length: int | None,
    draft: Path | None,
    speculate: int | None,
    waiting: int,
    timeout: float,
    trust_messages: bool,
    file: Path | None,
    key: str | None,
    origins: tuple[str, ...],
    **settings: Any,
) -> None:
    """Serve the model in DIR to clients of the OpenAI API: /v1/completions and /v1/chat/completions."""
    if name is not None and not name.strip():
        raise click.BadParameter("it is empty; leave it out for the folder's name.", param_hint="'--name'")
    serving = extra("polyarr.serving.server", "serve")
    name = name or folder.resolve().name
    keys = serving.api_keys(file, key)
    serving.check_origins(origins)  # before the model is loaded
    check_exists(folder, draft)
    with serving.listen(host, port) as listener:  # before the model is loaded, so that a bad address fails at once
        choose_backend(backend)
        model, tokenizer = loaded(folder, checkpoint, dtype, weights)
        draft_model = None if draft is None else loaded_draft(draft, folder, tokenizer, dtype)
        drafts = (0 if draft is None else DRAFTED) if speculate is None else speculate
        settings |= {"drafts": drafts, "draft_model": draft_model}
        limits = {"length": length, "waiting": waiting, "seconds": timeout, "is_trusted": trust_messages, **settings}
        server = serving.server_of(model, tokenizer, name, host, keys=keys, origins=origins, **limits)
        address, number = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        click.echo(
            f"{escaped(name)}: {model.num_parameters():,} parameters on {get_backend().name}, "
            f"texts of up to {server.service.limits.tokens:,} {tokenizer.unit}"
            f"{'' if tokenizer.chat else ', no chat template'}\n"
            f"http://{shown}:{number}/v1; Ctrl-C stops"
        )
        if not serving.is_loopback(address):
            lacks = "there is no encryption" if keys else "there is no key (--api-key-file) and no encryption"
            print_error(f"warning: whoever reaches {shown}:{number} can use the model; {lacks}")
        server.run([listener])
    click.echo("stopped")
    if server.stopped_by:
        raise click.exceptions.Exit(SIGNALLED + server.stopped_by)
