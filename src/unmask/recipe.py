"""A recipe: everything a run is made from, as YAML validated field by field, with key=value overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from unmask.config import (
    BudgetConfig,
    CheckpointConfig,
    CorpusConfig,
    ModelConfig,
    StageConfig,
    Strict,
    TokenizerConfig,
    TrainConfig,
)
from unmask.config.base import read_value, read_yaml
from unmask.errors import UserError, nearest, one_line
from unmask.objectives import AnyObjective
from unmask.objectives.base import Shape
from unmask.objectives.rooms import no_room


class EvaluationConfig(Strict):
    """Held-out loss during training."""

    every: int = Field(0, ge=0)
    """Updates between evaluations; 0 = only at the end."""
    pieces: int = Field(512, ge=1)
    """How many held-out pieces of text are read (all, if there are fewer)."""
    gradients_every: int = Field(0, ge=0)
    """Updates between looks at the cosine of the gradients of a mixture's parts; 0 = none."""


class TextConfig(Strict):
    """What is prepared before a run: the text and its tokenizer."""

    corpus: CorpusConfig
    valid: CorpusConfig | None = None
    """Held-out text; None = a part of the corpus."""
    tokenizer: TokenizerConfig = TokenizerConfig()

    @field_validator("corpus", "valid", mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


class Recipe(TextConfig):
    """One run: text, tokenizer, objective, model, and how to train."""

    objective: AnyObjective
    model: ModelConfig
    """`preset` names one of `unmask.model.presets`, under the other settings given; its vocabulary size and mask are
    left to the tokenizer and the objective."""
    init: str | None = None
    """A run or a Hugging Face directory to start from: its weights, its tokenizer and its model settings, of which
    only `dropout` and `attention_dropout` may be set; the mask follows the objective. Read once, at the start. Given
    for a recipe that has none, it takes the place of the recipe's model and tokenizer; empty = none."""
    start: int | None = Field(None, ge=0)
    """The id that opens a row where the tokenizer's spellings do not say it (T5 starts with its pad); init sets it."""
    end: int | None = Field(None, ge=0)
    """The id that ends a document, likewise."""
    context: int = Field(128, ge=4)
    """Tokens of a row: of the stream, or of the source where there are two stacks."""
    target_context: int | None = Field(None, ge=1)
    """Tokens of the target's row where there are two stacks; None = what the objective needs."""
    train: TrainConfig = TrainConfig()
    budget: BudgetConfig
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    seed: int = Field(0, ge=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16 = autocast; weights and optimizer stay fp32. auto follows the processor."""
    compile: Literal["auto", True, False] = False
    """torch.compile. auto: of a run of half an hour or more the first updates are timed both ways, and what pays is
    written into the run's plan."""
    attention: Literal["auto", "flex", "dense"] = "auto"
    """The kernel of self-attention in training. flex = FlexAttention wherever it can (CUDA alone); auto = there, where
    rows need a mask; dense = never."""
    device: str = "auto"
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """How the processes that torchrun starts hold the model. ddp: each a copy of it. fsdp: each a shard of every
    parameter, gradient and optimizer state, for models too large for one device. auto = ddp. It changes no number of
    the run (to rounding) and is no part of it: a run continues under another one, on any number of processes."""

    @model_validator(mode="before")
    @classmethod
    def _model_of_init(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "init" not in values:
            return values
        return {"model": {}, **values} if values["init"] else {**values, "init": None}

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        if self.init is None and (fault := self.misfit()):
            raise ValueError(fault)
        if self.compile is True and self.train.activation_checkpointing:
            raise ValueError("compile=true plans by itself what is computed again: drop train.activation_checkpointing")
        if fault := self._stages_fault():
            raise ValueError(fault)
        if self.train.stages and self.corpus.stream:
            raise ValueError("a run on a stream has no stages: drop train.stages or corpus.stream")
        if self.checkpoint.only_best and not self.evaluation.every:
            raise ValueError("checkpoint.only_best asks for a held-out loss during training: set evaluation.every")
        return self

    @property
    def stages(self) -> list[StageConfig]:
        """The run's stages, complete; of a run that names none, the one that it is."""
        return [
            StageConfig(
                share=stage.share,
                context=stage.context or self.context,
                target_context=stage.target_context or self.target_context,
                batch_size=stage.batch_size or self.train.batch_size,
            )
            for stage in self.train.stages or (StageConfig(share=1.0),)
        ]

    def shape(self, stage: StageConfig | None = None) -> Shape:
        """Capacity of a row; in a stage of the run, its own."""
        own = stage or StageConfig(share=1.0)
        return self.objective.shape(own.context or self.context, own.target_context or self.target_context)

    def _stages_fault(self) -> str:
        """Why the stages do not go with the rest, or ""."""
        if not self.train.stages:
            return ""
        whole = self.shape()
        for k, stage in enumerate(self.stages, 1):
            own = self.shape(stage)
            if self.objective.room(own) < 1:
                return f"train.stages, stage {k}: {no_room(self.objective, own)}"
            if max(own.stream - whole.stream, own.source - whole.source) > 0:
                return (
                    f"train.stages, stage {k}: its rows of context={stage.context} go beyond those of the recipe's "
                    f"context={self.context}: raise context (and target_context), or lower the stage's"
                )
        if self.budget.minutes is not None:
            return (
                "budget.minutes times the first updates, and with train.stages later ones take another time: give "
                "budget.steps, tokens, target_tokens or flops"
            )
        return ""

    def misfit(self) -> str:
        """Why model, objective and context do not go together, or ""; with `init` asked once the model is known."""
        longest = max(self.context, self.target_context or 0)
        if self.model.positions != "none" and longest > self.model.max_position:
            return (
                f"context={longest} goes beyond model.max_position={self.model.max_position}: "
                "raise max_position or shorten the context"
            )
        two = self.shape().source > 0
        if two != (self.model.num_source_layers > 0):
            need = "two stacks (model.num_source_layers)" if two else "one stack, or another objective or layout"
            return f"objective {self.objective.type} in this layout needs a model with {need}"
        return ""


OF_TRAINING = ("dropout", "attention_dropout")
"""Model settings that a recipe with `init` keeps: they are no part of the weights' meaning."""
OF_OBJECTIVE = ("objective.type", "objective.preset")
"""A new one drops the settings of the objective that was there."""


def shipped() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = resources.files("unmask") / "recipes"
    return {Path(str(f)).stem: Path(str(f)) for f in sorted(folder.iterdir(), key=str) if f.name.endswith(".yaml")}


def load_recipe(name: str | Path, overrides: Iterable[str] | Mapping[str, Any] = ()) -> Recipe:
    """The recipe of a shipped name or a YAML file, with overrides ("a.b=value", or nested mappings) applied."""
    values, where = values_of(name)
    return validate(_overridden(values, overrides), where)


def values_of(name: str | Path) -> tuple[dict[str, Any], str]:
    """What a recipe's file says, unchecked, and what to call it in a sentence."""
    text, where = _read(str(name))
    try:
        values = read_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not YAML: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(f"{where} holds no settings: a recipe is a YAML mapping of keys like objective, model, train")
    return values, where


def load_text(overrides: Iterable[str] | Mapping[str, Any]) -> TextConfig:
    """Text and tokenizer by overrides alone, without a recipe."""
    where = "the settings given"
    values = _overridden({}, overrides)
    _check_corpus(values, where)
    try:
        return TextConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(explain(error, where, TextConfig)) from error


def validate(values: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from plain values; the first thing that is wrong is one clear sentence."""
    if "imported" in values:
        raise UserError(
            f"{where} is of a model imported from {values['imported']}: it has no corpus to train on; "
            "give its directory to a recipe as init="
        )
    _check_corpus(values, where)
    try:
        return Recipe.model_validate(_expanded(values))
    except ValidationError as error:
        raise UserError(explain(error, where)) from error


def _check_corpus(values: Mapping[str, Any], where: str) -> None:
    if "corpus" not in values:
        raise UserError("no corpus: give corpus=PATH (a .txt, .jsonl or .parquet file, a directory or a glob)")
    for key in ("corpus", "valid"):
        sources = values[key].get("sources") if isinstance(values.get(key), Mapping) else None
        if sources is not None and not isinstance(sources, Mapping):
            raise UserError(f"{key}.sources={sources!r} in {where} names no sources: write {key}.sources.NAME=PATH")


def _expanded(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """`model.preset` replaced by its settings, under those given beside it."""
    model = values.get("model")
    if not isinstance(model, Mapping) or "preset" not in model:
        return values
    from unmask.model.presets import expanded

    if values.get("init"):
        raise UserError(f"init={values['init']} brings its model settings: leave model.preset out")
    return {**values, "model": expanded(model, left_open=("vocab_size", "visibility"))}


def _overridden(values: dict[str, Any], overrides: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's values with overrides set."""
    pairs = list(overrides.items()) if isinstance(overrides, Mapping) else [parse_override(o) for o in overrides]
    keys = [key for key, _ in pairs]
    if any(key.startswith("budget.") for key in keys):
        values["budget"] = {}  # a given budget replaces the recipe's
    if dict(pairs).get("init"):  # the model and the tokenizer are those of init, not the recipe's
        model = values.get("model")
        kept = model if isinstance(model, Mapping) else {}
        values["model"] = {k: v for k, v in kept.items() if k in OF_TRAINING}
        values = {k: v for k, v in values.items() if k not in ("tokenizer", "start", "end")}
    elif "model.preset" in keys:
        values["model"] = {}
    for corpus in ("corpus", "valid"):  # and so does a given path a mixture, and a given mixture a path
        written = values.get(corpus)
        if isinstance(written, dict) and {corpus, f"{corpus}.path"} & set(keys):
            values[corpus] = {k: v for k, v in written.items() if k not in ("sources", "mix", "temperature")}
        elif any(key.startswith(f"{corpus}.sources.") for key in keys):
            values[corpus] = (
                {} if isinstance(written, str) else {k: v for k, v in (written or {}).items() if k != "path"}
            )
    for key, value in sorted(pairs, key=lambda pair: pair[0] not in OF_OBJECTIVE):  # they reset their neighbours
        _set(values, key, value)
    return values


def parse_override(text: str) -> tuple[str, Any]:
    """ "a.b=value" as (key, value): text where the setting is text, else read as YAML.

    >>> parse_override("train.learning_rate=1e-3"), parse_override("corpus=2024"), parse_override("seed=7")
    (('train.learning_rate', 0.001), ('corpus', '2024'), ('seed', 7))
    """
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise UserError(f"'{text}' is not an override: write key=value, such as train.learning_rate=1e-3")
    if _is_text(key):
        return key, value
    return key, read_value(value)


def _is_text(key: str) -> bool:
    """Whether a setting is text (a path, a pattern, a name), so that YAML must not read a meaning into it."""
    *parents, last = key.split(".")
    if _is_path(parents, last):
        return True
    fields = [m.model_fields[last] for m in _walk(parents)[1] if last in m.model_fields]
    return bool(fields) and all(set(get_args(f.annotation) or (f.annotation,)) <= {str, type(None)} for f in fields)


def _is_path(parents: Sequence[str], last: str) -> bool:
    """Whether a path alone may stand at a key: a corpus, or a source of one."""
    return (*parents, last) in (("corpus",), ("valid",)) or tuple(parents) in (
        ("corpus", "sources"),
        ("valid", "sources"),
    )


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read(name: str) -> tuple[str, str]:
    known = shipped()
    path = known.get(name, Path(name))
    try:
        return path.read_text(encoding="utf-8"), str(path if name not in known else f"recipe {name}")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"no recipe '{name}' (shipped: {', '.join(known)}; or the path of a YAML file){nearest(name, known)}"
        ) from error


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key. A new type of objective drops the old one's settings; a path alone stands for a corpus."""
    *parents, last = key.split(".")
    here = values
    for k, part in enumerate(parents):
        if isinstance(here.get(part), str) and _is_path(parents[:k], part):
            here[part] = {"path": here[part]}
        if here.get(part) is None:
            here[part] = {}
        if not isinstance(here[part], dict):
            raise UserError(f"{key} cannot be set: {part} is a single value")
        here = here[part]
    if key in OF_OBJECTIVE and here.get(last) != value:
        here.clear()
    if _is_path(parents, last) and isinstance(value, str) and isinstance(here.get(last), dict):
        value = {**here[last], "path": value}
    here[last] = value


# ---------------------------------------------------------------- errors of validation, in a sentence


def explain(error: ValidationError, where: str, root: type[BaseModel] | None = None) -> str:
    """The first error of a validation: which key, what is wrong, the nearest right one. `root`: of what; a recipe."""
    first = error.errors()[0]
    loc = list(first["loc"])
    key = ".".join(str(p) for p in _without_tags(loc))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        known = _fields(loc[:-1], root or Recipe)
        return f"unknown key '{key}' in {where} (known there: {', '.join(known)}){nearest(str(loc[-1]), known)}"
    if first["type"] == "missing":
        inside = any(isinstance(p, int) for p in loc)  # of a list, which is given as a whole
        return f"{where} lacks '{key}': add it{'' if inside else f', or give {key}=… on the command line'}"
    if first["type"] == "union_tag_invalid":
        return f"{key}.type in {where}: {message}"
    if first["type"] == "value_error":
        return f"{where}{', ' + key if key else ''}: {message}"
    example = ", such as [{share: 0.5}, {share: 0.5}]" if "stages" in loc else ""
    message = message.replace("a valid tuple", f"a list{example}")
    return f"{key}={first['input']!r} in {where}: {message[0].lower()}{message[1:]}"


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models(a)]


def _walk(loc: Sequence[Any], root: type[BaseModel] | None = None) -> tuple[list[Any], list[type[BaseModel]]]:
    """The keys of a pydantic location without union tags, and the models that stand at its end."""
    models: list[type[BaseModel]] = [root or Recipe]
    keys = []
    named = False  # the next part is a name of the user's, such as a source's
    for part in loc:
        if named:
            keys.append(part)
            named = False
            continue
        if isinstance(part, int):  # the place in a list: of the same models
            keys.append(part)
            continue
        tagged = [m for m in models if "type" in m.model_fields and part in get_args(m.model_fields["type"].annotation)]
        if tagged:
            models = tagged
            continue
        keys.append(part)
        annotations = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        named = any(get_origin(a) is dict for a in annotations)
        models = [x for a in annotations for x in _models(a)]
    return keys, models


def _without_tags(loc: Sequence[Any]) -> list[Any]:
    return _walk(loc)[0]


def _fields(loc: Sequence[Any], root: type[BaseModel]) -> list[str]:
    return sorted({f for m in _walk(loc, root)[1] for f in m.model_fields})
