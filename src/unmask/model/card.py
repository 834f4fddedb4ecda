"""The model card (README.md) of an export: what the run's files say, and nothing else.

What is not known is left out; a licence, a language and data that nobody stated are said to be unstated. Paths of the
machine that trained the model are shortened to their last part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import yaml

import unmask
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.card_results import at_step, grouped, learnt_nothing, rows

FILE = "README.md"

Data = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Usage:
    """How the exported model is asked what it was trained for (`unmask.evaluation.usage` says it).

    code   the lines of an example, behind those that load `model` and `tokenizer`
    task   the hubs' name of what the library's plain call does (pipeline_tag); None = that is no question of this model
    own    no class of the library can be asked, so the example asks `lm`, what `unmask.load` reads of the same files
    said   of a mixture: its parts, and how they are named
    half   of models trained in several ways: what the class here does not show, and the code that asks `lm` for it
    """

    code: tuple[str, ...]
    task: str | None = None
    own: bool = False
    said: str = ""
    half: str = ""
    half_code: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What only the exporting process knows; everything else is read from the run's directory.

    classes     the library's Auto classes that load it, the fullest last
    difference  the largest logit difference of the check
    usage       the example of how it is asked
    heads       names of the heads of the exported network
    own_code    the weights come with modeling_unmask.py
    tokenizer   whether one is there
    data        side (train, valid) → source → documents, tokens, bytes
    step        the update of a run that the weights are those of
    first_data  the same of the run that the weights come from, by `init` or by a conversion
    """

    config: ModelConfig
    parameters: int
    difference: float
    classes: tuple[str, ...]
    usage: Usage
    heads: tuple[str, ...] = ()
    own_code: bool = False
    objective: Mapping[str, Any] | None = None
    context: int | None = None
    target_context: int | None = None
    tokenizer: bool = False
    data: Data | None = None
    first_data: Data | None = None
    left_out: tuple[str, ...] = ()
    step: int | None = None
    license: str | None = None
    language: str | Sequence[str] | None = None
    datasets: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class _Run:
    """The files of a run's directory; each is empty where it is absent."""

    recipe: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)  # the last line of metrics.jsonl
    environment: dict[str, Any] = field(default_factory=dict)
    imported: str | None = None
    filled: dict[str, Any] = field(default_factory=dict)  # init.json

    @property
    def first(self) -> str | None:
        """Where the weights come from: what was imported, converted or given as `init`, by its last name."""
        return self.imported or (PurePath(str(init)).name if (init := self.recipe.get("init")) else None)


def one_line(**stated: str | Sequence[str] | None) -> None:
    """What people state goes into the card as it is, so each of it must be one line."""
    for name, value in stated.items():
        for text in [value] if isinstance(value, str) else value or ():
            if len(text.splitlines()) > 1:
                raise UserError(f"{name}={text!r} has several lines: give a name such as mit or en")


def write_card(directory: str | Path, facts: Facts, source: str | Path | None = None) -> None:
    """Write README.md; `source` is the run, or the Hugging Face directory, that the model came from."""
    (Path(directory) / FILE).write_text(card(facts, source), encoding="utf-8")


def card(facts: Facts, source: str | Path | None = None) -> str:
    """The text of a model card."""
    run = _read(None if source is None else Path(source), facts.step)
    datasets = tuple(facts.datasets) or _datasets(run)
    parts = [
        _front(facts, datasets),
        _what(facts, run),
        _licence(facts, datasets),
        _use(facts),
        _training(facts, run),
        _results(facts, run),
        _checked(facts),
        _limits(facts, run),
        _recipe(run),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


# ---------------------------------------------------------------- reading


def _read(place: Path | None, step: int | None = None) -> _Run:
    """A run's files; of an update before its last one, what metrics.jsonl says of that."""
    if place is None:
        return _Run()
    if not (place / "recipe.yaml").is_file():
        return _Run(imported=place.name if (place / "config.json").is_file() else None)
    try:
        recipe = yaml.safe_load((place / "recipe.yaml").read_text(encoding="utf-8")) or {}
        lines = [json.loads(line) for line in _text(place / "metrics.jsonl").splitlines()]
        last = lines[-1] if lines else {}
        result = json.loads(_text(place / "result.json") or "{}")
        if step and lines and step != result.get("step", last.get("step")):
            last, result = at_step(lines, step)
        environment = json.loads(_text(place / "environment.json") or "{}")
        filled = json.loads(_text(place / "init.json") or "{}")
    except (OSError, ValueError, yaml.YAMLError) as fault:
        raise UserError(
            f"{place} holds a file that cannot be read, so no model card can be written: {' '.join(str(fault).split())}"
        ) from fault
    imported = recipe.get("imported")
    return _Run(recipe, result, last, environment, PurePath(str(imported)).name if imported else None, filled)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _datasets(run: _Run) -> tuple[str, ...]:
    """Names on the hub that the recipe reads."""
    names = [str(p).removeprefix("hf:").split(":")[0] for p in _paths(run.recipe.get("corpus"))]
    found = [name for name, p in zip(names, _paths(run.recipe.get("corpus")), strict=True) if str(p).startswith("hf:")]
    return tuple(dict.fromkeys(n for n in found if not n.startswith((".", "/", "~"))))


def _paths(corpus: Any) -> list[str]:
    if not isinstance(corpus, Mapping):
        return []
    sources = corpus.get("sources") or {}
    return [corpus["path"]] if corpus.get("path") else [s["path"] for s in sources.values() if s.get("path")]


def _short(value: Any, key: str = "") -> Any:
    """Settings with local paths cut to their last part: where a file lay is nobody's business."""
    if isinstance(value, Mapping):
        return {k: _short(v, str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_short(v, key) for v in value]
    local = isinstance(value, str) and key in ("path", "lexicon", "file", "imported", "decoder", "init")
    if not local:
        return value
    head = "hf:" if value.startswith("hf:") else ""
    inner = value.removeprefix("hf:")
    return head + (PurePath(inner).name if PurePath(inner).is_absolute() else inner)


# ---------------------------------------------------------------- writing


def _front(facts: Facts, datasets: Iterable[str]) -> str:
    """The YAML between ---, which hubs read; fields that nobody stated are absent."""
    objective = (facts.objective or {}).get("type")
    tags = ["unmask", *([objective] if objective else []), *([] if facts.own_code else [facts.config.family])]
    front: dict[str, Any] = {"library_name": "transformers", "tags": list(dict.fromkeys(tags))}
    if facts.usage.task:
        front["pipeline_tag"] = facts.usage.task
    if facts.license:
        front["license"] = facts.license
    if facts.language:
        front["language"] = facts.language if isinstance(facts.language, str) else list(facts.language)
    if found := list(datasets):
        front["datasets"] = found
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---"


def _what(facts: Facts, run: _Run) -> str:
    c = facts.config
    kind = {"bidirectional": "encoder", "causal": "decoder", "prefix": "prefix decoder"}[c.visibility]
    depth = f"{c.num_layers} layers"
    if c.num_source_layers:
        kind, depth = "encoder–decoder", f"{c.num_source_layers} + {c.num_layers} layers"
    family = "" if c.family == "unmask" else f" of the {c.family} kind"
    lines = [
        f"# A Transformer {kind}{family}",
        "",
        f"{facts.parameters:,} parameters: {depth} of width {c.hidden_size} with {c.num_heads} heads, "
        f"a vocabulary of {c.vocab_size:,}. Exported by unmask {unmask.__version__}.",
    ]
    if facts.objective:
        lines[-1] += f" Objective: {facts.objective['type']}. {facts.usage.said}".rstrip()
    return "\n".join([*lines, *_first(run)])


def _first(run: _Run) -> list[str]:
    """Where the first weights come from, and what of the model is new."""
    if converted := run.recipe.get("converted"):
        decoder = run.recipe.get("decoder")
        both = f" and `{PurePath(str(decoder)).name}`" if decoder else ""
        text = f"The weights were converted from `{run.first}`{both}, and not trained since:"
        return ["", text, "", *(f"- {note}" for note in converted)]
    if run.imported:
        return ["", f"The weights were imported (from `{run.imported}`), and not trained since."]
    if run.first is None:
        return []
    lines = ["", f"Training started from the weights of `{run.first}` (`init=`)."]
    for key, title in (("new", "New, from the seed"), ("restarted", "Of another size there, so started anew")):
        if names := run.filled.get(key):
            more = f" and {len(names) - 6} more" if len(names) > 6 else ""
            lines[-1] += f" {title}: {', '.join(f'`{n}`' for n in names[:6])}{more}."
    return lines


def _licence(facts: Facts, datasets: Iterable[str]) -> str:
    out = ["## Licence and sources", ""]
    out.append(f"- Licence of the weights: {facts.license or 'not stated'}")
    language = facts.language if isinstance(facts.language, str) else ", ".join(facts.language or ())
    out.append(f"- Language: {language or 'not stated'}")
    out.append(f"- Datasets: {', '.join(datasets) or 'no published one is named'}")
    return "\n".join(out)


def _use(facts: Facts) -> str:
    """Code that runs in this directory."""
    auto, trust = facts.classes[-1], ", trust_remote_code=True" if facts.own_code else ""
    asked = facts.usage
    lines = ["import torch", f"from transformers import {auto}{', AutoTokenizer' if facts.tokenizer else ''}", ""]
    lines.append(f'model = {auto}.from_pretrained("."{trust}).eval()')
    if facts.tokenizer:
        lines.append(f'tokenizer = AutoTokenizer.from_pretrained("."{trust})')
    parts = []
    if facts.own_code:
        parts.append(
            "No class of the library computes this model, so its code lies beside the weights in `modeling_unmask.py` "
            "(generated; its head says how to check it), and `trust_remote_code=True` runs it. `generate` there keeps "
            "no cache. `unmask.load` reads the same weights without that file."
        )
    if facts.config.visibility == "prefix" and not asked.own:
        parts.append(
            "The first `prefix_length` tokens see each other; `generate` takes the whole prompt as the prefix unless "
            "it is given. Without it, a forward pass is causal."
        )
    if asked.own:
        parts.append(
            f"`{auto}` of transformers loads it{' (trust_remote_code=True)' if trust else ''}, but cannot put the "
            "question that it was trained on; unmask does, from the same files."
        )
        lines = _LOADED
    parts += ["Run in this directory:", _block([*lines, *asked.code])]
    if asked.half:
        parts.append(asked.half)
    if asked.half_code:
        parts.append(_block([*_LOADED, *asked.half_code]))
    return "\n\n".join(["## How to use", *parts])


_LOADED = ["import unmask", "", 'lm = unmask.load(".")']


def _block(lines: Iterable[str]) -> str:
    return "```python\n" + "\n".join(lines) + "\n```"


def _training(facts: Facts, run: _Run) -> str:
    """Data and cost, as far as the run's files tell."""
    train = {"train": (facts.first_data or {}).get("train", {})}
    first = _texts(train, f" of `{run.first}`, where the weights come from")
    if run.imported:
        return "\n".join(["## Training", "", *first]) if first else ""
    out = [*first, *_texts(facts.data)]
    if names := _paths(run.recipe.get("corpus")):
        out.append("- Read from: " + ", ".join(f"`{_short(n, 'path')}`" for n in names))
    if "corpus" in run.recipe:
        out.append(f"- Split: {_split(run.recipe)}")
    seen = {**run.last, **run.result}
    cost = {
        "step": "updates",
        "tokens": "tokens seen",
        "target_tokens": "of them predicted",
        "flops": "training FLOPs, by formula",
        "seconds": "seconds of training",
    }
    for key, title in cost.items():
        if isinstance(value := seen.get(key), int | float):
            shown = f"{value:.3g}" if key == "flops" else f"{value:,.0f}"
            out.append(f"- {title[0].upper()}{title[1:]}: {shown}")
    if facts.context and (facts.objective or run.recipe):
        target = f" (target: {facts.target_context})" if facts.target_context else ""
        out.append(f"- Tokens in a row: {facts.context}{target}")
    packages = run.environment.get("packages") or {}
    made = [f"{name} {packages[name]}" for name in ("unmask", "torch") if packages.get(name)]
    if made:
        out.append(f"- Made with: {', '.join(made)}, Python {run.environment.get('python', '?')}")
    return "## Training\n\n" + "\n".join(out) if out else ""


def _texts(data: Data | None, whose: str = "") -> list[str]:
    """How much text there was, one source a line."""
    out: list[str] = []
    for side, title in (("train", "Training text"), ("valid", "Held-out text")):
        for name, held in (data or {}).get(side, {}).items():
            source = f" ({name})" if name else ""
            units = [k for k in ("documents", "tokens", "bytes", "target_tokens") if held.get(k) is not None]
            words = [(k.removesuffix("s") if held[k] == 1 else k).replace("_", " ") for k in units]
            figures = [f"{held[k]:,} {word}" for k, word in zip(units, words, strict=True)]
            out.append(f"- {title}{whose}{source}: {', '.join(figures)}")
    return out


def _split(recipe: Mapping[str, Any]) -> str:
    valid = _paths(recipe.get("valid"))
    if valid:
        return "held-out text of its own: " + ", ".join(f"`{_short(v, 'path')}`" for v in valid)
    return f"{recipe['corpus'].get('valid_fraction', 0):.3g} of every source is held out"


def _results(facts: Facts, run: _Run) -> str:
    found = rows(run.result, facts.heads, _detects(facts))
    if not found:
        return ""
    step = f", after update {run.result['step']:,}" if "step" in run.result else ""
    table = "\n".join(f"| {title} | {shown} |" for title, shown in found)
    return f"## Results\n\nMeasured at the end of the run{step}.\n\n| | |\n|---|---|\n{table}"


def _detects(facts: Facts) -> bool:
    """Whether the exported network is the one of an objective's that says no tokens (ELECTRA's discriminator)."""
    return facts.classes[-1] in ("AutoModel", "AutoModelForPreTraining")


def _checked(facts: Facts) -> str:
    lost = ""
    if facts.left_out:
        names = ", ".join(grouped(facts.left_out))
        lost = f" The library's class has no place for {names}: these tensors are not in the files."
    ids = " Its tokenizer gives the same ids." if facts.tokenizer else ""
    return (
        "## How it was checked\n\nThese files were loaded again with `transformers` and compared with the model in "
        "unmask, on random tokens and, where there is a tokenizer, on sample texts with their likeliest answers: the "
        f"largest difference is {facts.difference:.2g}.{ids}{lost}"
    )


def _limits(facts: Facts, run: _Run) -> str:
    nothing = learnt_nothing(run.result, _detects(facts))
    out = [nothing] if nothing else []
    if facts.context and (facts.objective or run.recipe) and not run.imported:
        longer = "" if run.first else " and has seen no longer text"
        out.append(f"It was trained on rows of {facts.context} tokens{longer}.")
    if run.result:
        out.append("Nothing but what stands under Results was measured.")
    else:
        out.append("No measurement of it is known here.")
    return "## Limits\n\n" + " ".join(out)


def _recipe(run: _Run) -> str:
    if not run.recipe or run.imported:
        return ""
    text = yaml.safe_dump(_short(run.recipe), sort_keys=False, allow_unicode=True)
    return (
        "<details>\n<summary>Recipe, as it was resolved (local paths are cut to their last part)</summary>\n\n"
        f"```yaml\n{text.replace('```', '` ` `')}```\n\n</details>"
    )
