"""The command line: each verb is a thin shell over one public function.

Results go to stdout (one JSON value a line with --json), everything else to stderr. Bad input is one clear
sentence and exit code 2; Ctrl-C is 130, with a checkpoint written.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.errors import UserError
from unmask.process import patient_threads

app = typer.Typer(
    name="unmask",
    help="Pretrain language models: any objective, any Transformer architecture, any tokenizer, on your own text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
tokenizer_app = typer.Typer(help="Train tokenizers.", no_args_is_help=True)
app.add_typer(tokenizer_app, name="tokenizer")

Overrides = Annotated[
    list[str] | None, typer.Argument(help="key=value settings, such as corpus=my.txt out=runs/a", show_default=False)
]
RunOrDir = Annotated[
    str, typer.Argument(help="A run directory, or a Hugging Face model directory.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value a line.")]


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
        return _emit({"out": run.out, "parameters": run.parameters, **vars(run.counters), **held.summary()})
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
        return _emit(result)
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
        _emit({"prompt": given, "text": text}) if as_json else print(given + text)


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
            _emit(filled)
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
            _emit({"text": one, **dataclasses.asdict(s)})
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
        return _emit(report)
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
        return _emit(result)
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


@tokenizer_app.command("train")
def tokenizer_train(
    inputs: Annotated[list[str], typer.Argument(help="Text files, directories or globs.", show_default=False)],
    out: Annotated[str, typer.Option(help="The tokenizer.json to write.")],
    kind: Annotated[str, typer.Option("--type", help="bbpe, wordpiece, char, byte or word.")] = "bbpe",
    vocab_size: Annotated[int, typer.Option(help="Entries; a ceiling for char, byte and word.")] = 8192,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Fold case (wordpiece and word).")] = False,
    sentinels: Annotated[int, typer.Option(help="How many <extra_id_k> tokens.")] = 100,
    field: Annotated[str, typer.Option(help="The key of a JSON line that holds its text.")] = "text",
) -> None:
    """Train a tokenizer on text."""
    from unmask.data.tokenizer import train_tokenizer

    settings = {"type": kind, "vocab_size": vocab_size, "lowercase": lowercase, "sentinels": sentinels}
    tokenizer = train_tokenizer(inputs, settings, field)
    tokenizer.save(out)
    print(f"{out}: {tokenizer.vocabulary.size} entries")


def _emit(value: Any) -> None:
    print(json.dumps(_plain(value), ensure_ascii=False))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (str, bytes, Path)):
        return str(value)
    if isinstance(value, Iterable):
        return [_plain(v) for v in value]
    return value.item() if hasattr(value, "item") else value


def main() -> None:
    """Run the command line and exit: 0, 2 for bad input, 130 after Ctrl-C."""
    patient_threads()
    try:
        code = app(standalone_mode=False)  # typer turns Ctrl-C into the exit code 130
        sys.exit(code if isinstance(code, int) else 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except typer.TyperException as error:
        print(f"error: {error}" if str(error) else "see unmask --help", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        print(
            f"error: {error.filename or 'a file'}: {error.strerror or error}: check the path and the disk",
            file=sys.stderr,
        )
        sys.exit(2)
