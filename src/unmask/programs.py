"""Programs by name: how a step turns a batch into terms, as an objective asks for it (`Objective.program`).

A program is made from its objective, whose settings it reads; the default is one forward pass and its heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.batch import Batch, TermKey
from unmask.electra import replaced, replaced_norms
from unmask.errors import UserError
from unmask.loss import Program, Term, announced, forward_heads, head_sum, router_terms, states_read
from unmask.model.heads import read
from unmask.objectives.base import Objective
from unmask.objectives.contrastive import PASSAGE, QUERY, Contrastive
from unmask.objectives.mixture import parts_of


def program_of(objective: Objective) -> Program:
    """The training step of an objective."""
    make = PROGRAMS.get(objective.program)
    if make is None:
        raise UserError(
            f"objective {objective.type} asks for program '{objective.program}' (known: {', '.join(PROGRAMS)})"
        )
    return make(objective)


Norms = Callable[[Mapping[str, Any], Batch], dict[TermKey, float]]
"""(networks, batch) → the norm of every term that is a sum, before any forward pass."""


def norms_of(objective: Objective) -> Norms:
    """`loss.announced`, or a program's own, which knows its further terms."""
    return NORMS.get(objective.program, announced)


# ---------------------------------------------------------------- contrastive pairs


def contrastive(objective: Objective) -> Program:
    """InfoNCE over the pairs of a micro-batch (van den Oord et al. 2018, equation 4), other heads as usual.

    s_ij = similarity(query_i, passage_j) / temperature
    query     Σ_i −log softmax_j(s_ij) at j = i
    passage   Σ_j −log softmax_i(s_ij) at i = j

    In a mixture each contrastive part compares its own pairs, after one pass over the texts of all parts.
    """
    of_part = {name: part.objective for name, part in parts_of(objective).items()}
    pairs = {name: own for name, own in of_part.items() if isinstance(own, Contrastive)}
    assert pairs

    def program(
        networks: Mapping[str, Any], batch: Batch, generator: torch.Generator | None = None
    ) -> dict[TermKey, Term]:
        network = networks["model"]
        states = states_read(network, "model", batch, generator)
        terms: dict[TermKey, Term] = {}
        embedded: dict[TermKey, Tensor] = {}
        for key, head in batch.heads.items():
            module, targets = network.heads[head.uses], batch.targets[key]
            if key[0] in pairs and head.name in (QUERY, PASSAGE):
                found = module.features(read(states[head.stack], batch.stream, head, targets.index))
                embedded[key] = module.project(found).float()
            else:
                total = head_sum(head, module, states[head.states], batch, targets)
                terms[key] = Term(total, float(targets.norm), head.coefficient)
        if "router" in states:
            terms.update(router_terms("model", states["router"], network.config, batch))
        for name, own in pairs.items():
            keys = (name, QUERY), (name, PASSAGE)
            query, passage = (embedded[key] for key in keys)
            losses = in_batch(query, passage, batch.targets[keys[0]].weight > 0, own)
            for key, loss in zip(keys, losses, strict=True):
                terms[key] = Term(loss, float(batch.targets[key].norm), batch.heads[key].coefficient)
        return terms

    return program


def in_batch(query: Tensor, passage: Tensor, real: Tensor, objective: Contrastive) -> tuple[Tensor, Tensor]:
    """Σ loss of finding the passage of each query, and the query of each passage; (n, E) each, `real` (n,) bool.

    What is not real is no choice, and has no loss. In the precision of the embeddings whatever autocast says: in bf16 a
    cosine is off by 0.002, which a temperature of 0.05 makes 0.04 of a logit, and sums of losses lose their digits.
    """
    with torch.autocast(query.device.type, enabled=False):
        if objective.similarity == "cosine":
            query, passage = F.normalize(query, dim=-1), F.normalize(passage, dim=-1)
        scores = query @ passage.t() / objective.temperature
        own = torch.arange(len(scores), device=scores.device)
        sums = []
        for choices in (scores, scores.t()):
            log = choices.masked_fill(~real, torch.finfo(scores.dtype).min).log_softmax(-1)
            sums.append(-(torch.where(real, log[own, own], 0.0)).sum())
        return sums[0], sums[1]


PROGRAMS: dict[str, Callable[[Objective], Program]] = {
    "heads": lambda objective: forward_heads,
    "contrastive": contrastive,
    "replaced": replaced,
}
"""Name → what makes the program of an objective."""
NORMS: dict[str, Norms] = {"replaced": replaced_norms}
"""Name → norms of a program with more sums than its heads'."""
