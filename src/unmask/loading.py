"""Models from disk: a run, a Hugging Face directory, or a foreign file that becomes a run."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError
from torch import nn

from unmask.batch import Head
from unmask.config import ModelConfig
from unmask.data.whole import whole
from unmask.errors import UserError, nearest
from unmask.lm import LM
from unmask.model.interop import load_hf
from unmask.model.llama2c import find_llama2c, load_llama2c
from unmask.model.transformer import Transformer
from unmask.model.translate import NOTES, first_fault, read_json, read_notes
from unmask.networks import networks_of, summed
from unmask.objectives import AnyObjective, Causal, Masked, PrefixLM, SpanCorruption
from unmask.objectives.base import LM as TOKENS
from unmask.objectives.base import Objective
from unmask.studies import instead_of_a_run
from unmask.tensors import aliases_note, save_tensors
from unmask.tokens.formats import NAMES, from_llama2c
from unmask.tokens.special import Vocabulary
from unmask.tokens.tokenizer import Tokenizer
from unmask.train import checkpoint
from unmask.train.devices import Precision, choose_device, hold
from unmask.train.sharded import Stored


class _Trained(BaseModel):
    """How a model was trained: what loading reads of an export's unmask.json; other keys pass."""

    objective: AnyObjective | None = None
    context: int | None = Field(None, ge=1)
    target_context: int | None = Field(None, ge=1)
    end: int | None = None
    head: str | None = None
    """Name of the head over the vocabulary, where its module has another: Replace MLM's `recovery`."""


class _Run(BaseModel):
    """What loading reads of a run's recipe.yaml; other keys pass."""

    model: ModelConfig
    heads: tuple[Head, ...] | None = None
    """Of imported and converted models; None = the objective's."""
    objective: AnyObjective
    context: int = Field(ge=1)
    target_context: int | None = Field(None, ge=1)
    start: int | None = None
    end: int | None = None


def load(
    path: str | Path,
    which: Literal["last", "best"] | int = "last",
    device: str = "auto",
    *,
    network: str | None = None,
    precision: Precision = "fp32",
) -> LM:
    """The model of a run directory (`which` checkpoint: last, best or a step) or of a Hugging Face directory.

    network: of a run that trains several, such as ELECTRA's "generator"; None = the one that its objective keeps.
    precision: what weights are held in and layers compute in. bf16 writes faster where processors multiply it faster
    (auto: there), with half the memory; a log-probability then has about three digits.
    """
    place = Path(path)
    if (place / "recipe.yaml").is_file():
        lm = _load_run(place, which, network)
    elif which != "last" and place.is_dir():
        raise UserError(instead_of_a_run(place) or f"{place} is no run: it has no checkpoint '{which}' to choose")
    elif network is not None:
        raise UserError(
            instead_of_a_run(place)
            or f"{place} is no run, so it has no networks to choose from: drop network={network}"
        )
    elif (place / "config.json").is_file():
        lm = _load_hf(place)
    elif place.is_dir():
        raise UserError(
            instead_of_a_run(place)
            or f"{place} is no model: it has neither recipe.yaml (a run) nor config.json (Hugging Face)"
        )
    else:
        raise UserError(f"{place} does not exist: give a run directory or a Hugging Face model directory")
    if lm.tokenizer is not None and lm.vocabulary.size > lm.config.vocab_size:
        raise UserError(
            f"{place}: the tokenizer has {lm.vocabulary.size} entries but the model's table {lm.config.vocab_size} "
            "rows: they do not belong together"
        )
    hold(lm.network, precision, choose_device(device)).eval()
    return lm


def network_names(path: str | Path) -> tuple[str, ...]:
    """What `load(path, network=…)` can be asked for; a Hugging Face directory holds one model."""
    place = Path(path)
    if not (place / "recipe.yaml").is_file():
        return ("model",)
    run = _run(place)
    return ("model",) if run.heads is not None else tuple(run.objective.networks(run.model))


def _run(place: Path) -> _Run:
    """What a run's recipe says of its model."""
    file = place / "recipe.yaml"
    try:
        return _Run.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else " ".join(str(error).split())
        raise UserError(f"{file} does not describe a run's model, objective and context: {fault}") from error


def _load_run(place: Path, which: Literal["last", "best"] | int, name: str | None = None) -> LM:
    run, found = _run(place), _checkpoint(place, which)
    if run.heads is None:
        networks, name = networks_of(run.objective, run.model), name or run.objective.kept
    else:  # one model, from elsewhere
        networks, name = nn.ModuleDict({"model": Transformer(run.model, run.heads)}), name or "model"
    if name not in networks:
        raise UserError(
            f"{place} has no network '{name}' (it has {', '.join(networks)}){nearest(name, list(networks))}"
        )
    checkpoint.load_model(networks, found)
    network = networks[name]
    assert isinstance(network, Transformer)
    network = summed(network)
    tokenizer = _tokenizer(place)
    words = words_of(tokenizer, run.start, run.end)
    step = int(found.name.removeprefix("step-"))
    return LM(network, run.context, tokenizer, run.objective, run.target_context, words, place, step=step)


def _checkpoint(place: Path, which: Literal["last", "best"] | int) -> Path:
    folder = place / "checkpoints"
    if which == "last":
        found, passed = checkpoint.newest(folder)
        if found is None:
            damaged = f" (unusable: {', '.join(passed)})" if passed else ""
            raise UserError(f"{place} is a run without a whole checkpoint{damaged}: resume it first")
        return found
    found = checkpoint.best_checkpoint(folder) if which == "best" else checkpoint.find(folder).whole.get(int(which))
    latest = checkpoint.newest(folder)[0] if found is None and which == "best" else None
    if latest is not None and checkpoint.read_state(latest)["best_step"] is None:
        raise UserError(
            f"{place} was not evaluated while it was trained, so none of its checkpoints is known as the best one: "
            "take the last one, or train with evaluation.every"
        )
    if found is None:
        steps = ", ".join(str(s) for s in checkpoint.find(folder).whole) or "none"
        raise UserError(f"{place} has no checkpoint '{which}': its whole checkpoints are at steps {steps}")
    return found


def gather(path: str | Path, file: str | Path, which: Literal["last", "best"] | int = "last") -> dict[str, Any]:
    """Write the weights of a run's checkpoint, in however many files they lie, as one plain safetensors file.

    One tensor at a time is in memory. Names are those of all the run's networks; "aliases" in the header lists which
    others share a tensor. Returns `file`, `step`, `tensors` and `bytes`.
    """
    place, written = Path(path), Path(file)
    if not (place / "recipe.yaml").is_file():
        raise UserError(instead_of_a_run(place) or f"{place} is no run: give the directory that pretrain wrote")
    if written.exists():
        raise UserError(f"{written} is there already: remove it, or give another file")
    found = _checkpoint(place, which)
    stored = Stored(found, checkpoint.MODEL)
    half = written.with_name(f".{written.name}.writing")
    try:
        written.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(stored, half, aliases=aliases_note(stored.aliases))
        half.replace(written)
    except OSError as error:
        raise UserError(f"cannot write {written}: {error.strerror or error}") from error
    finally:
        half.unlink(missing_ok=True)
    step, size = int(found.name.removeprefix("step-")), written.stat().st_size
    return {"file": str(written), "step": step, "tensors": len(stored), "bytes": size}


def _load_hf(place: Path) -> LM:
    network, report = load_hf(place)
    tokenizer = _tokenizer(place)
    try:
        trained = _Trained.model_validate(read_notes(place))
    except ValidationError as error:
        raise UserError(f"{place / NOTES} does not say how the model was trained: {first_fault(error)}") from error
    positions = network.config.max_position
    if trained.context is None:  # not an export of ours: nothing says how long the rows of training were
        trained = _Trained(objective=trained.objective, context=positions, target_context=positions, end=trained.end)
    objective = (trained.objective or _default_objective(network)) if TOKENS.uses in network.heads else None
    if trained.head is not None and TOKENS.uses in network.declared:
        network.declared[TOKENS.uses] = replace(network.declared[TOKENS.uses], name=trained.head)
    start = _start(place, network.config, tokenizer)
    words = words_of(tokenizer, start, trained.end)
    return LM(network, trained.context or positions, tokenizer, objective, trained.target_context, words, place, report)


def _tokenizer(place: Path) -> Tokenizer | None:
    """The tokenizer that lies in a model's directory, in any format that `tokens.formats` reads."""
    found = any((place / name).is_file() for name in NAMES) or any(place.glob("*.model"))
    return Tokenizer.load(place) if found else None


def _start(place: Path, config: ModelConfig, tokenizer: Tokenizer | None) -> int | None:
    """The start token that config.json names where the tokenizer's spellings do not say it; None = the tokenizer's."""
    values = read_json(place / "config.json")
    if config.num_source_layers:
        return values.get("decoder_start_token_id")
    start = values.get("bos_token_id")
    if tokenizer is None or tokenizer.vocabulary.bos is not None or start is None:
        return None
    return int(start) if start in tokenizer.vocabulary.specials else None


def _default_objective(network: Transformer) -> Objective:
    """What a model of this shape is commonly trained for; exports of ours say it themselves."""
    if network.config.num_source_layers:
        return SpanCorruption()
    return {"bidirectional": Masked, "causal": Causal, "prefix": PrefixLM}[network.config.visibility]()


def words_of(tokenizer: Tokenizer | None, start: int | None, end: int | None) -> Vocabulary | None:
    """The vocabulary, where a model starts (T5: with pad) or ends (llama2.c: with [BOS]) as its tokenizer does not."""
    if tokenizer is None or (start is None and end is None):
        return None
    own = tokenizer.vocabulary
    return replace(own, bos=own.bos if start is None else int(start), eos=own.eos if end is None else int(end))


FORMATS = ("hf", "llama2c")
"""What `import_run` reads."""


def import_run(source: str | Path, run: str | Path, format: str = "hf", tokenizer: str | Path | None = None) -> Path:
    """Turn a foreign model into a run directory, with its weights as the checkpoint of step 0.

    format     hf: a Hugging Face directory. llama2c: a file of llama2.c, or the directory it lies in
    tokenizer  llama2c: its tokenizer file; None looks beside the model
    """
    if format not in FORMATS:
        raise UserError(f"format={format} is none of {', '.join(FORMATS)}{nearest(format, FORMATS)}")
    if tokenizer is not None and format == "hf":
        raise UserError("a Hugging Face directory brings its own tokenizer: drop tokenizer")
    place = Path(run)
    if place.exists():
        raise UserError(f"{place} already exists: give another directory for the run")
    lm = load(source, device="cpu") if format == "hf" else _llama2c(Path(source), tokenizer)
    if lm.objective is None:
        raise UserError(f"{source} has no vocabulary head: it is no language model that a run could continue")
    return write_run(place, lm, source)


def write_run(place: Path, lm: LM, source: str | Path, **more: Any) -> Path:
    """A run directory that holds a model as its checkpoint of step 0; `source` says where it comes from.

    `more` joins recipe.yaml, for the reader of the file.
    """
    values = {
        "model": lm.config.model_dump(mode="json"),
        "heads": [asdict(head) for head in lm.network.declared.values()],
        **lm.trained(),
        "imported": str(Path(source).absolute()),
        "start": None if lm.words is None else lm.words.bos,
        **more,
    }
    with whole(place) as written:
        if lm.tokenizer is not None:
            lm.tokenizer.save(written / "tokenizer.json")
        networks = nn.ModuleDict({"model": lm.network})
        checkpoint.write(written / "checkpoints", 0, networks, {}, {"step": 0, "best_step": None})
        (written / "recipe.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return place


def _llama2c(source: Path, tokenizer: str | Path | None) -> LM:
    """A model of llama2.c: [BOS] parts the texts it was trained on, so that is what ends one, too."""
    model, beside = find_llama2c(source)
    if tokenizer is None and len(beside) != 1:
        lie = f"{len(beside)} tokenizers lie" if beside else "no tokenizer lies"
        those = ", ".join(f.name for f in beside) or "tok512.bin, tokenizer.bin or the like"
        raise UserError(f"{lie} beside {model}: give its tokenizer's file ({those})")
    file = tokenizer or beside[0]
    network = load_llama2c(model)
    words = from_llama2c(file)
    vocabulary = replace(words.vocabulary, eos=words.vocabulary.need("bos"))
    if vocabulary.size != network.config.vocab_size:
        raise UserError(
            f"{file} has {vocabulary.size} entries but {model} {network.config.vocab_size}: they do not belong together"
        )
    return LM(network, network.config.max_position, words, Causal(), words=vocabulary)
