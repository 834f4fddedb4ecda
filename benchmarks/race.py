"""The character race: seconds of training to 1.88 nats a character on tiny Shakespeare, beside nanoGPT on a CPU.

    python benchmarks/race.py OUT [--seeds 5] [--peer SEEDS]       needs the data folder ($UNMASK_DATA)

Ours is a recipe given to `unmask.pretrain`. The peer is nanoGPT's `train_shakespeare_char` as its README documents it
for a CPU, written again in plain torch: 4 layers of width 128, 4 heads, 64 characters, batches of 12, 2,000 updates, in
fp32 as documented, and under bf16 autocast as well. Both train on the first 90 % of the characters. Each side of each
seed is a process of its own with torch's own number of threads; one runs at a time, and who begins alternates.

Seconds are of updates alone on both sides: batches, forward, backward, clipping, optimizer. Left out are imports,
tokenizing, evaluation and, of ours, metrics and checkpoints on disk. What is reached is measured by one function for
both (`nats`), every `EVERY` updates of ours and every `PEER_EVERY` of the peer's, at the weights of that update, in
fp32. Tokens are those of the input; ours begin each row with [BOS], which counts.

OUT gets race.json and a folder for each side and seed. Settings were chosen on seed 100.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AIM = 1.88
WINDOW = 64
MOST_TOKENS = 300_000
SHARE = 1 / 6
"""Of the peer's seconds for all of its updates, which ours should take at most."""

Logits = Callable[[Tensor], Tensor]
"""(rows, characters) ids → (rows, characters, vocabulary), at each character for the next one."""

# ---------------------------------------------------------------- text and measure


def read_text() -> str:
    data = Path(os.environ.get("UNMASK_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    return (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")


def split(text: str) -> tuple[str, str]:
    """Training and validation: the first 90 % of the characters, and the rest (nanoGPT's prepare.py)."""
    at = int(len(text) * 0.9)
    return text[:at], text[at:]


@torch.no_grad()
def nats(logits: Logits, ids: Tensor, rows: int = 128) -> float:
    """Mean −log p of all characters but the first, each given what stands before it in its window of `WINDOW`.

    Windows do not overlap: the character that one ends with is asked for there and is the first that the next one
    reads. The last window may be shorter.
    """
    read, asked = ids[:-1], ids[1:]
    whole = len(read) // WINDOW * WINDOW
    parts = [slice(at, min(at + rows * WINDOW, whole)) for at in range(0, whole, rows * WINDOW)]
    if whole < len(read):
        parts.append(slice(whole, None))
    total = 0.0
    for part in parts:
        out = logits(read[part].view(-1, min(WINDOW, len(read[part])))).float()
        total += float(F.cross_entropy(out.flatten(0, 1), asked[part], reduction="sum"))
    return total / len(asked)


@dataclass(frozen=True)
class Point:
    """Where a run stood after an update."""

    step: int
    tokens: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class Raced:
    """One side of a seed."""

    side: str
    seed: int
    parameters: int
    threads: int
    points: list[Point]

    @property
    def reached(self) -> Point | None:
        """The first evaluation that is not above `AIM`."""
        return next((p for p in self.points if p.loss <= AIM), None)


# ---------------------------------------------------------------- ours

STEPS, EVERY = 144, 8
BATCH = 32
SETTINGS: dict[str, Any] = {
    "tokenizer.type": "char",
    "tokenizer.min_frequency": 1,
    "tokenizer.sentinels": 0,
    "context": WINDOW + 2,  # [BOS] and 64 characters are read; a document's end would be the 66th
    "model.family": "unmask",
    "model.hidden_size": 128,
    "model.num_layers": 4,
    "model.num_heads": 4,
    "model.max_position": WINDOW + 2,
    "model.positions": "rotary",
    "model.norm": "rms",
    "model.norm_weight": False,
    "model.embedding_norm": True,
    "model.qk_norm": True,
    "model.activation": "relu2",
    "model.zero_init_projections": True,
    "model.residual_scalars": True,
    "model.attention_bias": False,
    "model.mlp_bias": False,
    "model.tied_head": False,
    "model.embedding_std": 0.1,
    "model.head_std": 0.001,
    "train.batch_size": BATCH,
    "train.optimizer": "muon",
    "train.muon_learning_rate": 0.06,
    "train.learning_rate": 1.5e-2,
    "train.beta2": 0.95,
    "train.weight_decay": 0.0,
    "train.schedule": "linear",
    "train.warmup_steps": 10,
    "budget.steps": STEPS,
    "checkpoint.at": list(range(EVERY, STEPS + 1, EVERY)),
    "evaluation.pieces": 1,
    "device": "cpu",
}
"""Over the recipe decoder-small."""


def ours(folder: Path, out: Path, seed: int) -> Raced:
    """Train by the public way, then measure the checkpoints."""
    import unmask
    from unmask.recipe import load_recipe

    recipe = load_recipe(
        "decoder-small",
        {**SETTINGS, "corpus": str(folder / "train.txt"), "valid": str(folder / "valid.txt"), "seed": seed},
    )
    run = unmask.pretrain(recipe, out=out, cache=folder / "cache")
    lines = map(json.loads, (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    at = {line["step"]: line for line in lines if "tokens" in line}
    points = []
    for step in SETTINGS["checkpoint.at"]:
        lm = unmask.load(out, step, device="cpu")
        loss = nats(logits_of(lm), encoded(lm, (folder / "valid.txt").read_text(encoding="utf-8")))
        points.append(Point(step, at[step]["tokens"], at[step]["seconds"], loss))
    return Raced("unmask", seed, run.parameters, torch.get_num_threads(), points)


def encoded(lm: Any, text: str) -> Tensor:
    """A text's ids, one a character; one that training never saw would be an error, not a cheap [UNK]."""
    ids = torch.from_numpy(lm.tokenizer.encode(text)).long()
    if len(ids) != len(text) or bool((ids == lm.vocabulary.unk).any()):
        raise ValueError("the tokenizer does not give one known token for each character of the validation text")
    return ids


def logits_of(lm: Any) -> Logits:
    """Rows are read as in training, behind [BOS]; its own answer is left out."""
    bos = lm.vocabulary.need("bos")
    return lambda x: lm.logits(torch.cat([torch.full_like(x[:, :1], bos), x], 1))[:, 1:]


# ---------------------------------------------------------------- the peer

PEER_STEPS, PEER_EVERY = 2000, 100
PEER_BATCH = 12
WIDTH, LAYERS, HEADS = 128, 4, 4
PEAK, LEAST, WARM = 1e-3, 1e-4, 100
FP32, BF16 = "nanogpt-fp32", "nanogpt-bf16"


class Block(nn.Module):
    """Pre-norm attention and GELU layer without biases (nanoGPT's model.py)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (y.view(rows, length, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """nanoGPT's model at the documented size."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(WINDOW, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                small = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, 0.0, 0.02 / math.sqrt(2 * LAYERS) if small else 0.02)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return F.linear(self.norm(h), self.tokens.weight)


def rate(step: int) -> float:
    """Of an update: warm-up, then a cosine to `LEAST` (nanoGPT's get_lr)."""
    if step < WARM:
        return PEAK * (step + 1) / (WARM + 1)
    return LEAST + 0.5 * (1 + math.cos(math.pi * (step - WARM) / (PEER_STEPS - WARM))) * (PEAK - LEAST)


def peer_ids(text: str) -> Tensor:
    known = {c: i for i, c in enumerate(sorted(set(text)))}
    return torch.tensor([known[c] for c in text])


def peer(folder: Path, seed: int, bf16: bool) -> Raced:
    """Train and measure the documented run."""
    torch.manual_seed(seed)
    parts = [(folder / name).read_text(encoding="utf-8") for name in ("train.txt", "valid.txt")]
    ids = peer_ids("".join(parts))
    train, valid = ids[: len(parts[0])], ids[len(parts[0]) :]
    model = GPT(int(ids.max()) + 1)
    matrices, vectors = ([p for p in model.parameters() if (p.ndim >= 2) == many] for many in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.99))
    points, seconds = [], 0.0
    for step in range(PEER_STEPS):
        began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        at = torch.randint(len(train) - WINDOW, (PEER_BATCH,))
        x, y = (torch.stack([train[i + k : i + k + WINDOW] for i in at.tolist()]) for k in (0, 1))
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds += time.perf_counter() - began
        if (step + 1) % PEER_EVERY == 0:
            points.append(Point(step + 1, (step + 1) * x.numel(), seconds, nats(model, valid)))
    size = sum(p.numel() for p in model.parameters())
    return Raced(BF16 if bf16 else FP32, seed, size, torch.get_num_threads(), points)


# ---------------------------------------------------------------- the race


def one(side: str, folder: Path, seed: int) -> None:
    """A side of a seed, in this process."""
    place = folder / f"{side}-{seed}"
    raced = ours(folder, place, seed) if side == "unmask" else peer(folder, seed, side == BF16)
    place.mkdir(exist_ok=True)
    (place / "race.json").write_text(json.dumps(asdict(raced), indent=1) + "\n", encoding="utf-8")


def read(place: Path) -> Raced:
    found = json.loads((place / "race.json").read_text(encoding="utf-8"))
    return Raced(**{**found, "points": [Point(**p) for p in found["points"]]})


def all_of(folder: Path, seeds: int, peers: int) -> Iterator[Raced]:
    """Our side of every seed and the peer's of the first ones, one at a time; who begins alternates."""
    for seed in range(seeds):
        sides = ["unmask", FP32, BF16] if seed < peers else ["unmask"]
        for side in sides if seed % 2 == 0 else sides[::-1]:
            subprocess.run([sys.executable, __file__, str(folder), "--one", side, str(seed)], check=True)
            raced = read(folder / f"{side}-{seed}")
            print(row(raced), flush=True)
            yield raced


HEAD = "| side | seed | updates | tokens | seconds | nats | of the whole run: updates | seconds | nats |"


def row(raced: Raced) -> str:
    """A row of the table: the first evaluation that reaches the aim, and the last one."""
    last, first = raced.points[-1], raced.reached
    told = (
        f"{first.step:,} | {first.tokens:,} | {first.seconds:.1f} | {first.loss:.4f}" if first else "not reached | | |"
    )
    return f"| {raced.side} | {raced.seed} | {told} | {last.step:,} | {last.seconds:.1f} | {last.loss:.4f} |"


def summary(found: list[Raced]) -> dict[str, Any]:
    """Medians over seeds; None where the median seed does not reach the aim."""
    out: dict[str, Any] = {}
    for side in dict.fromkeys(r.side for r in found):
        runs = [r for r in found if r.side == side]
        reached = [r.reached or Point(0, 0, math.inf, 0.0) for r in runs]
        aim, steps = median(p.seconds for p in reached), median(p.step or math.inf for p in reached)
        tokens = median(p.tokens or math.inf for p in reached)
        out[side] = {
            "seconds": _finite(aim),
            "updates": _finite(steps),
            "tokens": _finite(tokens),
            "whole_seconds": median(r.points[-1].seconds for r in runs),
            "whole_loss": median(r.points[-1].loss for r in runs),
            "parameters": runs[0].parameters,
        }
    mine, whole = out["unmask"], [out[s]["whole_seconds"] for s in (FP32, BF16) if s in out]
    if whole and mine["seconds"] is not None:
        out["share"] = mine["seconds"] / min(whole)
    return out


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer", type=int, default=0, metavar="SEEDS", help="of the first seeds, the peer as well")
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder: Path = options.out
    if options.one is not None:
        one(options.one[0], folder, int(options.one[1]))
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("train.txt", "valid.txt"), split(read_text()), strict=True):
        (folder / name).write_text(part, encoding="utf-8")
    print(f"{HEAD}\n|{'---|' * 9}")
    found = list(all_of(folder, options.seeds, options.peer))
    from unmask.directory import environment

    told = summary(found)
    written = {"aim": AIM, "environment": environment(), "summary": told, "runs": [asdict(r) for r in found]}
    (folder / "race.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    mine = told["unmask"]
    if mine["seconds"] is None:
        print(f"median of {options.seeds}: {AIM} not reached (at the end {mine['whole_loss']:.4f})")
    else:
        print(
            f"median of {options.seeds}: {AIM} after {mine['updates']:,} updates, {mine['tokens']:,} tokens (target at "
            f"most {MOST_TOKENS:,}) and {mine['seconds']:.1f} s"
        )
    if "share" in told:
        print(f"{told['share']:.3f} of the peer's {PEER_STEPS:,} updates in its faster precision (target {SHARE:.3f})")


if __name__ == "__main__":
    main()
