"""One trained model and everything it can be asked: `lm = unmask.load(run or Hugging Face directory)`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import yaml
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor, nn

from unmask.batch import Batch, Rows, Stream
from unmask.config import ModelConfig
from unmask.data.collate import collate
from unmask.data.formats import from_llama2c
from unmask.data.sampling import Pieces
from unmask.data.special import ROLES, Vocabulary
from unmask.data.tokenizer import Tokenizer
from unmask.data.whole import whole
from unmask.errors import UserError, nearest
from unmask.evaluate import fill, generate, score
from unmask.evaluate.base import device_of, evaluating, shape_of, tokenizer_of
from unmask.evaluate.inputs import frame_size, framed, stream_of
from unmask.model.heads import HeadModule
from unmask.model.interop import Report, check_export, export_hf, load_hf
from unmask.model.llama2c import find_llama2c, load_llama2c
from unmask.model.transformer import Transformer
from unmask.model.translate import NOTES, first_fault, read_json, read_notes
from unmask.objectives import AnyObjective, Causal, Masked, PrefixLM, SpanCorruption
from unmask.objectives.base import LM as TOKENS
from unmask.objectives.base import Objective, Plan
from unmask.train import checkpoint
from unmask.train.devices import choose_device, to_device


@dataclass(frozen=True)
class LM:
    """A network with its tokenizer and objective, where they are known.

    context         tokens of a row in training, of the source's where there are two stacks: longer texts are cut
    target_context  tokens of the target's row where there are two stacks; None = what the objective needs
    words           the tokenizer's vocabulary, with the start and end tokens that the model was trained with
    report          of a Hugging Face directory: which tensors were loaded, reshaped, new and unused
    """

    network: Transformer
    context: int
    tokenizer: Tokenizer | None = None
    objective: Objective | None = None
    target_context: int | None = None
    words: Vocabulary | None = None
    directory: Path | None = None
    report: Report | None = None

    @property
    def config(self) -> ModelConfig:
        return self.network.config

    @property
    def vocabulary(self) -> Vocabulary:
        return self.words or tokenizer_of(self).vocabulary

    def can(self, what: Literal["score", "fill", "generate"]) -> bool:
        """Whether the model was trained for it: masked models fill, span corruption fills and generates."""
        if self.objective is None or self.tokenizer is None:
            return False
        fits = {"score": ("left_to_right", "pseudo", "infill"), "fill": ("pseudo", "infill")}
        return self.objective.plan in fits.get(what, ("left_to_right", "infill"))

    # ------------------------------------------------------------ asking

    def score(
        self,
        texts: str | Sequence[str],
        context: str | Sequence[str] | None = None,
        plan: Plan | None = None,
        *,
        end: bool = False,
    ) -> list[score.Score]:
        """Log-probabilities of texts, each with the event it belongs to: see `evaluate.score`."""
        return score.score(self, texts, context, plan, end=end)

    def fill(self, text: str, top_k: int = 5) -> fill.Filled:
        """The likeliest answers for each [MASK]: see `evaluate.fill`."""
        return fill.fill(self, text, top_k)

    def generate(
        self,
        prompts: str | Sequence[str],
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
    ) -> list[str]:
        """Continuations of prompts: see `evaluate.generate`."""
        return generate.generate(self, prompts, max_tokens, temperature, top_k, top_p, stop, seed)

    # ------------------------------------------------------------ numbers

    def logits(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        decoder_input_ids: Any = None,
        prefix_length: Any = None,
    ) -> Tensor:
        """(B, T, V) logits at every position; with two stacks, at every position of `decoder_input_ids`.

        Ids and masks are (B, T) lists, arrays or tensors; padding is what `attention_mask` says. `prefix_length` is
        for prefix models: how many leading tokens of each row (one number, or one a row) see each other. Without
        it only the first token, normally [BOS], is the prefix, so that no position sees what it must predict.
        """
        if TOKENS.uses not in self.network.heads:
            raise UserError("this model has no vocabulary head: only its hidden states can be read")
        device = device_of(self.network)
        two = self.config.num_source_layers > 0
        if two != (decoder_input_ids is not None):
            need = "the decoder's ids: give decoder_input_ids" if two else "one stack: drop decoder_input_ids"
            raise UserError(f"this model has {need}")
        order = "bidirectional" if two else self.config.visibility
        first = stream_of(input_ids, order, attention_mask, token_type_ids, prefix_length, device)
        if two:
            stream = stream_of(decoder_input_ids, "causal", device=device, name="decoder_input_ids")
            if len(stream.tokens) != len(first.tokens):
                raise UserError(f"{len(first.tokens)} rows of input_ids, {len(stream.tokens)} of decoder_input_ids")
            batch = Batch(stream, {}, {}, first)
        else:
            batch = Batch(first, {}, {})
        head = cast(HeadModule, self.network.heads[TOKENS.uses])
        with evaluating(self.network):
            states = self.network(batch)["stream"]
            return head.project(head.features(states.flatten(0, 1)[:, None])).view(*states.shape[:2], -1)

    def hidden(self, text: str, layers: int | Sequence[int] = -1) -> Tensor:
        """(T, d) states of a text at one layer, or (layers, T, d) at several.

        Layer 0 is the sum of the embeddings, k the output of layer k, and the last (also −1) what heads read, final
        norm included. T counts the control tokens that `evaluate.inputs.framed` adds. Two stacks: the encoder's.
        """
        ids = tokenizer_of(self).encode(text)
        stream = self._framed([ids])
        asked = [layers] if isinstance(layers, int) else list(layers)
        stack = self.network.stack if self.network.source is None else self.network.source
        count = len(stack.layers)
        if wrong := [i for i in asked if not -count - 1 <= i <= count]:
            raise UserError(f"layer {wrong[0]} does not exist: this stack has layers 0 (embeddings) to {count}")
        seen: list[Tensor] = []
        hooks = [stack.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))]
        hooks += [layer.register_forward_hook(lambda _, given, out: seen.append(out)) for layer in stack.layers]
        try:
            with evaluating(self.network):
                seen[-1:] = [self._states(stream)]
        finally:
            for hook in hooks:
                hook.remove()
        states = torch.stack([seen[i][0] for i in asked]).cpu()
        return states[0] if isinstance(layers, int) else states

    def embed(self, texts: str | Sequence[str], batch_size: int = 32) -> Tensor:
        """(N, d) one vector a text: the mean of the last states over its tokens, control tokens included.

        A text beyond the trained length is read in pieces, each with its control tokens.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        longest = self._room()
        ids = tokenizer_of(self).encode_batch(texts)
        parts: list[tuple[int, np.ndarray]] = []
        for i, text in enumerate(ids):
            cut = Pieces.cut(np.array([0, len(text)]), longest)
            parts += [(i, text[b : b + n]) for b, n in zip(cut.begin, cut.length, strict=True)] or [(i, text)]
        parts.sort(key=lambda part: -len(part[1]))
        total = torch.zeros(len(texts), self.config.hidden_size)
        count = torch.zeros(len(texts), 1)
        with evaluating(self.network):
            for begin in range(0, len(parts), batch_size):
                part = parts[begin : begin + batch_size]
                stream = self._framed([text for _, text in part])
                real = (stream.block != 0)[..., None]
                which = torch.tensor([i for i, _ in part])
                total.index_add_(0, which, (self._states(stream) * real).sum(1).float().cpu())
                count.index_add_(0, which, real.sum(1).float().cpu())
        return total / count

    def _room(self) -> int:
        """How many tokens of text the first stack was trained to read at once."""
        shape = shape_of(self)
        return (shape.source or shape.stream) - frame_size(self.config)

    def _framed(self, texts: Sequence[np.ndarray]) -> Stream:
        """(B, T) the texts as the first stack read them in training, one a row."""
        most = self._room()
        if (longest := max(len(t) for t in texts)) > most:
            raise UserError(f"the text has {longest} tokens and the model room for {most}: shorten it")
        examples = framed(Rows.of(texts), self.config, self.vocabulary)
        return to_device(collate({"text": examples}, {"text": ()}), device_of(self.network)).stream

    def _states(self, stream: Stream) -> Tensor:
        return self.network.decode(stream) if self.network.source is None else self.network.encode(stream)

    # ------------------------------------------------------------ writing

    def export(self, directory: str | Path) -> dict[str, Any]:
        """Write a Hugging Face directory, reload it with transformers and compare logits; refused if they differ.

        Returns `directory`, `difference` (the largest, over random rows) and `left_out` (tensors that the stock
        class has no place for).
        """
        place = Path(directory)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise UserError(f"{place} already holds files: give another directory, or empty it")
        if place.exists():
            place.rmdir()
        with whole(place) as written:
            left_out = export_hf(self.network, written, self._ids())
            if self.tokenizer is not None:
                self.tokenizer.save_hf(written, self._around(), max_length=self.context)
            notes = {**read_notes(written), "visibility": self.config.visibility, **self._trained()}
            (written / NOTES).write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
            difference = check_export(self.network, written)
        report = {"directory": str(place), "difference": difference, "left_out": list(left_out)}
        if self.config.visibility == "prefix":
            report["note"] = (
                "the stock class reads the prefix causally unless it is given a 4-D mask: see README.md there"
            )
        return report

    def _trained(self) -> dict[str, Any]:
        """The keys of `_Trained`, ready for JSON and YAML."""
        objective = None if self.objective is None else self.objective.model_dump(mode="json")
        trained = {"objective": objective, "context": self.context, "target_context": self.target_context}
        other_end = self.tokenizer is not None and self.vocabulary.eos != self.tokenizer.vocabulary.eos
        return {**trained, "end": self.vocabulary.eos} if other_end else trained

    def _around(self) -> tuple[str | None, str | None]:
        """The roles of the control tokens around a text that the first stack reads."""
        if self.config.num_source_layers:
            return (None, "eos") if isinstance(self.objective, SpanCorruption) else (None, None)
        return ("cls", "sep") if self.config.visibility == "bidirectional" else ("bos", None)

    def _ids(self) -> dict[str, int | None]:
        """Token ids for config.json by role."""
        if self.tokenizer is None:
            return {}
        found = {role: getattr(self.vocabulary, role) for role in ROLES}
        return {**found, "decoder_start": self.vocabulary.bos}


# ---------------------------------------------------------------- loading


class _Trained(BaseModel):
    """How a model was trained: what loading reads of an export's unmask.json; other keys pass."""

    objective: AnyObjective | None = None
    context: int | None = Field(None, ge=1)
    target_context: int | None = Field(None, ge=1)
    end: int | None = None


class _Run(BaseModel):
    """What loading reads of a run's recipe.yaml; other keys pass."""

    model: ModelConfig
    objective: AnyObjective
    context: int = Field(ge=1)
    target_context: int | None = Field(None, ge=1)
    start: int | None = None
    end: int | None = None


def load(path: str | Path, which: Literal["last", "best"] | int = "last", device: str = "auto") -> LM:
    """The model of a run directory (`which` checkpoint: last, best or a step) or of a Hugging Face directory."""
    place = Path(path)
    if (place / "recipe.yaml").is_file():
        lm = _load_run(place, which)
    elif (place / "config.json").is_file():
        lm = _load_hf(place)
    elif place.is_dir():
        raise UserError(f"{place} is no model: it has neither recipe.yaml (a run) nor config.json (Hugging Face)")
    else:
        raise UserError(f"{place} does not exist: give a run directory or a Hugging Face model directory")
    if lm.tokenizer is not None and lm.vocabulary.size > lm.config.vocab_size:
        raise UserError(
            f"{place}: the tokenizer has {lm.vocabulary.size} entries but the model's table {lm.config.vocab_size} "
            "rows: they do not belong together"
        )
    lm.network.to(choose_device(device)).eval()
    return lm


def _load_run(place: Path, which: Literal["last", "best"] | int) -> LM:
    file = place / "recipe.yaml"
    try:
        run = _Run.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError) as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else " ".join(str(error).split())
        raise UserError(f"{file} does not describe a run's model, objective and context: {fault}") from error
    found = _checkpoint(place, which)
    network = Transformer(run.model, run.objective.heads())
    checkpoint.load_model(nn.ModuleDict({"model": network}), found)
    tokenizer = Tokenizer.load(place) if (place / "tokenizer.json").exists() else None
    words = _words(tokenizer, run.start, run.end)
    return LM(network, run.context, tokenizer, run.objective, run.target_context, words, place)


def _checkpoint(place: Path, which: Literal["last", "best"] | int) -> Path:
    folder = place / "checkpoints"
    if which == "last":
        found, passed = checkpoint.newest(folder)
        if found is None:
            damaged = f" (unusable: {', '.join(passed)})" if passed else ""
            raise UserError(f"{place} is a run without a whole checkpoint{damaged}: resume it first")
        return found
    found = checkpoint.best_checkpoint(folder) if which == "best" else checkpoint.find(folder).whole.get(int(which))
    if found is None:
        steps = ", ".join(str(s) for s in checkpoint.find(folder).whole) or "none"
        raise UserError(f"{place} has no checkpoint '{which}': its whole checkpoints are at steps {steps}")
    return found


def _load_hf(place: Path) -> LM:
    network, report = load_hf(place)
    tokenizer = Tokenizer.load(place) if (place / "tokenizer.json").exists() else None
    try:
        trained = _Trained.model_validate(read_notes(place))
    except ValidationError as error:
        raise UserError(f"{place / NOTES} does not say how the model was trained: {first_fault(error)}") from error
    positions = network.config.max_position
    if trained.context is None:  # not an export of ours: nothing says how long the rows of training were
        trained = _Trained(objective=trained.objective, context=positions, target_context=positions, end=trained.end)
    objective = (trained.objective or _default_objective(network)) if TOKENS.uses in network.heads else None
    start = read_json(place / "config.json").get("decoder_start_token_id") if network.config.num_source_layers else None
    words = _words(tokenizer, start, trained.end)
    return LM(network, trained.context or positions, tokenizer, objective, trained.target_context, words, place, report)


def _default_objective(network: Transformer) -> Objective:
    """What a model of this shape is commonly trained for; exports of ours say it themselves."""
    if network.config.num_source_layers:
        return SpanCorruption()
    return {"bidirectional": Masked, "causal": Causal, "prefix": PrefixLM}[network.config.visibility]()


def _words(tokenizer: Tokenizer | None, start: int | None, end: int | None) -> Vocabulary | None:
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
    values = {
        "model": lm.config.model_dump(mode="json"),
        **lm._trained(),
        "imported": str(source),
        "start": None if lm.words is None else lm.words.bos,
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
    file = tokenizer or beside
    if file is None:
        raise UserError(f"no tokenizer lies beside {model}: give its file (tok512.bin, tokenizer.bin or the like)")
    network = load_llama2c(model)
    words = from_llama2c(file)
    vocabulary = replace(words.vocabulary, eos=words.vocabulary.need("bos"))
    if vocabulary.size != network.config.vocab_size:
        raise UserError(
            f"{file} has {vocabulary.size} entries but {model} {network.config.vocab_size}: they do not belong together"
        )
    return LM(network, network.config.max_position, words, Causal(), words=vocabulary)
