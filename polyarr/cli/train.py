"""`polyarr train`: train a language model on a text, and save it with a plot of its loss."""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import click

from polyarr import distributed
from polyarr.cli.output import in_shell
from polyarr.cli.ranks import join
from polyarr.cli.starting import RunStart, check_exists, start, starting_options, with_adapters
from polyarr.cli.values import FileName
from polyarr.core.backend import Backend
from polyarr.core.current import set_backend
from polyarr.core.errors import BackendError
from polyarr.core.precision import PRECISIONS
from polyarr.distributed import World
from polyarr.extras import extra
from polyarr.models.families import GPT
from polyarr.text import (
    Corpus,
    Tokenizer,
    byte_tokenizer,
    find_files,
    is_prepared,
    load_tokenizer,
    open_prepared,
    same_tokens,
    standard_library_text,
)
from polyarr.text.tokens import Records
from polyarr.training import PRESETS, Recipe, Run, check_length, load_checkpoint, new_run, resumed_run, train
from polyarr.training.files import RUN_FILES, newest
from polyarr.training.presets import named_recipe, parsed_settings, to_toml
from polyarr.training.pretrained import NO_TEXT
from polyarr.training.ranks import check_equal_on_ranks, on_root, split_step
from polyarr.training.recipes import COMPUTED
from polyarr.training.run import device, perplexity, speed
from polyarr.version import __version__

SIGNALLED = 128  # plus the signal's number: the exit code of shells
_OWN = {"data", "backend", "show", "profile", "tensorboard", "quiet"}  # options that may differ between ranks
LIBRARY = "Python's standard library"
T = TypeVar("T")
_positive = click.IntRange(min=1)


class _Command(click.Command):
    """Command whose error for an unknown option says so if it is a setting of the recipe."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; raise UsageError if one is unknown."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if name not in {field.name for field in fields(Recipe)}:
                raise
            raise click.UsageError(f"No such option {error.option_name!r}: give --set {name}=VALUE", ctx) from error


@click.command(cls=_Command)
@click.option(
    "--data",
    type=FileName(),
    help="A UTF-8 text, a folder or a pattern of them, JSON lines of texts, conversations or prompts with completions, "
    "or a folder from `polyarr prepare`.  "
    f"[default: the source of {LIBRARY}]",
)
@click.option(
    "--tokenizer", "tokens", metavar="FILE|char|byte", help="A file or folder, characters or bytes.  [default: char]"
)
@click.option(
    "--preset",
    metavar="NAME|FILE.toml",
    help=f"Recipe: {', '.join(PRESETS)}, or a file of your own.  [default: demo]",
)
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True,
    help="Change a setting of the recipe, such as clip=0.5 or model.n_layers=6; may be repeated.",
)
@starting_options
@click.option("--show", is_flag=True, help="Print all settings as a file for --preset, without training.")
@click.option("--backend", help="Backend, such as opencl:0.  [default: $POLYARR_BACKEND, or opencl]")
@click.option("--steps", type=_positive, help="Number of steps.  [default: the recipe's]")
@click.option(
    "--decay-steps",
    type=_positive,
    help="Number of steps in which the learning rate falls, if --resume is to add steps later.  [default: --steps]",
)
@click.option("--lr", type=float, help="Highest learning rate.  [default: the recipe's]")
@click.option(
    "--accumulate", type=_positive, help="Number of batches per step.  [default: the recipe's]"
)
@click.option(
    "--dtype",
    type=click.Choice(COMPUTED),
    help="Dtype of the computation; weights are float32.  [default: float32]",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    help="Precision of float32 matrix products; lower ones are faster on some devices.  [default: highest]",
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed of weights, batches and dropout.  [default: 1337]"
)
@click.option("--out", type=FileName(), help="Folder of the run.  [default: runs/PRESET]")
@click.option(
    "--resume", is_flag=True, help="Resume the run in --out, up to --steps; it keeps its schedule."
)
@click.option(
    "--checkpoint", metavar="NAME", help="Checkpoint to --resume: best, last or step-N.  [default: the newest]"
)
@click.option("--overwrite", is_flag=True, help="Replace the run in --out.")
@click.option(
    "--profile", type=FileName(dir_okay=False),
    help="Profile some steps as they train: print a table, keep it for the report, and write a trace for Perfetto.",
)
@click.option(
    "--compile/--no-compile", "compiled", default=True, help="Compile the training step.  [default: compile]"
)
@click.option("--wire", type=click.Choice(["bfloat16"]), help="Dtype in which ranks exchange gradients.")
@click.option("--tensorboard", is_flag=True, help="Also write event files for TensorBoard into --out.")
@click.option("--quiet", is_flag=True, help="Print errors and warnings only.")
def command(
    data: Path | None,
    tokens: str | None,
    preset: str | None,
    settings: tuple[str, ...],
    source: Path | None,
    rank: int | None,
    match: str | None,
    alpha: float | None,
    show: bool,
    backend: str | None,
    steps: int | None,
    decay_steps: int | None,
    lr: float | None,
    accumulate: int | None,
    dtype: str | None,
    precision: str | None,
    seed: int | None,
    out: Path | None,
    resume: bool,
    checkpoint: str | None,
    overwrite: bool,
    profile: Path | None,
    compiled: bool,
    wire: str | None,
    tensorboard: bool,
    quiet: bool,
) -> None:
    """Train a language model on text, a new one or one --from elsewhere, and save its best and its last checkpoint."""
    _check_options(click.get_current_context().params)
    named: dict[str, Any] = {"steps": steps, "decay_steps": decay_steps, "lr": lr, "accumulation": accumulate}
    named |= {"dtype": dtype, "precision": precision}
    changes = parsed_settings(settings) | {name: value for name, value in named.items() if value is not None}
    changes = with_adapters(changes, rank, match, alpha)
    world = join(lambda: choose_backend(backend, distributed.init))
    check_equal_on_ranks(world, lambda: _same_for_all(click.get_current_context()))
    backend, quiet = world.device or backend, quiet or world.rank > 0  # each rank has its own device
    with world.alone():  # ranks may take different times to read the data
        begun = None if resume else _beginning(preset, source, backend, changes)
        if begun and show:
            click.echo("" if world.rank else to_toml(begun.recipe), nl=False)
            return
        on_root(world, lambda: _check_libraries(tensorboard))
        if begun:
            out = out or Path("runs") / begun.preset
            if source is not None and out.resolve() == source.resolve():
                raise click.UsageError(f"{source} is what the run begins with, and stays; give another --out")
            run = _new(data, tokens, backend, begun, 1337 if seed is None else seed, out, overwrite, world)
        else:
            out = cast("Path", out)  # --resume needs it
            run = _resumed(data, backend, out, checkpoint, changes, world)
        run.wire = wire
    on_root(world, partial(_check_writable, out, *([profile.parent] if profile else [])))
    if not quiet:
        _introduce(run)
    may_replace = overwrite or resume
    run = train(
        run, out, profile=profile, compiled=compiled, quiet=quiet, tensorboard=tensorboard, overwrite=may_replace
    )
    if not quiet:
        _conclude(run, out)
    if run.stopped_by:
        raise click.exceptions.Exit(SIGNALLED + run.stopped_by)


def _same_for_all(context: click.Context) -> dict[str, Any]:
    """Return the facts that all ranks must start with: the version and the options."""
    given = {max(p.opts, key=len): context.params.get(p.name) for p in context.command.params if p.name not in _OWN}
    return {"polyarr": __version__, **{name: str(value) for name, value in given.items() if value is not None}}


def _check_libraries(tensorboard: bool) -> None:
    """Raise RuntimeError for missing libraries before training rather than after it."""
    for module in ("jsonschema", "tqdm", "matplotlib.figure"):
        extra(module)
    if tensorboard:
        extra("tensorboardX", "tensorboard")


def _check_options(given: Mapping[str, Any]) -> None:
    """Raise UsageError if options exclude each other, or need another one."""
    resume, of_new = given["resume"], ("overwrite", "preset", "tokens", "show", "source", "rank", "match", "alpha")
    if resume and (given["seed"] is not None or any(given[name] for name in of_new)):
        raise click.UsageError(
            "--resume goes on as the run began; leave out --overwrite, --preset, --tokenizer, --seed, --show, --from "
            "and --lora"
        )
    if given["source"] is not None and (given["preset"] or given["tokens"]):
        raise click.UsageError(
            "--from has a model, its tokenizer and settings for training it; leave out --preset and --tokenizer, and "
            "change settings with --set"
        )
    if given["checkpoint"] and not resume:
        raise click.UsageError("--checkpoint says what --resume goes on from; give that, too")
    if resume and given["out"] is None:
        raise click.UsageError("--resume needs --out, the folder of the run")


def _beginning(preset: str | None, source: Path | None, backend: str | None, changes: dict) -> RunStart:
    """Return the start of a new run: a preset with changes, or the model at a path."""
    changes = _with_its_schedule(changes)
    if source is not None:
        check_exists(source)
        choose_backend(backend)  # the weights are loaded onto it
        return start(source, changes)
    name, recipe = named_recipe(preset or "demo")
    _check_family(name, recipe, changes.get("model"))
    found = RunStart(name, recipe.changed(**changes))
    if found.recipe.lora is not None:
        raise click.UsageError("adapters are trained beside the weights of a model; give it with --from")
    return found


def _check_family(name: str, recipe: Recipe, changed: Any) -> None:
    """Raise UsageError if settings of a model change its family, whose other settings the recipe lacks."""
    own = recipe.model.get("family", GPT)
    wanted = changed.get("family", own) if isinstance(changed, dict) else own
    if wanted != own and (others := [n for n, r in PRESETS.items() if r.model.get("family", GPT) == wanted]):
        raise click.UsageError(
            f"--set model.family={wanted}: the model of {name} is a {own}, with other settings; begin with --preset "
            f"{' or '.join(others)}"
        )


def _with_its_schedule(changes: dict) -> dict:
    """Return the changes of a new run, in which decay_steps follows steps unless it is given."""
    return {"decay_steps": changes["steps"], **changes} if "steps" in changes else changes


def _new(
    data: Path | None,
    tokens: str | None,
    backend: str | None,
    begun: RunStart,
    seed: int,
    out: Path,
    overwrite: bool,
    world: World,
) -> Run:
    preset, recipe, model, tokenizer, base = begun
    if data is not None and is_prepared(data) and tokens:
        raise click.UsageError(f"{data} is prepared with a tokenizer; leave out --tokenizer")
    corpus = _corpus(data, recipe, tokenizer if tokens is None else chosen_tokenizer(tokens))
    if tokenizer is not None and not same_tokens(corpus.tokenizer, tokenizer):
        raise click.UsageError(f"{data} is prepared with another tokenizer than the model's; prepare it with that")
    if not overwrite:
        on_root(world, lambda: _check_free(out))
    choose_backend(backend)
    corpus = replace(corpus, tokenizer=tokenizer or corpus.tokenizer)
    check_equal_on_ranks(world, lambda: _of_a_run(preset, recipe, seed, corpus))
    path = None if data is None else str(data.resolve())
    return new_run(corpus, recipe, seed, preset, data=path, model=model, base=base, world=world)


def _check_free(out: Path) -> None:
    if any((out / name).exists() for name in RUN_FILES):
        raise click.UsageError(f"{out} holds a run already; give another --out, or --resume or --overwrite")


def _of_a_run(preset: str, recipe: Recipe, seed: int, corpus: Corpus) -> dict[str, Any]:
    """Return the facts that must be equal on all ranks; model and training state come from the first rank."""
    settings = {f"{name} of the recipe": value for name, value in recipe.to_dict().items()}
    tokens = hashlib.sha256(json.dumps(corpus.tokenizer.to_dict()).encode()).hexdigest()
    return {"preset": preset, **settings, "seed": seed, "the data's digest": corpus.digest, "the tokenizer's": tokens}


def _resumed(
    data: Path | None, backend: str | None, out: Path, checkpoint: str | None, changes: dict, world: World
) -> Run:
    choose_backend(backend)
    saved = load_checkpoint(out, checkpoint or newest(out), world)
    before, step = Recipe.from_dict(saved.info["recipe"]), saved.info["step"]
    if "model" in changes or "lora" in changes:
        raise click.UsageError("--resume goes on with the model that is there; leave out --set model... and lora...")
    recipe = before.changed(**(changes if step else _with_its_schedule(changes)))
    if recipe.steps < step:
        raise click.UsageError(f"{out} has done {step} steps already; --steps must not be below them")
    found = data or (Path(saved.info["data"]) if saved.info["data"] else None)
    if found is None and saved.info["text"] == NO_TEXT:
        raise click.UsageError(
            f"{out} was imported, and has no text to go on with; give one by --data, or use --from {out}, "
            "which keeps what was imported"
        )
    corpus = _corpus(found, recipe, saved.tokenizer)
    check_equal_on_ranks(world, lambda: _of_a_run(saved.info["preset"], recipe, saved.info["seed"], corpus))
    run = resumed_run(corpus, saved, recipe, data=None if found is None else str(found.resolve()), world=world)
    if step and not world.rank:
        _say_what_differs(before, saved.info, run)
    return run


def _say_what_differs(before: Recipe, info: dict, run: Run) -> None:
    """Report reasons why the run will not end with the same bits as one with as many steps from the beginning."""
    recipe = run.recipe
    here = device(run.world)
    if info.get("device", here) != here:
        click.echo(
            f"step {run.step:,} was computed on {info['device']}, the next ones are on {here}: not the same bits "
            "as in one go"
        )
    if run.text != info["text"]:
        click.echo(f"the text is not the one of the first {run.step:,} steps: best begins anew, on this one")
    if replace(before, steps=recipe.steps) != recipe:
        click.echo(f"the recipe changes after step {run.step:,}: not the same as {recipe.steps:,} steps with it")
    if recipe.schedule != "constant" and recipe.steps > max(run.step, recipe.schedule_steps):
        click.echo(
            f"the learning rate stays at {recipe.min_lr:g} from step {recipe.schedule_steps:,} on, where this run's "
            f"schedule ends: not the same as a new run of {recipe.steps:,} steps"
        )


def chosen_tokenizer(name: str) -> Tokenizer | None:
    """Return the tokenizer that --tokenizer names; None for one token per character of the text."""
    words: dict[str, Callable[[], Tokenizer | None]] = {"char": lambda: None, "byte": byte_tokenizer}
    return words[name]() if name in words else load_tokenizer(name)


def _corpus(data: Path | None, recipe: Recipe, tokenizer: Tokenizer | None) -> Corpus:
    if data is None:
        corpus = Corpus.of_text(standard_library_text(), tokenizer)
    elif is_prepared(data):
        corpus = open_prepared(data)
    else:
        corpus = Corpus.of_files(find_files([data]), tokenizer)
    check_length(LIBRARY if data is None else str(data), corpus, recipe.length)
    return corpus


@overload
def choose_backend(name: str | None) -> Backend: ...
@overload
def choose_backend(name: str | None, begin: Callable[[str], T]) -> T: ...
def choose_backend(name: str | None, begin: Callable[[str], Any] = set_backend) -> Any:
    """Start the backend that an option names, or else POLYARR_BACKEND, or else opencl; return the result of `begin`.

    Raises:
        BackendError: The backend does not start; there is no fallback to another one, but the error names one.
    """
    chosen = name or os.environ.get("POLYARR_BACKEND") or "opencl"
    try:
        return begin(chosen)
    except BackendError as error:
        raise BackendError(f"{error} (NumPy is always there: --backend numpy)") from error


def _check_writable(*folders: Path) -> None:
    """Create folders; raise OSError unless files can be written in them."""
    for out in folders:
        if out.exists() and not out.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(out))
        out.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryFile(dir=out):
                pass
        except OSError as error:  # name the folder instead of the temporary file
            raise OSError(error.errno, error.strerror, str(out)) from error


def _introduce(run: Run) -> None:
    recipe = run.recipe
    source = run.data or LIBRARY
    count = f"{run.model.num_parameters():,} parameters"
    if recipe.lora is not None:
        count += f", {run.model.num_parameters(only_trainable=True):,} of them trained,"
    click.echo(
        f"{run.preset}: {count} on {device(run.world)}\n"
        f"{_text(run, source)}{run.tokenizer.vocab_size} different ones\n{_what_follows(run)}"
    )
    if run.world.size > 1:
        parts, windows = split_step(recipe, run.world.size)
        click.echo(
            f"{run.world}; each has {parts * windows} of a step's windows{f', {windows} at a time' * (parts > 1)}; the "
            f"learning rate is that of one process, at most {recipe.lr:g}"
            f"{f'; gradients travel in {run.wire}' if run.wire else ''}"
        )
    if (recipe.dtype, recipe.precision) != (COMPUTED[0], PRECISIONS[0]):
        click.echo(f"computed in {recipe.dtype}, products of float32 with precision {recipe.precision!r}")


def _text(run: Run, source: str) -> str:
    """Return a description of a run's data, with what is cut from records."""
    if not isinstance(run.tokens, Records) or not isinstance(run.validation, Records):
        return f"text: {len(run.tokens) + len(run.validation):,} {run.tokenizer.unit} of {source}, "
    length, both = run.recipe.length, (run.tokens, run.validation)
    count, held_out = sum(len(records.starts) for records in both), len(run.validation.starts)
    cut, dropped = (sum(numbers) for numbers in zip(*(records.truncated(length) for records in both), strict=True))
    lines = f"records: {count:,} of {source}, the last {held_out:,} for validation\n"
    if run.recipe.packing:
        lines += f"packed: into {len(run.tokens):,} windows to train on and {len(run.validation):,} to validate with\n"
    if left_out := sum(records.left_out for records in both):
        lines += f"left out: {_count(left_out, 'record')}, whose first answer begins after {length + 1:,} tokens\n"
    if cut:
        lines += f"cut: {_count(cut, 'record')} to {length + 1:,} tokens, which drops {_count(dropped, 'token')}\n"
    return f"{lines}{run.tokenizer.unit}: "


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _what_follows(run: Run) -> str:
    recipe, left = run.recipe, run.recipe.steps - run.step
    if not left:
        return f"all {recipe.steps:,} steps are done already; give more --steps to go on"
    return (
        f"{left:,} steps, each of {recipe.batch_size * recipe.accumulation} windows of "
        f"{run.recipe.length} {run.tokenizer.unit}; Ctrl-C stops and saves"
    )


def _conclude(run: Run, out: Path) -> None:
    if run.stopped_by:
        click.echo(
            f"stopped after {run.step} steps; saved in {out}; go on with: polyarr train --resume --out {in_shell(out)}"
        )
        return
    if run.is_stale and run.step < run.recipe.steps:
        click.echo(f"ended early: {run.recipe.patience} evaluations in a row were no better than the best before them")
    use = "chat" if isinstance(run.tokens, Records) and run.tokenizer.chat else "generate"
    click.echo(
        f"{run.step:,} steps in {run.seconds:.1f} s, {speed(run):,.0f} tokens/s; best val loss {run.best:.4f}, "
        f"perplexity {perplexity(run.best):.2f}\n"
        f"saved in {out}: best and last checkpoint, loss.png, metrics.jsonl; now try: polyarr {use} {in_shell(out)}"
    )
