"""Held-out loss under an objective's own noise, in a stream: no logits are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from unmask.batch import Batch, Head, TermKey
from unmask.data.loader import Loader
from unmask.errors import UserError
from unmask.evaluate.base import device_of, evaluating, states_of, token_losses
from unmask.evaluate.intervals import ratio
from unmask.loss import Program
from unmask.tokens.special import ROLES, Vocabulary
from unmask.train.devices import to_device


@dataclass(frozen=True)
class HeldOut:
    """Losses in nats, weighted means over all targets of the pieces that were read.

    loss               per content target: its value stands for text, an ordinary token or [UNK] (no other control
                       token, end or sentinel)
    accuracy           share of content targets whose token is the likeliest
    structural_loss    per other target; None where there is none
    unigram_floor      the entropy of the same content targets under add-one unigram counts of the training text
    standard_error     of `loss`, pieces being what varies; `interval` is its 95 % bootstrap interval
    terms              what each term of an objective's own step comes to (`unmask.programs`): losses of all its heads
                       and its figures, without coefficients

    An objective that predicts no tokens has terms alone: `loss` is then their sum with coefficients, the training
    loss. What counts the pairs of a batch (contrastive) depends on the batch size here as in training.
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
    counts: np.ndarray,
    limit: int | None = None,
    program: Program | None = None,
) -> HeldOut:
    """Measure the heads over the vocabulary on the loader's first `limit` pieces, each once.

    The noise is the objective's, at the loader's keys: the same in every call. `counts` (V,) are the training
    text's. Neither the batch size nor what is called in between changes the result, and no random state moves.
    `program` is the objective's: it gives the terms of one with a step of its own, or without a head over tokens.
    """
    objective = loader.objective
    tokens = any(head.over == "vocabulary" for head in objective.heads())
    if program is not None and (objective.program != "heads" or not tokens):
        total = min(limit or len(loader.pieces), len(loader.pieces))
        terms, loss = _terms(program, networks, loader, limit)
        if not tokens:
            return HeldOut(loss, None, 0, None, 0, None, None, None, total, terms)
        return replace(held_out(networks, loader, vocabulary, counts, limit), terms=terms)
    total = min(limit or len(loader.pieces), len(loader.pieces))
    sums = np.zeros((total, 5))  # of each piece: content loss, weight, hits, floor; structural loss
    weights = np.zeros(total)  # structural
    part, asked = np.zeros(total, np.int64), np.zeros(total, np.int64)  # of each piece: whose it is, content targets
    number = np.zeros(2, np.int64)
    floor, stands_for_text = unigram_losses(counts, vocabulary), content_tokens(vocabulary)
    device = device_of(next(iter(networks.values())))
    with evaluating(*networks.values()):
        for batch in loader.once(limit):
            assert batch.samples is not None
            part[batch.samples.index] = batch.samples.objective
            for key, losses, hits in _answers(networks, batch, device):
                targets = batch.targets[key]
                weight, value = targets.weight.astype(np.float64), targets.value
                content = stands_for_text[value]
                piece = _piece(batch, batch.heads[key], targets.index)
                inside = np.where(content, weight, 0.0)
                columns = (losses * inside, inside, hits * inside, floor[value] * inside, losses * (weight - inside))
                for c, column in enumerate(columns):
                    np.add.at(sums[:, c], piece, column)
                np.add.at(weights, piece, weight - inside)
                np.add.at(asked, piece, content & (weight > 0))
                number += [int((weight > 0)[content].sum()), int((weight > 0)[~content].sum())]
    found = _summarise(sums, weights, number)
    names = list(loader.parts)
    return found if len(names) == 1 else replace(found, parts=_parts(names, part, sums, asked))


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


def _terms(
    program: Program, networks: Mapping[str, Any], loader: Loader, limit: int | None
) -> tuple[dict[str, float], float]:
    """Each term's mean over all pieces by the name of its head, and the loss that they make."""
    sums: dict[TermKey, float] = {}
    norms: dict[TermKey, float] = {}
    coefficients: dict[TermKey, float] = {}
    device = device_of(next(iter(networks.values())))
    with evaluating(*networks.values()):
        for batch in loader.once(limit):
            for key, term in program(networks, to_device(batch, device), None).items():
                sums[key] = sums.get(key, 0.0) + float(term.sum)
                norms[key] = norms.get(key, 0.0) + term.norm
                coefficients[key] = term.coefficient
    means = {key: sums[key] / norms[key] for key in sums if norms[key]}
    if not means:
        raise UserError("the held-out text has no target: give a longer held-out text, or read more pieces")
    return {key[1]: value for key, value in means.items()}, sum(coefficients[k] * v for k, v in means.items())


def _summarise(sums: np.ndarray, weights: np.ndarray, number: np.ndarray) -> HeldOut:
    content = sums[:, 1].sum()
    if content == 0:
        raise UserError("the held-out text has no content target: give a longer held-out text, or read more pieces")
    measured = ratio(sums[:, 0], sums[:, 1])
    return HeldOut(
        loss=measured.value,
        accuracy=float(sums[:, 2].sum() / content),
        content_targets=int(number[0]),
        structural_loss=float(sums[:, 4].sum() / weights.sum()) if weights.sum() else None,
        structural_targets=int(number[1]),
        unigram_floor=float(sums[:, 3].sum() / content),
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


def content_tokens(vocabulary: Vocabulary) -> np.ndarray:
    """(V,) bool: ordinary tokens, and [UNK], which stands for text unless it is also another control (GPT-2's is)."""
    content = ~vocabulary.is_special
    if vocabulary.unk is not None:
        content[vocabulary.unk] = all(getattr(vocabulary, role) != vocabulary.unk for role in ROLES if role != "unk")
    return content


def _answers(
    networks: Mapping[str, Any], batch: Batch, device: torch.device
) -> Iterator[tuple[TermKey, np.ndarray, np.ndarray]]:
    """(head's key, (n,) losses, (n,) hits) of each objective's first head that answers with one token a target.

    Its others say the same tokens once more, from further away (multi-token prediction, span boundaries).
    """
    keys = [k for k, h in batch.heads.items() if h.over == "vocabulary" and batch.targets[k].value.ndim == 1]
    keys = list({objective: (objective, head) for objective, head in reversed(keys)}.values())[::-1]
    if not keys:
        raise UserError("this objective predicts no tokens: it has no held-out loss per content target")
    moved = to_device(batch, device)
    states = states_of(networks, replace(moved, heads={key: moved.heads[key] for key in keys}))
    for key in keys:
        head = batch.heads[key]
        stream = moved.stream if head.stack == "stream" else moved.source
        assert stream is not None
        module = networks[head.network].heads[head.uses]
        losses, hits = token_losses(head, module, states[head.network][head.states], stream, moved.targets[key])
        yield key, losses.double().cpu().numpy(), hits.cpu().numpy()


def _piece(batch: Batch, head: Head, index: np.ndarray | None) -> np.ndarray:
    """(n,) the global number of the piece that each target belongs to: its row and block say so."""
    stream = batch.stream if head.stack == "stream" else batch.source
    samples = batch.samples
    assert stream is not None and samples is not None
    flat = np.arange(stream.block.size) if index is None else index if index.ndim == 1 else index[:, 0]
    blocks = int(stream.block.max()) + 1
    order = np.argsort(samples.row * blocks + samples.block, kind="stable")
    first = (samples.row * blocks + samples.block)[order]
    here = flat // stream.block.shape[1] * blocks + stream.block.reshape(-1)[flat]
    found = np.searchsorted(first, here, "right") - 1
    return np.asarray(samples.index[order][np.maximum(found, 0)])
