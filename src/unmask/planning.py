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
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.batch import Batch
from unmask.building import resolve, training_loader
from unmask.config import BudgetConfig
from unmask.data.loader import Loader
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
from unmask.train.plan import given, steps_within
from unmask.train.room import Room, most_at_once, written
from unmask.vocabulary import logits_bytes

SAMPLE = 16
"""Updates whose batches are built to tell what an update holds."""
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
    loader = training_loader(recipe, text)
    loader.require_sound()
    outline = _outline(recipe)
    flops = lambda batch: batch_flops(recipe.model, batch, recipe.objective)
    steps = steps_within(recipe.budget, loader, flops)
    update = _update(loader, flops, steps)
    pace, known = _seconds(recipe, loader, update["flops"], outline, ranks, peak_flops)
    minutes = recipe.budget.minutes
    if minutes is not None and pace is not None:
        steps = max(1, int(60 * minutes / pace))
    size = sum(p.numel() for p in outline.parameters())
    per = "tokens", "target_tokens", "flops"
    return {
        "budget": given(recipe.budget),
        "steps": steps,
        "steps_are": _counted_by(recipe.budget),
        **{name: None if steps is None else round(steps * update[name]) for name in per},
        "training_text_tokens": len(text.train.tokens),
        "stream": recipe.corpus.stream,
        "hours": None if steps is None or pace is None else steps * pace / 3600,
        "hours_are": known,
        "parameters": size,
        "ranks": ranks,
        "memory": _memory(recipe, outline, ranks),
        "disk": _disk(recipe, outline, steps),
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


def _update(loader: Loader, flops: Callable[[Batch], float], steps: int | None) -> dict[str, float]:
    """What an update holds on average: of `SAMPLE` spread evenly over the run, or of its first ones."""
    total = steps or SAMPLE
    sample = sorted({i * total // SAMPLE for i in range(SAMPLE)})
    found = {"tokens": 0.0, "target_tokens": 0.0, "flops": 0.0}
    for step in sample:
        for batch in loader(step, step / total):
            counts = batch.counts()
            found["tokens"] += counts["tokens"] / len(sample)
            found["target_tokens"] += counts["target_tokens"] / len(sample)
            found["flops"] += flops(batch) / len(sample)
    return found


# ---------------------------------------------------------------- hours


def _seconds(
    recipe: Recipe, loader: Loader, flops: float, outline: nn.ModuleDict, ranks: int, asked: str | float | None
) -> tuple[float | None, str]:
    """(seconds of an update or None, how that is known)."""
    device = choose_device(recipe.device)
    precision, _ = choose_precision(recipe.precision, device, outline)
    if (most := peak.peak_of(asked, device, precision, ranks)) is not None:
        return flops / (USED * most.flops), f"an estimate: at {USED:.0%} of {most.flops:.2g} FLOP/s, {most.known}"
    held = 16 * sum(p.numel() for p in outline.parameters())
    if TIMED * flops / SLOW.get(device.type, 2e10) > PATIENCE or held > _free_memory(device) / 2:
        return None, f"not estimated: too much to try here; give peak_flops= (an update is {flops:.2g} FLOPs)"
    alone = _timed(recipe, loader, device, precision)
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


def _timed(recipe: Recipe, loader: Loader, device: torch.device, precision: str) -> float:
    """Seconds of one update of networks that are thrown away."""
    networks = networks_of(recipe.objective, recipe.model, recipe.seed).to(device)
    run_with(networks, recipe.attention, recipe.train.activation_checkpointing, device)
    optimizer, program = Optimizer(networks, recipe.train), program_of(recipe.objective)
    times = []
    for step in range(TIMED):
        began = time.perf_counter()
        optimizer.zero()
        for batch in loader(step, 0.0):
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                terms = program(dict(networks.items()), to_device(batch, device), None)
            asked = [t.sum * (t.coefficient / t.norm) for t in terms.values() if t.norm and t.sum.requires_grad]
            if asked:
                torch.autograd.backward(torch.stack(asked).sum())
        optimizer.gradient_norm(recipe.train.clip_norm)  # read on the host: what was queued is done
        optimizer.step(1.0)
        times.append(time.perf_counter() - began)
    return sum(times[1:]) / len(times[1:])


# ---------------------------------------------------------------- memory and disk


def _memory(recipe: Recipe, outline: nn.ModuleDict, ranks: int) -> list[dict[str, Any]]:
    """Bytes of one process: alone, and of N copies or parts where there are several."""
    weights = sum(p.numel() * p.element_size() for p in outline.parameters())
    moments = Optimizer(outline, recipe.train).state_bytes()
    kinds = {"one process": (1, 1)}
    if ranks > 1:
        kinds = {f"DDP, each of {ranks}": (1, ranks), f"FSDP, each of {ranks}": (ranks, ranks)}
    rows = []
    for kind, (parts, shares) in kinds.items():
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
    """Bytes in fp32 that the forward pass of one micro-batch of one of `shares` processes keeps, about."""
    shape = recipe.objective.shape(recipe.context, recipe.target_context)
    rows = max(1, -(-recipe.train.batch_size // (recipe.train.grad_accumulation * shares)))
    each = recipe.objective.networks(recipe.model).values()
    again = recipe.train.activation_checkpointing
    return sum(4 * rows * activation_numbers(config, shape.stream, shape.source, recompute=again) for config in each)


def _disk(recipe: Recipe, outline: nn.ModuleDict, steps: int | None) -> dict[str, int]:
    """Bytes of the checkpoints that lie in the run's directory together, and of all that are written at least."""
    tensors, _ = named_once(outline)
    config = recipe.checkpoint
    whole, light = most_at_once(steps or 1, config)
    room = Room(checkpoint.need(tensors, 0), Optimizer(outline, recipe.train).state_bytes())
    found = {"checkpoints": whole + light, "bytes_of_one": room.one, "bytes": room.need(whole, light)}
    return {**found, "bytes_written": written(steps or 1, config) * room.one}
