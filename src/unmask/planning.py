"""What a run would take, before it is begun: updates, tokens, hours, memory and disk. Nothing is trained or written
but the prepared text, which the run finds again.

Hours are an estimate: a few updates of throw-away networks are timed where this machine can do that in seconds, or
FLOPs are divided by a share of the given peak. Memory is by formula (`model.cost`): what a process holds of weights,
gradients and the optimizer's state, alone, as one of N copies (DDP) or with an N-th of each (FSDP).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.batch import Batch
from unmask.building import resolve, training_batches
from unmask.config import BudgetConfig, StageConfig
from unmask.data.stages import Stages
from unmask.errors import UserError
from unmask.model.cost import activation_numbers
from unmask.networks import batch_flops, networks_of, run_with
from unmask.programs import program_of
from unmask.recipe import Recipe
from unmask.run import begin
from unmask.tensors import named_once
from unmask.train import checkpoint, peak
from unmask.train.devices import choose_device, choose_precision, to_device
from unmask.train.optim import Optimizer
from unmask.train.plan import given, spread, steps_within
from unmask.train.room import Room, most_at_once, writers, written
from unmask.vocabulary import logits_bytes

SAMPLE = 16
"""Updates of a stage whose batches are built to tell what an update holds."""
PER = "tokens", "target_tokens", "flops"
"""What is told of an update."""
TIMED = 3
"""Updates that are timed; the first, which pays for allocations, is not counted."""
PATIENCE = 20.0
"""Seconds that timing may take, by the FLOPs of an update and `SLOW`."""
SLOW = {"cpu": 2e10, "cuda": 2e13}
"""FLOP/s that a device is taken to reach at least."""
USED = 0.4
"""Share of a given peak that training is taken to reach."""


def plan(
    recipe: Recipe,
    *,
    ranks: int = 1,
    cache: str | Path | None = None,
    peak_flops: str | float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """What a run of this recipe would take; ready for JSON.

    ranks: processes that share the work. peak_flops: FLOP/s of one of them, or "measure", see `train.peak`.
    Of a stream the text is its first chapter, which stands for the others.
    Where the budget is in minutes and nothing could be timed, `steps` and what follows from it are None.
    """
    if ranks < 1:
        raise UserError(f"ranks={ranks} must be at least 1")
    peak.check(peak_flops)
    recipe, text, _ = begin(recipe, cache, say)
    recipe = resolve(recipe, text.tokenizer)
    batches = training_batches(recipe, text)
    batches.require_sound()
    outline = _outline(recipe)
    flops = lambda batch: batch_flops(recipe.model, batch, recipe.objective)
    steps = steps_within(recipe.budget, batches, flops, recipe.train.begins)
    stages = _stages(recipe, batches, flops, steps)
    updates = sum(stage["updates"] for stage in stages)
    update = {name: sum(stage["updates"] * stage[name] for stage in stages) / updates for name in PER}
    pace, known = _seconds(recipe, batches, update["flops"], outline, ranks, peak_flops)
    minutes = recipe.budget.minutes
    if minutes is not None and pace is not None:
        steps = max(1, int(60 * minutes / pace))
    size = sum(p.numel() for p in outline.parameters())
    return {
        "budget": given(recipe.budget),
        "steps": steps,
        "steps_are": _counted_by(recipe.budget),
        **{name: None if steps is None else round(steps * update[name]) for name in PER},
        "stages": stages,
        "training_text_tokens": len(text.train.tokens),
        "stream": recipe.corpus.stream,
        "hours": None if steps is None or pace is None else steps * pace / 3600,
        "hours_are": known,
        "parameters": size,
        "ranks": ranks,
        "memory": _memory(recipe, outline, ranks),
        "disk": _disk(recipe, outline, steps, ranks),
        "saving": _saving(recipe, outline, ranks),
    }


def _outline(recipe: Recipe) -> nn.ModuleDict:
    """The run's networks without storage."""
    with torch.device("meta"):
        return networks_of(recipe.objective, recipe.model, recipe.seed)


def _counted_by(budget: BudgetConfig) -> str:
    if budget.steps is not None:
        return "given"
    return (
        "an estimate: fixed by timing when the run starts"
        if budget.minutes is not None
        else "by a sample of its batches"
    )


def _stages(
    recipe: Recipe, batches: Stages, flops: Callable[[Batch], float], steps: int | None
) -> list[dict[str, Any]]:
    """Of each stage its settings, and what an update holds: of `SAMPLE` spread evenly over it.

    steps: of the run; None, in minutes: its first ones are looked at.
    """
    total = steps or SAMPLE
    ends = [*recipe.train.begins(total), total]
    rows = []
    for stage, (first, end) in zip(recipe.stages, pairwise(ends), strict=True):
        sample = spread(first, end, SAMPLE)
        found = dict.fromkeys(PER, 0.0)
        for step in sample:
            for batch in batches(step, step / total):
                for name, amount in (*batch.counts().items(), ("flops", flops(batch))):
                    found[name] += amount / len(sample)
        settings = {"context": stage.context, "batch_size": stage.batch_size}
        rows.append({"updates": end - first, **settings, **found})
    return rows


# ---------------------------------------------------------------- hours


def _seconds(
    recipe: Recipe, batches: Stages, flops: float, outline: nn.ModuleDict, ranks: int, asked: str | float | None
) -> tuple[float | None, str]:
    """(seconds of an update or None, how that is known)."""
    device = choose_device(recipe.device)
    precision, _ = choose_precision(recipe.precision, device, outline)
    if (most := peak.peak_of(asked, device, precision, ranks)) is not None:
        return flops / (USED * most.flops), f"an estimate: at {USED:.0%} of {most.flops:.2g} FLOP/s, {most.known}"
    held = 16 * sum(p.numel() for p in outline.parameters())
    if TIMED * flops / SLOW.get(device.type, 2e10) > PATIENCE or held > _free_memory(device) / 2:
        return None, f"not estimated: too much to try here; give peak_flops= (an update is {flops:.2g} FLOPs)"
    alone = _timed(recipe, batches, flops, device, precision)
    if ranks == 1:
        return alone, f"an estimate: {TIMED - 1} updates timed on {device.type} in {precision}"
    return alone / ranks, f"an estimate: {TIMED - 1} updates timed on {device.type}, divided by {ranks} ranks"


def _free_memory(device: torch.device) -> float:
    """Bytes, about."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return 4e9


def _timed(recipe: Recipe, batches: Stages, flops: float, device: torch.device, precision: str) -> float:
    """Seconds of one update of networks that are thrown away.

    flops: of an update, on average; one that is timed is the first stage's, and counts by its share of them.
    """
    networks = networks_of(recipe.objective, recipe.model, recipe.seed).to(device)
    run_with(networks, recipe.attention, recipe.train.activation_checkpointing, device)
    optimizer, program = Optimizer(networks, recipe.train), program_of(recipe.objective)
    times = []
    first = flops
    if recipe.train.stages:
        first = sum(batch_flops(recipe.model, batch, recipe.objective) for s in (0, 1) for batch in batches(s)) / 2
    for step in range(TIMED):
        began = time.perf_counter()
        optimizer.zero()
        for batch in batches(step, 0.0):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                terms = program(dict(networks.items()), to_device(batch, device), None)
            asked = [t.sum * (t.coefficient / t.norm) for t in terms.values() if t.norm and t.sum.requires_grad]
            if asked:
                torch.autograd.backward(torch.stack(asked).sum())
        optimizer.gradient_norm(recipe.train.clip_norm)  # read on the host: what was queued is done
        optimizer.step(1.0)
        times.append(time.perf_counter() - began)
    return sum(times[1:]) / len(times[1:]) * (flops / first)


# ---------------------------------------------------------------- memory and disk


def _kinds(ranks: int, parallel: str) -> dict[str, tuple[int, int]]:
    """What a process may be → (parts that the model is cut into, processes that share an update)."""
    if ranks == 1:
        return {"one process": (1, 1)}
    of = {"DDP": (1, ranks), "FSDP": (ranks, ranks)}
    chosen = "FSDP" if parallel == "fsdp" else "DDP"
    return {f"{kind}{' (this run)' if kind == chosen else ''}, each of {ranks}": parts for kind, parts in of.items()}


def _memory(recipe: Recipe, outline: nn.ModuleDict, ranks: int) -> list[dict[str, Any]]:
    """Bytes of one process: alone, and of N copies or parts where there are several."""
    weights = sum(p.numel() * p.element_size() for p in outline.parameters())
    moments = Optimizer(outline, recipe.train).state_bytes()
    rows = []
    for kind, (parts, shares) in _kinds(ranks, recipe.parallel).items():
        held = {
            "weights": weights // parts,
            "gradients": weights // parts,
            "optimizer": moments // parts,
            "logits": logits_bytes(recipe.model.vocab_size),
            "activations": _activations(recipe, shares),
        }
        rows.append({"with": kind, **held, "total": sum(held.values())})
    return rows


def _activations(recipe: Recipe, shares: int) -> int:
    """Bytes in fp32 that the forward pass of one micro-batch of one of `shares` processes keeps, about; of the stage
    that keeps most."""
    again = recipe.train.activation_checkpointing

    def kept(stage: StageConfig) -> int:
        shape, rows = recipe.shape(stage), stage.batch_size or recipe.train.batch_size
        rows = max(1, -(-rows // (recipe.train.grad_accumulation * shares)))
        each = recipe.objective.networks(recipe.model).values()
        return sum(
            4 * rows * activation_numbers(config, shape.stream, shape.source, recompute=again) for config in each
        )

    return max(map(kept, recipe.stages))


def _disk(recipe: Recipe, outline: nn.ModuleDict, steps: int | None, ranks: int) -> dict[str, int]:
    """Bytes of the checkpoints that lie in the run's directory together, and of all that are written at least."""
    tensors, _ = named_once(outline)
    config = recipe.checkpoint
    whole, light = most_at_once(steps or 1, config)
    needed = checkpoint.need(tensors, 0, writers(config, recipe.parallel, ranks))
    room = Room(needed, Optimizer(outline, recipe.train).state_bytes())
    found = {"checkpoints": whole + light, "bytes_of_one": room.one, "bytes": room.need(whole, light)}
    return {**found, "bytes_written": written(steps or 1, config) * room.one}


def _saving(recipe: Recipe, outline: nn.ModuleDict, ranks: int) -> list[dict[str, Any]]:
    """Who writes a checkpoint, in how many files of tensors, and the bytes of main memory that one of them copies it to
    (0 = none: from where it lies, one tensor after the other)."""
    size = sum(p.numel() * p.element_size() for p in outline.parameters())
    size += Optimizer(outline, recipe.train).state_bytes()
    rows = []
    for kind, (parts, _) in _kinds(ranks, recipe.parallel).items():
        number = writers(recipe.checkpoint, "fsdp" if parts > 1 else "ddp", ranks)
        copied = recipe.checkpoint.background or number < parts
        by = "itself" if ranks == 1 else "rank 0" if number == 1 else f"each rank, 1/{number} of it"
        row = {"with": kind, "written_by": by, "files": 2 * number, "copy": size // number if copied else 0}
        rows.append({**row, "meanwhile": recipe.checkpoint.background})
    return rows
