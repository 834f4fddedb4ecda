"""The row of ELECTRA: generator, sampling and discriminator together, beside the peer's discriminator alone.

Generator and discriminator read 32 × 128 tokens of which 15 % are masked. The peer reads what our generator made of
them at step 0, and has the same labels: `transformers` trains no generator (ElectraForPreTraining is given its text).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.batch import Batch, Examples, Targets, full, starts
from unmask.bench.base import OURS, Row, Worker
from unmask.bench.kinds import ENCODER, WIDTH
from unmask.bench.steps import (
    BATCH,
    COMPILED,
    LENGTH,
    ROWS,
    WEIGHTS,
    drawn,
    peer_sides,
    read,
    save,
    their_loss,
    trained,
    write_weights,
)
from unmask.data.collate import collate
from unmask.electra import put
from unmask.loss import Program, sampled_sum
from unmask.model.interop import load_hf
from unmask.networks import batch_flops, networks_of
from unmask.objectives.base import LM
from unmask.objectives.replaced import DETECTION, GENERATOR, Replaced
from unmask.programs import program_of
from unmask.train.devices import to_device

OBJECTIVE = Replaced()
MASK = 4
"""Any control token does: it is read like another."""


def _networks(folder: Path) -> nn.ModuleDict:
    """The peer's discriminator as ours, and a generator at random whose tables are the discriminator's."""
    heads = [head for head in OBJECTIVE.heads() if head.network == "model"]
    model, _ = load_hf(folder / WEIGHTS, heads)
    networks = networks_of(OBJECTIVE, model.config)
    networks["model"].load_state_dict(model.state_dict())
    return networks


def _batch(held: Mapping[str, np.ndarray]) -> Batch:
    text, at = held["tokens"].reshape(-1), np.flatnonzero(held["asked"])
    shown = text.copy()
    shown[at] = MASK
    targets = {
        LM.name: Targets.at(at, text[at].astype(np.int64), draw=held["draw"]),
        DETECTION: Targets.at(np.arange(text.size), np.zeros(text.size, np.float32)),
    }
    examples = Examples(full(shown, starts([LENGTH] * ROWS)), targets)
    return collate({OBJECTIVE.type: examples}, {OBJECTIVE.type: OBJECTIVE.heads()})


def _corrupted(networks: nn.ModuleDict, batch: Batch) -> Tensor:
    """(B, T) the text with the generator's samples, as the step draws them."""
    key = (OBJECTIVE.type, LM.name)
    moved = to_device(batch, torch.device("cpu"))
    generator: Any = networks[GENERATOR]
    head, targets = moved.heads[key], moved.targets[key]
    with torch.no_grad():
        _, drawn = sampled_sum(head, generator.heads[head.uses], generator(moved)[head.states], moved, targets)
    return put(moved.stream, targets, drawn.tokens).tokens


def _prepare(folder: Path) -> None:
    from transformers import ElectraConfig, ElectraForPreTraining

    settings = ElectraConfig(**ENCODER, embedding_size=WIDTH)
    write_weights(ElectraForPreTraining(settings), folder)
    held = drawn()
    held["draw"] = np.random.default_rng(1).random(int(held["asked"].sum()))
    held["corrupted"] = _corrupted(_networks(folder), _batch(held)).numpy()
    save(folder / BATCH, held)


def _theirs(folder: Path) -> dict[str, Tensor]:
    held = read(folder)
    labels = torch.from_numpy((held["corrupted"] != held["tokens"]).astype(np.int64))
    return {"input_ids": torch.from_numpy(held["corrupted"].astype(np.int64)), "labels": labels}


def _ours(folder: Path) -> Worker:
    networks = _networks(folder)
    program: Any = program_of(OBJECTIVE)
    config: Any = networks["model"].config
    batch = _batch(read(folder))
    return trained(networks, [batch], ROWS * LENGTH, program, lambda b: batch_flops(config, b, OBJECTIVE))


def _check(folder: Path) -> tuple[float, float]:
    """The discriminators' losses, on the same replaced tokens."""
    networks: Any = _networks(folder)
    program: Program = program_of(OBJECTIVE)
    term = program(networks, to_device(_batch(read(folder)), torch.device("cpu")), None)[OBJECTIVE.type, DETECTION]
    return float(term.sum.detach()) / term.norm, their_loss(folder, _theirs(folder))


ELECTRA = Row(
    "electra",
    "ELECTRA's step, generator and discriminator",
    "ElectraForPreTraining, the discriminator alone",
    1.0,
    {OURS: _ours, **peer_sides(lambda folder: [_theirs(folder)], lambda folder: ROWS * LENGTH)},
    _prepare,
    _check,
    apart=(COMPILED,),
)
