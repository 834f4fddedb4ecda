"""One trained model and everything it can be asked: `lm = unmask.load(run or Hugging Face directory)`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from unmask.batch import Batch, Rows, Stream
from unmask.config import ModelConfig
from unmask.data.collate import collate
from unmask.data.sampling import Pieces
from unmask.data.whole import whole
from unmask.directory import data_of, first_of
from unmask.errors import UserError
from unmask.evaluation import fill, generate, score
from unmask.evaluation.abilities import abilities, told
from unmask.evaluation.base import device_of, evaluating, objective_of, says_tokens, shape_of, tokenizer_of
from unmask.evaluation.bound import DRAWS, Draws
from unmask.evaluation.inputs import around, frame_size, framed, stream_of
from unmask.evaluation.unmasking import Order
from unmask.evaluation.usage import usage
from unmask.model.bundle import auto_classes, export_own, is_own, stock_family
from unmask.model.card import Facts, one_line, write_card
from unmask.model.heads import HeadModule, read
from unmask.model.interop import Report, export_hf
from unmask.model.permuted import permuted
from unmask.model.transformer import Transformer
from unmask.model.translate import NOTES
from unmask.model.verify import check_export, check_ids
from unmask.objectives.base import LM as TOKENS
from unmask.objectives.base import Objective, Plan
from unmask.tokens.special import ROLES, Vocabulary
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.devices import to_device

SAMPLES = (
    "",
    "The quick brown fox jumps over the lazy dog.",
    " Two  blanks, a\ttab and\na line; don't, 3.14 and 1,000.",
    "Naïve café, Ελλάδα, Москва, 北京, 🙂 and ½ ﬁ.",
)
"""What an exported tokenizer is tried on, besides each control token's spelling."""


@dataclass(frozen=True)
class LM:
    """A network with its tokenizer and objective, where they are known.

    context         tokens of a row in training, of the source's where there are two stacks: longer texts are cut
    target_context  tokens of the target's row where there are two stacks; None = what the objective needs
    words           the tokenizer's vocabulary, with the start and end tokens that the model was trained with
    report          of a Hugging Face directory: which tensors were loaded, reshaped, new and unused
    step            of a run: the update that the weights are those of
    """

    network: Transformer
    context: int
    tokenizer: Tokenizer | None = None
    objective: Objective | None = None
    target_context: int | None = None
    words: Vocabulary | None = None
    directory: Path | None = None
    report: Report | None = None
    step: int | None = None

    @property
    def config(self) -> ModelConfig:
        return self.network.config

    @property
    def vocabulary(self) -> Vocabulary:
        return self.words or tokenizer_of(self).vocabulary

    def can(self, what: Literal["score", "fill", "generate"]) -> bool:
        """Whether the model can do it: by its objective (`evaluation.abilities`), and with this network's heads."""
        if self.objective is None or self.tokenizer is None or not says_tokens(self):
            return False
        return not getattr(abilities(self.objective), what)

    def told(self, mode: str | None) -> LM:
        """This model, asked in a mode: R, S or X of UL2, a part of a mixture by name or token; None = as it is."""
        if mode is None:
            return self
        shape = shape_of(self)  # as trained, whatever the mode's own lengths
        target = shape.stream if shape.source else self.target_context
        return replace(self, objective=told(self.objective or objective_of(self), mode), target_context=target)

    # ------------------------------------------------------------ asking

    def score(
        self,
        texts: str | Sequence[str],
        context: str | Sequence[str] | None = None,
        plan: Plan | None = None,
        *,
        end: bool = False,
        only: Sequence[tuple[int, int]] | None = None,
        draws: Draws = DRAWS,
        mode: str | None = None,
    ) -> list[score.Score]:
        """Log-probabilities of texts, each with the event it belongs to: see `evaluation.score`; mode: see `told`."""
        return score.score(self.told(mode), texts, context, plan, end=end, only=only, draws=draws)

    def fill(self, text: str, top_k: int = 5, *, mode: str | None = None) -> fill.Filled:
        """The likeliest answers for each [MASK]: see `evaluation.fill`; mode: see `told`."""
        return fill.fill(self.told(mode), text, top_k)

    def generate(
        self,
        prompts: str | Sequence[str],
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        *,
        min_tokens: int = 0,
        beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        steps: int = 0,
        order: Order | None = None,
        block: int = 0,
        length: int | None = None,
        mode: str | None = None,
    ) -> list[str]:
        """Continuations of prompts: see `evaluation.generate`; mode: see `told`."""
        return generate.generate(
            self.told(mode),
            prompts,
            max_tokens,
            temperature,
            top_k,
            top_p,
            stop,
            seed,
            min_tokens=min_tokens,
            beams=beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            steps=steps,
            order=order,
            block=block,
            length=length,
        )

    # ------------------------------------------------------------ numbers

    def logits(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        decoder_input_ids: Any = None,
        prefix_length: Any = None,
        perm_mask: Any = None,
        target_mapping: Any = None,
    ) -> Tensor:
        """(B, T, V) logits at every position; with two stacks, at every position of `decoder_input_ids`.

        Without a vocabulary head: (B, T) of a head over binary (ELECTRA's discriminator), or (B, C) of one over
        classes (sentence pairs), read at each row's first token, where [CLS] stands.

        Ids and masks are (B, T) lists, arrays or tensors; padding is what `attention_mask` says. `prefix_length` is
        for prefix models: how many leading tokens of each row (one number, or one a row) see each other. Without
        it only the first token, normally [BOS], is the prefix, so that no position sees what it must predict.
        `perm_mask` and `target_mapping` are XLNet's (`model.permuted`): with the latter, (B, N, V) at its queries.
        """
        head = self._answering()
        batch = self._batch(input_ids, attention_mask, token_type_ids, decoder_input_ids, prefix_length)
        asked = 0  # from which place on the answers stand
        if perm_mask is not None or target_mapping is not None:
            batch = Batch(self._permuted(batch.stream, perm_mask, target_mapping), {}, {})
            asked = np.shape(input_ids)[1] if target_mapping is not None else 0
        with evaluating(self.network):
            states = self.network(batch)["stream"]
            rows, length, _ = states.shape
            if head.head.over == "classes":
                first = batch.stream.block.argmax(1) + length * torch.arange(rows, device=states.device)
                return head.project(head.features(read(states, batch.stream, head.head, first)))
            features = head.features(states[:, asked:].flatten(0, 1)[:, None])
            logits = head.project(features).view(rows, length - asked, -1)
            return logits[..., 0] if head.head.over == "binary" else logits

    def _batch(self, input_ids: Any, mask: Any, types: Any, decoder_input_ids: Any, prefix_length: Any) -> Batch:
        """What the network reads of ids and masks."""
        device, two = device_of(self.network), self.config.num_source_layers > 0
        typed = self.config.token_types > 0 or self.config.positions == "xlnet"
        if two != (decoder_input_ids is not None):
            need = "the decoder's ids: give decoder_input_ids" if two else "one stack: drop decoder_input_ids"
            raise UserError(f"this model has {need}")
        order = "bidirectional" if two else self.config.visibility
        first = stream_of(input_ids, order, mask, types, prefix_length, device)
        if not typed and first.token_type is not None and bool(first.token_type.any()):
            raise UserError("this model has no token types (model.token_types=0): drop token_type_ids, or give zeros")
        if not two:
            return Batch(first, {}, {})
        stream = stream_of(decoder_input_ids, "causal", device=device, name="decoder_input_ids")
        if len(stream.tokens) != len(first.tokens):
            raise UserError(f"{len(first.tokens)} rows of input_ids, {len(stream.tokens)} of decoder_input_ids")
        return Batch(stream, {}, {}, first)

    def _permuted(self, stream: Stream, perm_mask: Any, target_mapping: Any) -> Stream:
        """XLNet's masks, for models that can read in any order."""
        if self.config.num_source_layers or self.config.visibility != "bidirectional":
            raise UserError("perm_mask and target_mapping are for bidirectional models of one stack")
        if target_mapping is not None and not self.config.query_vector:
            raise UserError("target_mapping asks by appended queries: this model has no query vector (XLNet has one)")
        return permuted(stream, perm_mask, target_mapping)

    def _answering(self) -> HeadModule:
        """The head that `logits` reads: over the vocabulary, else over binary, else over classes."""
        over = {head.over: name for name, head in reversed(self.network.declared.items())}
        name = TOKENS.uses if TOKENS.uses in self.network.heads else over.get("binary") or over.get("classes")
        if name is None:
            raise UserError("this model has no vocabulary head: only its hidden states can be read")
        return cast(HeadModule, self.network.heads[name])

    def hidden(self, text: str, layers: int | Sequence[int] = -1) -> Tensor:
        """(T, d) states of a text at one layer, or (layers, T, d) at several.

        Layer 0 is what the first layer reads, k what layer k gives to the next, and the last (also −1) what heads
        read, final norm included. T counts the control tokens that `evaluation.inputs.framed` adds. Two stacks: the
        encoder's.
        """
        if not isinstance(text, str):
            raise UserError("hidden takes one text at a time, not a list, as texts differ in length: embed takes many")
        ids = tokenizer_of(self).encode(text)
        stream = self._framed([ids])
        asked = [layers] if isinstance(layers, int) else list(layers)
        stack = self.network.stack if self.network.source is None else self.network.source
        count = len(stack.depths)
        if wrong := [i for i in asked if not -count - 1 <= i <= count]:
            raise UserError(f"layer {wrong[0]} does not exist: this stack has layers 0 (embeddings) to {count}")
        seen: list[Tensor] = []
        with evaluating(self.network):
            self._states(stream, seen)
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
        return (shape.source or shape.stream) - frame_size(self.config, self.objective)

    def _framed(self, texts: Sequence[np.ndarray]) -> Stream:
        """(B, T) the texts as the first stack read them in training, one a row."""
        most = self._room()
        if (longest := max(len(t) for t in texts)) > most:
            raise UserError(f"the text has {longest} tokens and the model room for {most}: shorten it")
        examples = framed(Rows.of(texts), self.config, self.vocabulary, self.objective)
        return to_device(collate({"text": examples}, {"text": ()}), device_of(self.network)).stream

    def _states(self, stream: Stream, each: list[Tensor] | None = None) -> Tensor:
        """The first stack's final states (B, T, d); `each` receives those of every depth."""
        if self.network.source is None:
            return self.network.decode(stream, states=each)
        return self.network.encode(stream, states=each)

    # ------------------------------------------------------------ writing

    def export(
        self,
        directory: str | Path,
        license: str | None = None,
        language: str | Sequence[str] | None = None,
        datasets: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Write a Hugging Face directory with a model card, reload it with transformers, and refuse it if it differs.

        Compared are logits, the tokenizer's ids on sample texts and control ids. A model that no class of the
        library computes is written with its own code (`modeling_unmask.py`). `license`, `language` and `datasets` go
        into the card as they are. Returns `directory`, `difference` (the largest of logits), `left_out` (tensors that
        the stock class has no place for), `own_code` and `step`.
        """
        one_line(license=license, language=language, dataset=datasets)
        if any(p.dtype != torch.float32 for p in self.network.parameters()):
            raise UserError("this model was loaded in bf16, which rounds its weights: load it in fp32 to export it")
        place = Path(directory)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise UserError(f"{place} already holds files: give another directory, or empty it")
        if place.exists():
            place.rmdir()
        with whole(place) as written:
            try:
                facts = self._write(written)
            except UserError as error:  # the directory has its name only once it is whole
                raise UserError(str(error).replace(str(written), str(place))) from error
            write_card(written, replace(facts, license=license, language=language, datasets=datasets), self.directory)
        return {
            "directory": str(place),
            "difference": facts.difference,
            "left_out": list(facts.left_out),
            "own_code": facts.own_code,
            "step": self.step,
        }

    def _write(self, written: Path) -> Facts:
        """Write everything but the card, and compare it with this model."""
        ids = self._ids()
        left_out = (export_own if stock_family(self.config) is None else export_hf)(self.network, written, ids)
        if self.tokenizer is not None:
            self.tokenizer.save_hf(written, around(self.objective, self.config), max_length=self.context)
        notes = {"visibility": self.config.visibility, **self.trained()}
        (written / NOTES).write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
        difference = check_export(self.network, written, self._samples())
        check_ids(written, ids)
        return self._facts(written, difference, left_out)

    def _samples(self) -> dict[str, list[int]]:
        """Texts, control tokens among them, and the ids that the first stack reads of each."""
        if self.tokenizer is None:
            return {}
        names = [self.tokenizer.token(i) for role in ROLES if (i := getattr(self.vocabulary, role)) is not None]
        texts = [*SAMPLES, *(f"a {name} b" for name in dict.fromkeys(names))]
        opening, closing = around(self.objective, self.config)
        last = (closing,) if isinstance(closing, str) else closing or ()
        before, after = ([self.vocabulary.need(r) for r in side] for side in ((opening,) if opening else (), last))
        return {t: [*before, *self.tokenizer.encode_with_specials(t).tolist(), *after] for t in texts}

    def _facts(self, written: Path, difference: float, left_out: Sequence[str]) -> Facts:
        """What a model card says that the run's files do not."""
        return Facts(
            config=self.config,
            parameters=sum(p.numel() for name, p in self.network.named_parameters() if name not in set(left_out)),
            difference=difference,
            classes=(classes := auto_classes(written)),
            usage=usage(self, classes),
            heads=tuple(self.network.declared),
            own_code=is_own(written),
            objective=self.trained()["objective"],
            context=self.context,
            target_context=self.target_context,
            tokenizer=self.tokenizer is not None,
            data=data_of(self.directory),
            first_data=data_of(first_of(self.directory)),
            left_out=tuple(left_out),
            step=self.step,
        )

    def trained(self) -> dict[str, Any]:
        """How it was trained, ready for JSON and YAML: what `loading` reads again."""
        objective = None if self.objective is None else self.objective.model_dump(mode="json")
        trained: dict[str, Any] = {
            "objective": objective,
            "context": self.context,
            "target_context": self.target_context,
        }
        head = self.network.declared.get(TOKENS.uses)
        if head is not None and head.name != TOKENS.name:  # says tokens, but not as the module's name has it
            trained["head"] = head.name
        if self.tokenizer is not None and self.vocabulary.eos != self.tokenizer.vocabulary.eos:
            trained["end"] = self.vocabulary.eos
        return trained

    def _ids(self) -> dict[str, int | None]:
        """Token ids for config.json by role."""
        if self.tokenizer is None:
            return {}
        found = {role: getattr(self.vocabulary, role) for role in ROLES}
        return {**found, "decoder_start": self.vocabulary.bos}
