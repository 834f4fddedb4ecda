"""The step of replaced-token objectives (`objectives.replaced`): generate, sample, discriminate.

Legend: B rows, T tokens, n targets, V vocabulary, d hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unmask.batch import Batch, Stream, Targets, TermKey
from unmask.loss import Program, Term, announced, forward_heads, head_sum, router_terms, sampled_sum, states_read
from unmask.model.heads import HeadModule, read
from unmask.objectives.base import LM, Objective
from unmask.objectives.replaced import COPY, DETECTION, GENERATOR, RECOVERY, Replaced
from unmask.vocabulary import Sampled

ACCURACY, SHARE, DETECTED, BASELINE = "generator_accuracy", "replaced", "accuracy", "always_original"
"""Figures of a step, terms that no coefficient counts: the share of masked tokens whose likeliest answer is right, the
share of them whose sample is another token, the share of right detections, and what "original" everywhere would get."""
AT_BASELINE = 0.001
"""How far a discriminator must pass the baseline to be taken to have learnt to detect anything."""


def replaced(objective: Objective) -> Program:
    """Generator's loss; one sample a target; discriminator's loss on the replaced text."""
    assert isinstance(objective, Replaced)
    name = objective.type

    def program(
        networks: Mapping[str, Any], batch: Batch, generator: torch.Generator | None = None
    ) -> dict[TermKey, Term]:
        own = {key: head for key, head in batch.heads.items() if key[0] == name}
        others = {key: head for key, head in batch.heads.items() if key[0] != name}
        terms: dict[TermKey, Term] = {}
        if others:
            left = replace(batch, heads=others, targets={key: batch.targets[key] for key in others})
            terms.update(forward_heads(networks, left, generator))
        mine = replace(batch, heads=own, targets={key: batch.targets[key] for key in own})
        filler, reader, key = networks[GENERATOR], networks["model"], (name, LM.name)
        head, targets = own[key], batch.targets[key]
        states = states_read(filler, GENERATOR, mine, generator)
        module = filler.heads[head.uses]
        total, drawn = sampled_sum(head, module, states[head.states], mine, targets)
        terms[key] = Term(total, float(targets.norm), head.coefficient)
        text = put(batch.stream, targets, targets.value)
        corrupt = put(batch.stream, targets, drawn.tokens)
        judged = states_read(reader, "model", replace(mine, stream=corrupt), generator)
        terms.update(_answers(objective, reader, judged, mine, text, corrupt))
        terms.update(_figures(name, targets, drawn))
        for network, seen in ((GENERATOR, states), ("model", judged)):
            if "router" in seen:
                terms.update(router_terms(network, seen["router"], networks[network].config, batch))
        return terms

    return program


def put(stream: Stream, targets: Targets, tokens: Tensor) -> Stream:
    """The stream with tokens (n,) at its targets; those of weight 0, which are padding, change nothing."""
    flat = stream.tokens.reshape(-1)
    assert targets.index is not None
    last = torch.full_like(targets.index, len(flat))
    where = torch.where(targets.weight > 0, targets.index, last)  # padding goes behind the end, and is cut off
    laid = torch.cat([flat, flat.new_zeros(1)]).scatter(0, where, tokens.to(flat.dtype))[:-1]
    return replace(stream, tokens=laid.view_as(stream.tokens))


# ---------------------------------------------------------------- the discriminator


def _answers(
    objective: Replaced, network: Any, states: Mapping[str, Tensor], batch: Batch, text: Stream, corrupt: Stream
) -> dict[TermKey, Term]:
    """Its terms, and of detection its accuracy beside the always-original baseline."""
    name = objective.type
    key = (name, DETECTION if (name, DETECTION) in batch.heads else RECOVERY)
    head, targets = batch.heads[key], batch.targets[key]
    norm = float(targets.norm)
    read_from, module = replace(batch, stream=corrupt), network.heads[head.uses]
    if key[1] == RECOVERY and (name, COPY) not in batch.heads:
        total = head_sum(head, module, states[head.states], read_from, targets)
        return {key: Term(total, norm, head.coefficient)}
    assert targets.index is not None
    given = corrupt.tokens.reshape(-1)[targets.index]
    same = given == text.tokens.reshape(-1)[targets.index]
    found = read(states[head.states], corrupt, head, targets.index)
    if key[1] == RECOVERY:
        copies = network.heads[COPY]
        gate = copies.project(copies.features(found)).float().squeeze(1)
        total = copy_loss(module, found, gate, targets, same)
        kept = (gate.detach().sigmoid() * targets.weight).sum()
        return {key: Term(total, norm, head.coefficient), (name, COPY): Term(kept, norm, 0.0)}
    score = module.project(module.features(found)).float().squeeze(1)
    losses = F.binary_cross_entropy_with_logits(score, (~same).to(score.dtype), reduction="none")
    right = ((score.detach() > 0) != same) * targets.weight
    return {
        key: Term((losses * targets.weight).sum(), norm, head.coefficient),
        (name, DETECTED): Term(right.sum(), norm, 0.0),
        (name, BASELINE): Term((same * targets.weight).sum(), norm, 0.0),
    }


def copy_loss(module: HeadModule, states: Tensor, gate: Tensor, targets: Targets, same: Tensor) -> Tensor:
    """Σ weight · −log(D · [the input is the token] + (1 − D) · softmax of the head at it), D = σ(gate), a scalar.

    states (n, 1, d), gate (n,), same (n,) bool. Clark et al. 2020, section 3.5 (All-Tokens MLM). A chunk's logits are
    computed again in the backward pass instead of being kept.
    """

    def chunk(x: Tensor, gate: Tensor, value: Tensor, same: Tensor, weight: Tensor) -> Tensor:
        logits = module.project(module.features(x)).float()
        spoken = F.logsigmoid(-gate) - F.cross_entropy(logits, value, reduction="none")
        copied = torch.where(same, F.logsigmoid(gate), torch.finfo(gate.dtype).min)
        return -(torch.logaddexp(spoken, copied) * weight).sum()

    size = max(32, min(1024, (1 << 22) // len(module.weight)))
    given = (states, gate, targets.value, same, targets.weight)
    parts = [
        checkpoint(chunk, *(a[i : i + size] for a in given), use_reentrant=False) for i in range(0, len(gate), size)
    ]
    return torch.stack(parts).sum()  # type: ignore[arg-type]


# ---------------------------------------------------------------- figures


def _figures(name: str, targets: Targets, drawn: Sampled) -> dict[TermKey, Term]:
    norm, weight = float(targets.norm), targets.weight
    return {
        (name, ACCURACY): Term((drawn.right * weight).sum(), norm, 0.0),
        (name, SHARE): Term(((drawn.tokens != targets.value) * weight).sum(), norm, 0.0),
    }


def replaced_norms(networks: Mapping[str, Any], batch: Batch) -> dict[TermKey, float]:
    """`loss.announced`, with the figures' norms: those of the targets that they are shares of."""
    norms = announced(networks, batch)
    for objective, head in batch.heads:
        if head == LM.name:
            norms |= {(objective, figure): norms[objective, head] for figure in (ACCURACY, SHARE)}
        elif head == DETECTION:
            norms |= {(objective, figure): norms[objective, head] for figure in (DETECTED, BASELINE)}
    return norms


def warning(figures: Mapping[str, float]) -> str | None:
    """A sentence where held-out figures show a discriminator that learns nothing; None = all is well, or no figures.

    >>> print(warning({"accuracy": 0.9, "always_original": 0.93, "replaced": 0.5, "generator_accuracy": 0.4})[:97])
    the discriminator is right at 0.900 of the tokens and "original" everywhere would be at 0.930: it
    """
    if BASELINE not in figures or figures[DETECTED] > figures[BASELINE] + AT_BASELINE:
        return None
    return (
        f'the discriminator is right at {figures[DETECTED]:.3f} of the tokens and "original" everywhere would be at '
        f"{figures[BASELINE]:.3f}: it detects nothing yet ({figures[SHARE]:.0%} of the masked tokens are replaced by "
        f"others, the generator is right at {figures[ACCURACY]:.0%}); train longer, or change objective.generator_width"
    )
