"""`polyarr serve`: a trained model answers over HTTP, until Ctrl-C."""

from pathlib import Path

import click

from polyarr.cli.output import complain
from polyarr.cli.starting import loaded
from polyarr.cli.train import SIGNALLED, choose_backend
from polyarr.core.current import get_backend
from polyarr.extras import extra
from polyarr.nn import merge_lora


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: one that the system chooses."
)
@click.option("--name", help="What clients call the model.  [default: the folder's name]")
@click.option("--backend", help="What to compute on.  [default: $POLYARR_BACKEND, or opencl]")
@click.option("--checkpoint", type=click.Choice(["best", "last"]), default="best", show_default=True, help="Which one.")
@click.option(
    "--length",
    type=click.IntRange(min=2),
    help="How many tokens a prompt and what follows it may have.  [default: the model's context]",
)
@click.option(
    "--waiting", type=click.IntRange(min=0), default=32, show_default=True, help="How many requests may wait."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="How many seconds a request may take, waiting included.",
)
def command(
    folder: Path,
    host: str,
    port: int,
    name: str | None,
    backend: str | None,
    checkpoint: str,
    length: int | None,
    waiting: int,
    timeout: float,
) -> None:
    """Serve the model in DIR to clients of the OpenAI API: /v1/completions and /v1/chat/completions."""
    serving = extra("polyarr.serving.server", "serve")
    name = name or folder.resolve().name
    with serving.listen(host, port) as listener:  # what cannot be had is said before a model is loaded
        choose_backend(backend)
        model, tokenizer = loaded(folder, checkpoint)
        model = merge_lora(model)
        server = serving.server_of(model, tokenizer, name, host, length=length, waiting=waiting, seconds=timeout)
        address, number = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        click.echo(
            f"{name}: {model.num_parameters():,} parameters on {get_backend().name}, "
            f"texts of up to {server.service.limits.tokens:,} {tokenizer.unit}"
            f"{'' if tokenizer.chat else ', no chat template'}\n"
            f"http://{shown}:{number}/v1; Ctrl-C stops"
        )
        if not serving.is_loopback(address):
            complain(f"warning: whoever reaches {shown}:{number} can use the model; there is no password")
        server.run([listener])
    click.echo("stopped")
    if server.stopped_by:
        raise click.exceptions.Exit(SIGNALLED + server.stopped_by)
