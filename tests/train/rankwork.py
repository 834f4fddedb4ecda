"""Runs of tiny real objectives on one or many processes, and what the tests of ranks compare of them.

`python rankwork.py JOBS.json` is one rank of the processes that `start` starts, as torchrun would: one group for all.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.data.prepare import prepare
from unmask.errors import UserError
from unmask.recipe import load_recipe
from unmask.run import build, resolve, training_batches
from unmask.train import compiled, sharded
from unmask.train.ranks import Ranks, session
from unmask.train.trainer import Trainer

TINY: dict[str, Any] = {
    "tokenizer.type": "byte",
    "model.hidden_size": 16,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.family": "unmask",
    "context": 32,
    "train.batch_size": 8,
    "train.warmup_steps": 4,
    "evaluation.pieces": 16,
    "budget.steps": 20,
    "precision": "fp32",
    "device": "cpu",
    "checkpoint.every": 10,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "masked": ("encoder-small", {"objective.type": "masked", "objective.mask_rate": 0.15}),
    "spans": ("encdec-small", {"model.num_source_layers": 2}),
    "mixture": (
        "encoder-small",
        {"objective.type": "mixture", "objective.parts": {"clm": {"type": "causal"}, "mlm": {"type": "masked"}}},
    ),
    "replaced": ("encoder-small", {"objective.type": "replaced", "objective.sharing": "embeddings"}),
    "staged": (  # two networks, whose rows and batches change on the way
        "encoder-small",
        {
            "objective.type": "replaced",
            "train.stages": [{"share": 0.4, "context": 16, "batch_size": 12}, {"share": 0.6, "batch_size": 6}],
        },
    ),
    "decoder": ("decoder-small", {"model.tied_head": True}),
    "gdes": (
        "encoder-small",
        {"objective.type": "replaced", "objective.sharing": "gdes", "model.tied_head": False},
    ),
    "experts": (
        "decoder-small",
        {"model.experts": {"count": 3, "per_token": 2, "balance_loss": 0.1}},
    ),
    "shared": (  # one layer at both depths of both networks
        "encoder-small",
        {
            "objective.type": "replaced",
            "objective.sharing": "all",
            "objective.generator_width": 1,
            "objective.generator_depth": 1,
            "model.distinct_layers": 1,
        },
    ),
}


def write_text(place: Path) -> None:
    lines = [f"chapter {i}: it was a dark night, and {i * i} stars " + "shone " * (i % 9) for i in range(300)]
    place.write_text("\n\n".join(lines))


def trainer(folder: Path, out: str, case: str, ranks: Ranks, more: dict[str, Any]) -> Trainer:
    """The trainer of a case in `folder`, whose text.txt lies there."""
    name, settings = CASES[case]
    values = {**TINY, **settings, "corpus": str(folder / "text.txt"), "corpus.document": "blank_line", **more}
    recipe = load_recipe(name, values)
    ranks.choose(recipe.parallel, continuing=True)
    text = ranks.in_turn(
        lambda: prepare(recipe.corpus, recipe.valid, recipe.tokenizer, folder / "cache", lambda _: None)
    )
    recipe = resolve(recipe, text.tokenizer)
    return build(recipe, text, training_batches(recipe, text), folder / out, None, None, ranks)[0]


def watch(t: Trainer) -> dict[str, Any]:
    """What is seen of a run: the weights before its first update, gradients before clipping at that and every tenth
    one, and who is read."""
    seen: dict[str, Any] = {"gradients": {}, "samples": [], "bare": 0}
    passes_of, mine = t._passes_of, t._mine

    def watched(spread: Any) -> Any:
        passes = passes_of(spread)
        seen["start"] = {n: spread.layout.whole(p.detach()).clone() for n, p in t.networks.named_parameters()}

        def once(step: int, *rest: Any) -> Any:
            values = passes(step, *rest)
            if step == 0 or step % 10 == 9:
                there = {n: p.grad for n, p in t.optimizer.named.items() if p.grad is not None}
                seen["gradients"][step] = {n: spread.layout.whole(g).clone() for n, g in there.items()}
            return values

        return once

    def read(step: int, progress: float) -> Any:
        batches = mine(step, progress)
        seen["bare"] += sum(0.0 in b.norms().values() for b in batches)  # micro-batches without a target of some head
        seen["samples"].extend(int(i) for b in batches for i in b.samples.index)
        return batches

    t._passes_of, t._mine = watched, read
    return seen


def run(folder: Path, job: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Run a job; its losses, gradients and final weights."""
    torch.set_num_threads(1)
    with ranks.together():
        if "of" in job and ranks.first:  # goes on from a copy of that run
            shutil.copytree(folder / job["of"], folder / job["out"])
    allocated = Allocated() if "allocated" in job else None
    t = trainer(folder, job["out"], job["case"], ranks, job.get("settings", {}))
    seen = watch(t)
    if allocated is not None:
        laid = t._passes_of

        def told(spread: Any) -> Any:
            seen["allocated"] = allocated.most()
            return laid(spread)

        t._passes_of = told
    if "signal" in job and ranks.rank == job["signal"]["rank"]:
        at, mine = job["signal"]["step"], t._mine

        def signalled(step: int, progress: float) -> Any:
            if step == at:
                signal.raise_signal(signal.SIGTERM)
            return mine(step, progress)

        t._mine = signalled
    stopped = None
    with pytest.MonkeyPatch.context() as patch:
        seen["read"] = _count_reads(patch)
        if "backend" in job:
            patch.setattr(compiled, "BACKEND", job["backend"])
        if "full" in job and ranks.rank == job["full"]["rank"]:
            _fill_disk(patch, f"step-{job['full']['step']}")
        try:
            t.run(resume="of" in job)
        except (KeyboardInterrupt, UserError) as error:
            stopped = str(error)
    whole = t.spread.layout.whole
    weights = {n: whole(p.detach()).clone() for n, p in t.networks.named_parameters()}
    state = {n: whole(v.detach()).clone() for n, v in t.optimizer.state_tensors().items()}
    held = sum(getattr(p, "_local_tensor", p).numel() for p in t.networks.parameters())
    found = {"held": held, "weights": weights, "state": state, "stopped": stopped}
    return {**seen, **found, "counters": vars(t.counters)}


class Allocated:
    """The most bytes of tensors in main memory at once, beside those that are there now."""

    def __init__(self) -> None:
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self._profile.start()

    def most(self) -> int:
        self._profile.stop()
        events = [e for e in self._profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


def _count_reads(patch: pytest.MonkeyPatch) -> dict[str, int]:
    """Numbers that are read from checkpoints, by tensor."""
    read: dict[str, int] = {}
    take = sharded.StoredTensor.__getitem__

    def counting(self: sharded.StoredTensor, index: Any) -> Tensor:
        found = take(self, index)
        read[self.name] = read.get(self.name, 0) + found.numel()
        return found

    patch.setattr(sharded.StoredTensor, "__getitem__", counting)
    return read


def _fill_disk(patch: pytest.MonkeyPatch, checkpoint: str) -> None:
    """The disk is full when this checkpoint's tensors are written."""
    save = sharded.save_tensors

    def full(tensors: Any, file: Path, **more: str) -> None:
        if file.parent.name.endswith(checkpoint):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(tensors, file, **more)

    patch.setattr(sharded, "save_tensors", full)


def losses(folder: Path, out: str) -> list[dict[str, Any]]:
    """The lines of updates without `seconds`."""
    lines = [json.loads(line) for line in (folder / out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines if "evaluation" not in line]


# ---------------------------------------------------------------- many processes


@contextmanager
def start(program: list[str], ranks: int, **more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes with the variables that torchrun sets; those that still run at the end are killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), **more}  # fmt: skip
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([sys.executable, *program], env={**common, "RANK": str(r), "LOCAL_RANK": str(r)}, **pipes)
        for r in range(ranks)
    ]
    try:
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()


def work(folder: Path, jobs: list[dict[str, Any]], ranks: int) -> dict[str, list[dict[str, Any]]]:
    """Run jobs one after the other on so many ranks; by the job's `out`, what each rank saw."""
    name = folder / f"jobs-{ranks}-{jobs[0]['out']}.json"
    name.write_text(json.dumps(jobs))
    with start([__file__, str(name)], ranks) as processes:
        told = [p.communicate(timeout=300) for p in processes]
        for process, (_, err) in zip(processes, told, strict=True):
            assert process.returncode == 0, err
    return {j["out"]: [torch.load(folder / f"{j['out']}.{r}.pt") for r in range(ranks)] for j in jobs}


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Norm of the difference over the norm, all tensors together."""
    assert a.keys() == b.keys()
    off = sum(float((a[k].double() - b[k].double()).square().sum()) for k in a)
    norm = sum(float(b[k].double().square().sum()) for k in b)
    return (off / norm if off else 0.0) ** 0.5


def main() -> None:
    jobs = Path(sys.argv[1])
    os.fsync = lambda handle: None  # see conftest.py
    with session("cpu") as ranks:
        for job in json.loads(jobs.read_text()):
            torch.save(run(jobs.parent, job, ranks), jobs.parent / f"{job['out']}.{ranks.rank}.pt")


if __name__ == "__main__":
    main()
