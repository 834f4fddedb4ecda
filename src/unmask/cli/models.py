"""The verbs that train, ask, convert and describe models."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from unmask.cli.output import Json, app, emit
from unmask.errors import UserError
from unmask.process import processes

Overrides = Annotated[
    list[str] | None, typer.Argument(help="key=value settings, such as corpus=my.txt out=runs/a", show_default=False)
]
PlanName = Annotated[
    str | None,
    typer.Option(
        help="How texts are scored: left_to_right, pseudo, pseudo_words, bound, infill or decoder.",
        show_default="the model's own",
    ),
]
PIECES = 2048
"""Of bpb, without --limit."""
ModeName = Annotated[
    str | None,
    typer.Option(
        help="Of a mixture: the part that is asked, by its name or mode token. Of UL2: R (short spans), S (the end of "
        "a text) or X (much).",
        show_default="the first part; UL2: R for gaps, S for texts",
    ),
]
NetworkName = Annotated[
    str | None,
    typer.Option(
        help="Of a run that trains several, the one that is asked: ELECTRA's generator.",
        show_default="the one it keeps",
    ),
]
RunOrDir = Annotated[
    str, typer.Argument(help="A run directory, or a Hugging Face model directory.", show_default=False)
]

Measured = Annotated[
    str | None,
    typer.Argument(
        help="What is measured on: a text (bpb), or JSON lines in a file or a directory. Without it, bpb takes the "
        "run's held-out part and cloze a battery that is shipped.",
        show_default=False,
    ),
]
Suite = Annotated[
    str,
    typer.Option(
        help="bpb: bits per byte (or pseudo bits per byte, or those of targets given sources, labelled so). "
        "minimal-pairs: sentence_good against "
        "sentence_bad (BLiMP). cloze: text with one [MASK], answer, candidates, relation. choice: context, "
        "choices, label."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        help="At most so many pairs a set, gaps a relation or questions; of bpb pieces, or tokens sampled for "
        "pseudo bits.",
        show_default="all; bpb: 2048",
    ),
]


@app.command()
def pretrain(
    recipe: Annotated[
        str, typer.Argument(help="A shipped recipe's name, or the path of a YAML file.", show_default=False)
    ],
    overrides: Overrides = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Train nothing: print updates, tokens, hours (estimated), memory and disk."),
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(help="With --plan: how many processes share the work.", show_default="1, or torchrun's"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model on your text: unmask pretrain encoder-small corpus=my.txt out=runs/a budget.minutes=5

    Beside the recipe's settings: out=DIR, resume=never|auto|must, cache=DIR, log=tensorboard,wandb,trackio and
    peak_flops=1e12|measure.
    """
    from unmask.recipe import load_recipe

    own: dict[str, str] = {}
    settings = []
    for text in overrides or []:
        key, _, value = text.partition("=")
        if key in ("out", "resume", "cache", "log", "peak_flops"):
            own[key] = value
        else:
            settings.append(text)
    if ranks is not None and not plan:
        raise UserError(f"--ranks {ranks} goes with --plan: training on several processes is started by torchrun")
    loaded = load_recipe(recipe, settings)
    if plan:
        return _print_plan(loaded, processes() if ranks is None else ranks, own, as_json)
    if not own.get("out"):
        raise UserError("no place for the run: give out=DIR")
    from unmask.run import pretrain as run

    done = run(
        loaded,
        out=own["out"],
        resume=own.get("resume", "never"),
        cache=own.get("cache"),
        log=own.get("log"),
        peak_flops=own.get("peak_flops"),
    )
    _print_run(done, as_json)


def _print_plan(recipe: Any, ranks: int, own: dict[str, str], as_json: bool) -> None:
    from unmask.cli.runs import plan_lines
    from unmask.planning import plan

    say = lambda text: print(text, file=sys.stderr, flush=True)
    found = plan(recipe, ranks=ranks, cache=own.get("cache"), peak_flops=own.get("peak_flops"), say=say)
    emit(found) if as_json else print("\n".join(plan_lines(found)))


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="A run directory.")],
    log: Annotated[
        str | None,
        typer.Option(help="tensorboard, wandb, trackio (or several, with commas), or none.", show_default="as before"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Continue a run that was stopped, to the end of its budget."""
    from unmask.run import resume_run

    _print_run(resume_run(run, log=log), as_json)


def _print_run(run: Any, as_json: bool) -> None:
    held = run.held_out
    if as_json:
        return emit({"out": run.out, "parameters": run.parameters, **vars(run.counters), **held.summary()})
    said = f"{held.loss:.3f}"
    if held.unigram_floor is not None:
        which = ", the mean of its parts" if held.parts else ""
        said += f" nats per content target{which} (unigram floor {held.unigram_floor:.3f})"
    more = "".join(f", {name} {value:.3f}" for name, value in held.terms.items())
    print(
        f"{run.out}: {run.counters.step} updates, {run.counters.tokens:,} tokens, {run.counters.seconds:.0f} s; "
        f"held-out loss {said}{more}"
    )


@app.command()
def evaluate(
    run: RunOrDir,
    text: Measured = None,
    suite: Suite = "bpb",
    plan: PlanName = None,
    limit: Limit = None,
    stride: Annotated[
        int | None,
        typer.Option(help="bpb: rolling windows, this many tokens apart.", show_default="pieces side by side"),
    ] = None,
    mode: ModeName = None,
    network: NetworkName = None,
    seed: Annotated[int, typer.Option(help="Of samples and intervals.")] = 0,
    field: Annotated[str | None, typer.Option(help="bpb: the key of a JSON line, or column, with the text.")] = None,
    target: Annotated[
        str | None, typer.Option(help="bpb of a model of pairs: the key or column with the target.")
    ] = None,
    document: Annotated[str | None, typer.Option(help="bpb: auto, file, blank_line or line.")] = None,
    encoding: Annotated[str | None, typer.Option(help="bpb: of files without a byte-order mark, or detect.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a model: unmask evaluate runs/a ../blimp --suite minimal-pairs"""
    from unmask.cli.table import lines
    from unmask.compare.functions import meant
    from unmask.evaluation.suites import SUITES
    from unmask.evaluation.watch import shown
    from unmask.loading import load
    from unmask.run import evaluate as measure

    if suite not in SUITES:  # said before the model is read
        raise UserError(f"no suite '{suite}' (known: {', '.join(SUITES)}){meant(suite, '--suite minimal-pairs')}")
    if limit is None and suite == "bpb":
        limit = PIECES
    plan_name: Any = plan
    said = {"field": field, "target": target, "document": document, "encoding": encoding}
    reading = {k: v for k, v in said.items() if v is not None}
    source = _source(text, suite, reading) if reading else text
    lm = load(run, network=network)
    result = measure(lm, suite, source, limit, plan=plan_name, stride=stride, seed=seed, watch=shown, mode=mode)
    for warning in result.get("warnings", ()):
        print(f"warning: {warning}", file=sys.stderr)
    if as_json:
        return emit(result)
    print("\n".join(lines({k: v for k, v in result.items() if k != "warnings"})))


@app.command()
def generate(
    run: RunOrDir,
    prompt: Annotated[list[str] | None, typer.Argument(help="One or more prompts.")] = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens at most.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 = greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest that sum to p.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text (may be repeated).")] = None,
    seed: int = 0,
    min_tokens: Annotated[int, typer.Option(help="No end token before so many.")] = 0,
    beams: Annotated[int, typer.Option(help="Beam search of this width, which draws nothing; 1 = none.")] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Beams: texts are compared by log-probability / length ** this.")
    ] = 1.0,
    best: Annotated[int, typer.Option(help="Beams: so many texts for each prompt, best first, with scores.")] = 1,
    steps: Annotated[
        int | None,
        typer.Option(help="Masked models: steps of unmasking.", min=1, show_default="one a token; mask_predict: 10"),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="Masked models: unmask by confidence, random or mask_predict.", show_default="confidence"),
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="Masked models: tokens unmasked together.", min=1, show_default="all")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Masked models: tokens to write.", min=1, show_default="max-tokens")
    ] = None,
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], typer.Option(help="Of weights and layers; auto: bf16 where that is faster.")
    ] = "fp32",
    mode: ModeName = None,
    network: NetworkName = None,
    as_json: Json = False,
) -> None:
    """Continue texts: unmask generate runs/a "The first" --beams 4 --length-penalty 0.8"""
    from unmask.evaluation.base import shape_of
    from unmask.evaluation.generate import continues, n_best, rule_of
    from unmask.loading import load

    by: Any = order or "confidence"
    unmasking = None if (steps, order, block, length) == (None,) * 4 else (by, steps or 0, block or 0)
    rule = rule_of(temperature, top_k, top_p, seed, beams, length_penalty, unmasking=unmasking)
    asked = f"max_tokens={max_tokens}" if length is None else f"length={length}"
    max_tokens = max_tokens if length is None else length
    prompts, lm = list(prompt or [""]), load(run, network=network, precision=precision).told(mode)
    found = n_best(lm, prompts, rule, best, max_tokens, stop or [], min_tokens=min_tokens)
    written = [g for texts in found for g in texts]
    apart = not continues(lm, rule)
    for given, texts in zip(prompts, found, strict=True):
        if apart and not as_json:
            print(given)
        for g in texts:
            scored = {} if g.score is None else {"logprob": g.logprob, "score": g.score}
            if as_json:
                emit({"prompt": given, "text": g.text, "stopped": g.stopped, **scored})
            else:
                print((f"{g.score:10.3f}  " if best > 1 else "") + ("" if apart else given) + g.text)
    if cut := sum(g.stopped == "positions" for g in written):
        which = "the text" if len(written) == 1 else f"{cut} of {len(written)} texts"
        print(
            f"{which} stopped at the trained context of {shape_of(lm).stream} tokens, before {asked}",
            file=sys.stderr,
        )


@app.command()
def fill(
    run: RunOrDir,
    text: Annotated[list[str], typer.Argument(help='Texts with [MASK], such as "the [MASK] sat".', show_default=False)],
    top_k: Annotated[int, typer.Option(help="Candidates for each mask.")] = 5,
    mode: ModeName = None,
    network: NetworkName = None,
    as_json: Json = False,
) -> None:
    """Fill the [MASK]s of texts."""
    from unmask.loading import load

    lm = load(run, network=network)
    for one in text:
        filled = lm.fill(one, top_k=top_k, mode=mode)
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
    plan: PlanName = None,
    end: Annotated[bool, typer.Option("--end", help="Score the end of the document, too.")] = False,
    mode: ModeName = None,
    network: NetworkName = None,
    as_json: Json = False,
) -> None:
    """Log-probability of texts, with the event it belongs to."""
    from unmask.loading import load

    plan_name: Any = plan
    if "" in text and not end:
        raise UserError(
            "an empty text has no token to score: give some words (or --end, to score the end of a document)"
        )
    found = load(run, network=network).score(text, context=context, plan=plan_name, end=end, mode=mode)
    for one, s in zip(text, found, strict=True):
        if as_json:
            shown = {**dataclasses.asdict(s), "perplexity": s.perplexity, "word_perplexity": s.word_perplexity}
            emit({"text": one, **shown})
        else:
            off = "" if s.error is None else f" ± {s.error:.3f}"
            print(f"{s.logprob:10.3f}{off} nats  {s.tokens:4d} tokens {s.words:4d} words  {one}\n            {s.event}")


@app.command()
def export(
    run: RunOrDir,
    directory: Annotated[str, typer.Argument(help="Where to write it.")],
    license: Annotated[str | None, typer.Option(help="Of the weights, for the model card, such as mit.")] = None,
    language: Annotated[list[str] | None, typer.Option(help="Of the text, such as en (may be repeated).")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Its name on the hub (may be repeated).")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Of a run: the checkpoint with the best held-out loss, not the last one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a Hugging Face directory with a model card, reload it with the common library and compare."""
    from unmask.loading import load
    from unmask.model.card_results import grouped

    lm = load(run, "best" if best else "last")
    report = lm.export(directory, license, language or None, dataset or ())
    if as_json:
        return emit(report)
    if best:
        print(f"{directory}: weights after update {lm.step}, the best held-out loss of {run}")
    print(f"{directory}: reloaded with transformers, largest logit difference {report['difference']:.2g}")
    if report["own_code"]:
        print("no class of transformers computes this model: load it there with trust_remote_code=True")
    if report["left_out"]:
        print(f"without a place in the stock class, left out: {', '.join(grouped(report['left_out']))}")


@app.command()
def gather(
    run: Annotated[str, typer.Argument(help="A run directory.", show_default=False)],
    file: Annotated[str, typer.Argument(help="The safetensors file to write.", show_default=False)],
    best: Annotated[
        bool, typer.Option("--best", help="The checkpoint with the best held-out loss, not the last one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a run's weights, which many ranks may have written, as one file: unmask gather runs/a a.safetensors"""
    from unmask.loading import gather as write

    found = write(run, file, "best" if best else "last")
    if as_json:
        return emit(found)
    print(
        f"{file}: {found['tensors']} tensors, {found['bytes']:,} bytes, weights after update {found['step']} of {run}"
    )


@app.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(help="A Hugging Face model directory, or a file of llama2.c.", show_default=False)
    ],
    run: Annotated[str, typer.Argument(help="The run directory to write.", show_default=False)],
    format: Annotated[str, typer.Option(help="hf, or llama2c.")] = "hf",
    tokenizer: Annotated[
        str | None, typer.Option(help="llama2c: its tokenizer file.", show_default="the one beside the model")
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn a foreign model into a run directory, which can be scored, sampled, exported and so on."""
    from unmask.loading import import_run

    place = import_run(source, run, format, tokenizer)
    if as_json:
        return emit({"run": place, "source": source, "format": format})
    print(place)


def _source(text: str | None, suite: str, reading: dict[str, str]) -> Any:
    """How a text is read, as settings of a source."""
    from unmask.recipe import load_text

    if text is None or suite != "bpb":
        raise UserError(f"--{next(iter(reading))} says how a text is read: it goes with --suite bpb and a TEXT")
    return load_text([f"corpus={text}", *(f"corpus.{key}={value}" for key, value in reading.items())]).corpus


@app.command(
    "lm-eval", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def lm_eval(context: typer.Context) -> None:
    """lm-eval's own command, which knows `--model unmask --model_args path=RUN`: unmask lm-eval run --help"""
    from unmask.evaluation.harness import command
    from unmask.loading import load

    command(load, context.args)


def _tokens(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--tokens {text} is no number: give one above 0, as in --tokens 600000") from None


@app.command()
def demo(
    corpus: Annotated[
        str | None, typer.Argument(help="Your text; without it, the prose that ships with CPython.")
    ] = None,
    out: Annotated[str, typer.Option(help="Where the runs, pages and exports go.")] = "runs/demo",
    tokens: Annotated[
        float | None,
        typer.Option(
            parser=_tokens,
            metavar="NUMBER",
            help="Processed tokens for each model; fewer shorten both parts.",
            show_default="600,000",
        ),
    ] = None,
) -> None:
    """Four small models in a small world, then on your text with one tokenizer: compared, sampled and exported."""
    from unmask.demo import demo as show

    show(corpus, Path(out), tokens)
