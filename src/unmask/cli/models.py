"""The verbs that train, ask, convert and describe models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli.output import Json, app, emit
from unmask.errors import UserError

Overrides = Annotated[
    list[str] | None, typer.Argument(help="key=value settings, such as corpus=my.txt out=runs/a", show_default=False)
]
RunOrDir = Annotated[
    str, typer.Argument(help="A run directory, or a Hugging Face model directory.", show_default=False)
]


@app.command()
def pretrain(
    recipe: Annotated[
        str, typer.Argument(help="A shipped recipe's name, or the path of a YAML file.", show_default=False)
    ],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Train a model on your text: unmask pretrain encoder-small corpus=my.txt out=runs/a budget.minutes=5"""
    from unmask.recipe import load_recipe

    own: dict[str, str] = {}
    settings = []
    for text in overrides or []:
        key, _, value = text.partition("=")
        if key in ("out", "resume", "cache"):
            own[key] = value
        else:
            settings.append(text)
    loaded = load_recipe(recipe, settings)
    if not own.get("out"):
        raise UserError("no place for the run: give out=DIR")
    from unmask.run import pretrain as run

    _print_run(run(loaded, out=own["out"], resume=own.get("resume", "never"), cache=own.get("cache")), as_json)


@app.command()
def resume(run: Annotated[str, typer.Argument(help="A run directory.")], as_json: Json = False) -> None:
    """Continue a run that was stopped, to the end of its budget."""
    from unmask.run import resume_run

    _print_run(resume_run(run), as_json)


def _print_run(run: Any, as_json: bool) -> None:
    held = run.held_out
    if as_json:
        return emit({"out": run.out, "parameters": run.parameters, **vars(run.counters), **held.summary()})
    print(
        f"{run.out}: {run.counters.step} updates, {run.counters.tokens:,} tokens, {run.counters.seconds:.0f} s; "
        f"held-out loss {held.loss:.3f} nats per content target (unigram floor {held.unigram_floor:.3f})"
    )


@app.command()
def evaluate(
    run: RunOrDir,
    text: Annotated[str | None, typer.Argument(help="A text to score; without it, the run's held-out part.")] = None,
    suite: Annotated[str, typer.Option(help="bpb: bits per byte (or pseudo bits per byte, labelled).")] = "bpb",
    limit: Annotated[int, typer.Option(help="Pieces to score, or tokens sampled for pseudo bits.")] = 2048,
    as_json: Json = False,
) -> None:
    """Measure a model."""
    from unmask.run import evaluate as measure

    result = measure(run, suite, text=text, limit=limit)
    if as_json:
        return emit(result)
    for key, value in result.items():
        print(f"{key:>16}  {value}")


@app.command()
def generate(
    run: RunOrDir,
    prompt: Annotated[list[str] | None, typer.Argument(help="One or more prompts.")] = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 = greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest that sum to p.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text (may be repeated).")] = None,
    seed: int = 0,
    as_json: Json = False,
) -> None:
    """Continue texts."""
    from unmask.lm import load

    prompts = list(prompt or [""])
    texts = load(run).generate(
        prompts, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, stop=stop or [], seed=seed
    )
    for given, text in zip(prompts, texts, strict=True):
        emit({"prompt": given, "text": text}) if as_json else print(given + text)


@app.command()
def fill(
    run: RunOrDir,
    text: Annotated[list[str], typer.Argument(help='Texts with [MASK], such as "the [MASK] sat".', show_default=False)],
    top_k: Annotated[int, typer.Option(help="Candidates for each mask.")] = 5,
    as_json: Json = False,
) -> None:
    """Fill the [MASK]s of texts."""
    from unmask.lm import load

    lm = load(run)
    for one in text:
        filled = lm.fill(one, top_k=top_k)
        if as_json:
            emit(filled)
            continue
        print(filled.text)
        for k, candidates in enumerate(filled.masks):
            print(f"  [MASK] {k + 1}: " + "  ".join(f"{c.token!r} {c.probability:.3f}" for c in candidates))


@app.command()
def score(
    run: RunOrDir,
    text: Annotated[list[str], typer.Argument(help="Texts to score.", show_default=False)],
    context: Annotated[str | None, typer.Option(help="Text that stands before each of them.")] = None,
    as_json: Json = False,
) -> None:
    """Log-probability of texts, with the event it belongs to."""
    from unmask.lm import load

    for one, s in zip(text, load(run).score(text, context=context), strict=True):
        if as_json:
            emit({"text": one, **dataclasses.asdict(s)})
        else:
            print(f"{s.logprob:10.3f} nats  {s.tokens:4d} tokens  {one}\n            {s.event}")


@app.command()
def export(
    run: RunOrDir, directory: Annotated[str, typer.Argument(help="Where to write it.")], as_json: Json = False
) -> None:
    """Write a Hugging Face directory, reload it with the common library and compare logits."""
    from unmask.lm import load

    report = load(run).export(directory)
    if as_json:
        return emit(report)
    print(f"{directory}: reloaded with transformers, largest logit difference {report['difference']:.2g}")
    if "note" in report:
        print(report["note"])


@app.command("import")
def import_(
    directory: Annotated[str, typer.Argument(help="A Hugging Face model directory.")],
    run: Annotated[str, typer.Argument(help="The run directory to write.")],
) -> None:
    """Turn a Hugging Face directory into a run directory."""
    from unmask.lm import import_run

    print(import_run(directory, run))


@app.command()
def inspect(
    what: Annotated[str, typer.Argument(help="A recipe, a run directory or a Hugging Face directory.")],
    as_json: Json = False,
) -> None:
    """Parameters and FLOPs per token of a model, before or after training."""
    from unmask.describe import describe

    result = describe(what)
    if as_json:
        return emit(result)
    for key, value in result.items():
        print(f"{key:>24}  {value:,}" if isinstance(value, int) else f"{key:>24}  {value}")


@app.command()
def demo(
    corpus: Annotated[
        str | None, typer.Argument(help="Your text; without it, the prose that ships with CPython.")
    ] = None,
    out: Annotated[str, typer.Option(help="Where the four runs and exports go.")] = "runs/demo",
    tokens: Annotated[float, typer.Option(help="Processed tokens for each model.")] = 0.0,
) -> None:
    """Train a tokenizer and four small models on the same text, then compare, sample and export them."""
    from unmask.demo import demo as show

    show(corpus, Path(out), tokens or None)
