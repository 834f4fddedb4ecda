"""Held-out loss under an objective's own noise, in a stream: no logits over the vocabulary are kept."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from unmask.batch import Batch, Head, Stream, TermKey
from unmask.data.loader import Loader
from unmask.errors import UserError
from unmask.evaluation.base import device_of, evaluating, states_of, token_losses
from unmask.evaluation.intervals import ratio
from unmask.loss import Program, Term
from unmask.model.heads import read
from unmask.objectives.mixture import Part
from unmask.objectives.replaced import Replaced
from unmask.tokens.special import ROLES, Vocabulary
from unmask.train.devices import to_device


@dataclass(frozen=True)
class HeldOut:
    """Losses in nats, weighted means over all targets of the pieces that were read.

    loss               per content target: its value stands for text, an ordinary token or [UNK] (no other control
                       token, end or sentinel). It is asked of each objective's first head over the vocabulary
    accuracy           share of content targets whose token is the likeliest
    structural_loss    per other target; None where there is none
    unigram_floor      the entropy of the same content targets under add-one unigram counts of the training text
    standard_error     of `loss`, pieces being what varies; `interval` is its 95 % bootstrap interval
    terms              where there are several heads, or the step is the objective's own (`unmask.programs`): the loss
                       of every head per target of any kind, and figures. Heads over classes: how often the likeliest
                       is right (HEAD_accuracy), and how often the commonest would be (HEAD_majority)

    `loss` chooses the best checkpoint, so it is of the network that the objective keeps (`Objective.kept`), under the
    weights of training:

    - A mixture's `loss`, `accuracy` and `unigram_floor` are the means of those of its parts (`parts`), each counting
      as its coefficient and `factor` say, however many targets it has. A part that predicts no tokens is in `terms`.
    - Where the kept network says no tokens, or says them of a text that only the step makes (ELECTRA and its kin):
      the mean of its heads' terms by their coefficients. The generator's loss is the term of its head.

    What counts the pairs of a batch (contrastive) depends on the batch size here as in training.
    """

    loss: float
    accuracy: float | None
    content_targets: int
    structural_loss: float | None
    structural_targets: int
    unigram_floor: float | None
    standard_error: float | None
    interval: tuple[float, float] | None
    pieces: int
    terms: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of each part of a mixture that has content targets: loss, accuracy, unigram_floor, content_targets."""

    def figures(self) -> dict[str, float]:
        """The numbers that a training log wants; `loss` chooses the best checkpoint."""
        own = {"loss": self.loss}
        if self.accuracy is not None and self.unigram_floor is not None:
            own |= {"accuracy": self.accuracy, "unigram_floor": self.unigram_floor}
        if self.structural_loss is not None:
            own["structural_loss"] = self.structural_loss
        for part, found in self.parts.items():
            own |= {f"{part}.{k}": v for k, v in found.items() if k != "content_targets"}
        return own | {f"term_{name}": value for name, value in self.terms.items()}

    def summary(self) -> dict[str, Any]:
        """Every field, ready for JSON; terms and parts where there are some."""
        values = {f"held_out_{k}": v for k, v in vars(self).items() if k not in ("terms", "parts")}
        if self.terms:
            values["held_out_terms"] = dict(self.terms)
        if self.parts:
            values["held_out_parts"] = {part: dict(found) for part, found in self.parts.items()}
        return {**values, "held_out_interval": None if self.interval is None else list(self.interval)}


def held_out(
    networks: Mapping[str, Any],
    loader: Loader,
    vocabulary: Vocabulary,
    counts: np.ndarray | Mapping[str, np.ndarray],
    limit: int | None = None,
    program: Program | None = None,
) -> HeldOut:
    """Measure an objective's heads on the loader's first `limit` pieces, each once.

    The noise is the objective's, at the loader's keys: the same in every call. `counts` (V,) are the training
    text's, or by part those of what it asks for. Neither the batch size nor what is called in between changes the
    result, and no random state moves.
    `program` is the objective's: it gives the terms.
    """
    objective = loader.objective
    spoken = any(head.over == "vocabulary" for head in objective.heads()) and not isinstance(objective, Replaced)
    wants_terms = program is not None and (len(objective.heads()) > 1 or objective.program != "heads" or not spoken)
    total = min(limit or len(loader.pieces), len(loader.pieces))
    each = counts if isinstance(counts, Mapping) else dict.fromkeys(loader.parts, counts)
    floors = {name: unigram_losses(own, vocabulary) for name, own in each.items()}
    tokens = (
        _Tokens(list(loader.parts), floors, content_tokens(vocabulary), total) if spoken or program is None else None
    )
    terms = _Terms(objective.kept, loader.parts)
    device = device_of(next(iter(networks.values())))
    with evaluating(*networks.values()):
        for batch in loader.once(limit):
            moved = to_device(batch, device)
            if tokens is not None:
                tokens.add(batch, _answers(networks, batch, moved))
            if wants_terms and program is not None:
                terms.add(batch, program(networks, moved, None), _classified(networks, moved, terms.plain))
    if tokens is None:
        return HeldOut(terms.loss(), None, 0, None, 0, None, None, None, total, terms.named())
    return replace(tokens.summary(), terms=terms.named() if wants_terms else {})


@dataclass
class _Tokens:
    """What heads over the vocabulary say, summed piece by piece."""

    names: list[str]  # of the parts
    floors: Mapping[str, np.ndarray]
    stands_for_text: np.ndarray  # (V,)
    total: int  # pieces
    factors: dict[str, float] = field(default_factory=dict)  # of each part, as its loss counts in training

    def __post_init__(self) -> None:
        self.sums = np.zeros((self.total, 5))  # of each piece: content loss, weight, hits, floor; structural loss
        self.weights = np.zeros(self.total)  # structural
        self.part, self.asked = np.zeros(self.total, np.int64), np.zeros(self.total, np.int64)
        self.number = np.zeros(2, np.int64)

    def add(self, batch: Batch, answers: Iterable[tuple[TermKey, np.ndarray, np.ndarray]]) -> None:
        assert batch.samples is not None
        self.part[batch.samples.index] = batch.samples.objective
        for key, losses, hits in answers:
            targets, head = batch.targets[key], batch.heads[key]
            weight, value = targets.weight.astype(np.float64), targets.value
            content = self.stands_for_text[value]
            piece = _piece(batch, head, targets.index)
            inside = np.where(content, weight, 0.0)
            floor = self.floors[key[0]][value] * inside
            columns = (losses * inside, inside, hits * inside, floor, losses * (weight - inside))
            for c, column in enumerate(columns):
                np.add.at(self.sums[:, c], piece, column)
            np.add.at(self.weights, piece, weight - inside)
            np.add.at(self.asked, piece, content & (weight > 0))
            self.number += [int((weight > 0)[content].sum()), int((weight > 0)[~content].sum())]
            self.factors[key[0]] = head.coefficient

    def summary(self) -> HeldOut:
        factors = np.array([self.factors.get(name, 0.0) for name in self.names])
        found = _summarise(self.sums, self.weights, self.number, self.part, factors)
        if len(self.names) == 1:
            return found
        return replace(found, parts=_parts(self.names, self.part, self.sums, self.asked))


class _Terms:
    """What every term of a step comes to, and how often heads over classes are right."""

    def __init__(self, kept: str, parts: Mapping[str, Part]) -> None:
        self.kept, self.single = kept, len(parts) == 1
        self.plain = {name for name, part in parts.items() if part.objective.program == "heads"}
        """Parts whose targets are what the batch says they are."""
        self.sums: dict[TermKey, float] = {}
        self.norms: dict[TermKey, float] = {}
        self.coefficients: dict[TermKey, float] = {}  # of the kept network's heads
        self.right: dict[TermKey, float] = {}
        self.classes: dict[TermKey, np.ndarray] = {}  # weight of each class among the targets

    def add(
        self, batch: Batch, terms: Mapping[TermKey, Term], classified: Iterable[tuple[TermKey, np.ndarray]]
    ) -> None:
        for key, term in terms.items():
            self.sums[key] = self.sums.get(key, 0.0) + float(term.sum)
            self.norms[key] = self.norms.get(key, 0.0) + term.norm
        for key, head in batch.heads.items():
            if head.network == self.kept:
                self.coefficients[key] = head.coefficient
        for key, likeliest in classified:
            targets, head = batch.targets[key], batch.heads[key]
            value, weight = np.asarray(targets.value, np.int64), targets.weight.astype(np.float64)
            seen = np.bincount(value, weight, minlength=max(head.size, 2))
            self.right[key] = self.right.get(key, 0.0) + float(weight[likeliest == value].sum())
            self.classes[key] = self.classes.get(key, 0.0) + seen

    def named(self) -> dict[str, float]:
        """By the name of its head, PART.HEAD in a mixture; terms without a target are left out."""
        found = {self._name(key): self.sums[key] / norm for key, norm in self.norms.items() if norm}
        for key, seen in self.classes.items():
            if seen.sum():
                found[f"{self._name(key)}_accuracy"] = self.right[key] / float(seen.sum())
                found[f"{self._name(key)}_majority"] = float(seen.max() / seen.sum())
        return found

    def _name(self, key: TermKey) -> str:
        return key[1] if self.single else ".".join(key)

    def loss(self) -> float:
        """The mean of the kept network's heads by their coefficients; of its first one where none has any."""
        asked = {key: c for key, c in self.coefficients.items() if self.norms.get(key)}
        if not asked:
            raise UserError("the held-out text has no target: give a longer held-out text, or read more pieces")
        if not sum(asked.values()):
            asked = {next(iter(asked)): 1.0}
        return sum(c * self.sums[key] / self.norms[key] for key, c in asked.items()) / sum(asked.values())


def _parts(names: list[str], part: np.ndarray, sums: np.ndarray, asked: np.ndarray) -> dict[str, dict[str, float]]:
    """The losses of each part of a mixture over the pieces that it got, beside the floor of its own targets."""
    found = {}
    for number, name in enumerate(names):
        loss, weight, hits, floor, _ = sums[part == number].sum(0).tolist()
        if weight:
            count = int(asked[part == number].sum())
            figures = {"loss": loss / weight, "accuracy": hits / weight, "unigram_floor": floor / weight}
            found[name] = {**figures, "content_targets": count}
    return found


def _summarise(
    sums: np.ndarray, weights: np.ndarray, number: np.ndarray, part: np.ndarray, factors: np.ndarray
) -> HeldOut:
    """`part` (pieces,) says whose each piece is; the mean of the parts counts each by its of `factors` (P,)."""
    each = np.zeros((len(factors), 4))
    np.add.at(each, part, sums[:, :4])
    content = each[:, 1] > 0
    if not content.any():
        raise UserError("the held-out text has no content target: give a longer held-out text, or read more pieces")
    counted = factors * content if (factors * content).any() else content.astype(np.float64)
    size = np.where(content, each[:, 1], 1.0)
    share = counted / counted.sum() / size
    if len(factors) == 1:
        measured = ratio(sums[:, 0], sums[:, 1])
    else:  # parts are fixed, and the pieces of each vary: the deviations of their ratios, linearised
        off = share[part] * (sums[:, 0] - (each[:, 0] / size)[part] * sums[:, 1])
        measured = ratio(share @ each[:, 0] + len(sums) * off, np.ones(len(sums)))
    return HeldOut(
        loss=measured.value,
        accuracy=float(share @ each[:, 2]),
        content_targets=int(number[0]),
        structural_loss=float(sums[:, 4].sum() / weights.sum()) if weights.sum() else None,
        structural_targets=int(number[1]),
        unigram_floor=float(share @ each[:, 3]),
        standard_error=measured.error,
        interval=measured.interval,
        pieces=len(sums),
    )


def unigram_losses(counts: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """(V,) −log((c + 1) / (Σ c + |O|)) of each token; counts and sum run over the |O| content tokens alone,

    so the model that the floor belongs to spends nothing on other control tokens. 0 at those.
    """
    content = content_tokens(vocabulary)
    seen = np.asarray(counts)[content].astype(np.float64) + 1
    out = np.zeros(vocabulary.size)
    out[content] = np.log(seen.sum()) - np.log(seen)
    return out


def unigram_entropy(counts: np.ndarray, vocabulary: Vocabulary) -> float:
    """Nats a token of a text with these counts (V,) under its own `unigram_losses`."""
    seen = np.asarray(counts)[: vocabulary.size] * content_tokens(vocabulary)
    return float(seen @ unigram_losses(counts, vocabulary) / max(seen.sum(), 1))


def content_tokens(vocabulary: Vocabulary) -> np.ndarray:
    """(V,) bool: ordinary tokens, and [UNK], which stands for text unless it is also another control (GPT-2's is)."""
    content = ~vocabulary.is_special
    if vocabulary.unk is not None:
        content[vocabulary.unk] = all(getattr(vocabulary, role) != vocabulary.unk for role in ROLES if role != "unk")
    return content


def _answers(
    networks: Mapping[str, Any], batch: Batch, moved: Batch
) -> Iterator[tuple[TermKey, np.ndarray, np.ndarray]]:
    """(head's key, (n,) losses, (n,) hits) of each objective's first head that answers with one token a target.

    Its others say the same tokens once more, from further away (multi-token prediction, span boundaries).
    """
    keys = [k for k, h in batch.heads.items() if h.over == "vocabulary" and batch.targets[k].value.ndim == 1]
    keys = list({objective: (objective, head) for objective, head in reversed(keys)}.values())[::-1]
    if not keys:
        raise UserError("this objective predicts no tokens: it has no held-out loss per content target")
    states = states_of(networks, replace(moved, heads={key: moved.heads[key] for key in keys}))
    for key in keys:
        head = batch.heads[key]
        module, stream = networks[head.network].heads[head.uses], _stream(moved, head)
        losses, hits = token_losses(head, module, states[head.network][head.states], stream, moved.targets[key])
        yield key, losses.double().cpu().numpy(), hits.cpu().numpy()


def _classified(
    networks: Mapping[str, Any], batch: Batch, plain: Container[str]
) -> Iterator[tuple[TermKey, np.ndarray]]:
    """(head's key, (n,) its likeliest class) of heads over classes and binary ones; `plain`: of which parts."""
    known = {k: h for k, h in batch.heads.items() if k[0] in plain and h.over in ("classes", "binary")}
    asked = {k: h for k, h in known.items() if batch.targets[k].value.ndim == 1 and len(batch.targets[k].value)}
    states = states_of(networks, replace(batch, heads=asked)) if asked else {}
    for key, head in asked.items():
        module, targets = networks[head.network].heads[head.uses], batch.targets[key]
        found = read(states[head.network][head.states], _stream(batch, head), head, targets.index)
        logits = module.project(module.features(found, targets.extra)).float()
        yield key, (logits.argmax(-1) if head.over == "classes" else (logits[:, 0] > 0).long()).cpu().numpy()


def _stream(batch: Batch, head: Head) -> Stream:
    stream = batch.stream if head.stack == "stream" else batch.source
    assert stream is not None
    return stream


def _piece(batch: Batch, head: Head, index: np.ndarray | None) -> np.ndarray:
    """(n,) the global number of the piece that each target belongs to: its row and block say so."""
    stream, samples = _stream(batch, head), batch.samples
    assert samples is not None
    flat = np.arange(stream.block.size) if index is None else index if index.ndim == 1 else index[:, 0]
    blocks = int(stream.block.max()) + 1
    order = np.argsort(samples.row * blocks + samples.block, kind="stable")
    first = (samples.row * blocks + samples.block)[order]
    here = flat // stream.block.shape[1] * blocks + stream.block.reshape(-1)[flat]
    found = np.searchsorted(first, here, "right") - 1
    return np.asarray(samples.index[order][np.maximum(found, 0)])
