"""Objectives on one core: noise, layout and collation, in raw tokens of text a second.

    python benchmarks/objectives.py [--json] [--rounds 5] [--seconds 0.3] [--only masked,causal]

Each objective, in each layout, on 64 rows of equal length that fill a context of 512, and on as many tokens of texts
whose lengths are those of Wikipedia's paragraphs ($UNMASK_DATA; else log-normal ones of the same median), packed.
Where it reads nothing but tokens, also through the whole loader: the order of texts, packing of 256 samples at a time,
and reading, over documents of these lengths, in updates of 32 rows.
In the same rounds the peers' collators (transformers) on 64 blocks of 512. ratio = ours / theirs where the peer has a
collator for it; targets: 10 × the peer, and 50 M causal, 20 M masked, 5 M others, half of that on real lengths; 5 M
through the loader.
Figures are medians over the rounds; spread is their range.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402 - after the threads are set

CONTEXT, ROWS, UPDATE = 512, 64, 32
PEERS = {"causal": "causal", "masked": "mlm", "permutation": "permutation"}
TARGETS = {"causal": 50e6, "masked": 20e6}
OTHERS, RATIO = 5e6, 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens a second of every objective, beside transformers.")
    parser.add_argument("--json", action="store_true", help="one array of rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--only", default="", help="names, with commas")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from unmask.train.devices import tune_process

    tune_process()
    ours, theirs = works(options.only.split(",") if options.only else []), peers()
    speeds: dict[str, list[float]] = {name: [] for name in (*ours, *theirs)}
    for _ in range(options.rounds):
        for name, (work, tokens) in {**ours, **theirs}.items():
            speeds[name].append(speed(work, tokens, options.seconds))
    rows = [row(name, speeds, theirs) for name in ours]
    if options.json:
        print(json.dumps(rows))
        return
    for r in rows:
        peer = "" if r["theirs"] is None else f"  {r['theirs'] / 1e6:6.2f} M  ratio {r['ratio']:6.1f}"
        print(
            f"{r['work']:<48} {r['ours'] / 1e6:7.1f} M  target {r['target_tokens'] / 1e6:4.1f} M  {r['verdict']}{peer}"
        )


def row(name: str, speeds: dict[str, list[float]], theirs: dict[str, Any]) -> dict[str, Any]:
    """One line of results; `target` is a ratio where there is a peer and equal lengths, else null."""
    kind, lengths = name.split(" ")[0], name.rsplit(", ", 1)[1]
    mine, peer = speeds[name], PEERS.get(kind)
    goal = OTHERS if lengths == "loader" else TARGETS.get(kind, OTHERS) / (1 if lengths == "equal" else 2)
    ratios = [a / b for a, b in zip(mine, speeds[peer], strict=True)] if peer in theirs and lengths == "equal" else None
    met = statistics.median(mine) >= goal and (ratios is None or statistics.median(ratios) >= RATIO)
    return {
        "work": name,
        "peer": None if ratios is None else f"transformers, {peer} collator",
        "ours": round(statistics.median(mine)),
        "theirs": None if ratios is None else round(statistics.median(speeds[str(peer)])),
        "ratio": None if ratios is None else round(statistics.median(ratios), 2),
        "target": None if ratios is None else RATIO,
        "target_tokens": goal,
        "spread": [round(min(ratios or mine), 2), round(max(ratios or mine), 2)],
        "verdict": "met" if met else "missed",
    }


def speed(work: Callable[[], Any], tokens: int, seconds: float) -> float:
    """Tokens a second, by as many calls as fit; the first is not counted."""
    work()
    calls, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds or not calls:
        work()
        calls += 1
    return calls * tokens / passed


# ---------------------------------------------------------------- ours


def works(only: list[str]) -> dict[str, tuple[Callable[[], Any], int]]:
    """Name → (one batch made, its raw tokens): every registered objective, in every layout, on both kinds of rows."""
    from unmask.objectives import REGISTRY
    from unmask.show.density import in_layouts, layout_of
    from unmask.show.reading import controls_of

    names = [name for name in REGISTRY.types()[0] if not only or name in only]
    each = [(name, objective) for name in names for objective in in_layouts(name, {})]
    lengths, words = real_lengths(), vocabulary({c for _, o in each for c in controls_of(o)})
    found = {}
    for name, objective in each:
        shape = objective.shape(CONTEXT)
        room = objective.room(shape)
        cut = np.minimum(lengths, room)
        real = cut[: int(np.searchsorted(np.cumsum(cut), ROWS * room)) + 1]
        for kind, sizes in (("equal", np.full(ROWS, room)), ("real", real)):
            label = f"{name} {layout_of(objective)}, {kind}"
            found[label] = work_of(objective, rows_of(sizes, objective.needs, words), words, shape, kind == "real")
        if not objective.needs and objective.cut == "tokens":
            found[f"{name} {layout_of(objective)}, loader"] = loader_of(objective, words, shape, lengths)
    return found


def loader_of(objective: Any, words: Any, shape: Any, lengths: np.ndarray) -> tuple[Callable[[], Any], int]:
    """One update after the other, and the raw tokens of one on average."""
    from unmask.batch import starts
    from unmask.data.loader import Loader

    documents = starts(lengths)
    tokens = np.random.default_rng(0).choice(words.ordinary, int(documents[-1])).astype(np.uint16)
    text = SimpleNamespace(tokens=tokens, documents=documents)
    loader, steps = Loader(text, objective, words, shape, rows=UPDATE, seed=0), itertools.count()
    return lambda: loader(next(steps)), round(loader.per_step * loader.pieces.length.mean())


def work_of(objective: Any, rows: Any, words: Any, shape: Any, packed: bool) -> tuple[Callable[[], Any], int]:
    from unmask.data.collate import collate, pack
    from unmask.objectives.base import outline

    def work() -> Any:
        place = pack(objective.sizes(outline(rows)), shape) if packed else None
        return collate({"x": objective(rows, words)}, {"x": objective.heads()}, place, shape=shape)

    return work, len(rows.tokens)


def vocabulary(controls: set[str], size: int = 8192) -> Any:
    from unmask.tokens.special import ROLES, Vocabulary, sentinel

    names = [*ROLES.values(), *(f"w{i}" for i in range(size)), *(sentinel(k) for k in range(CONTEXT))]
    table = {name: i for i, name in enumerate([*names, *sorted(controls)])}
    return Vocabulary.of(table, [table[name] for name in controls])


def rows_of(lengths: np.ndarray, needs: frozenset[str], words: Any) -> Any:
    """Random texts of these lengths, with words of 1.4 tokens, sentences of 20, and what else is needed."""
    from unmask import keyed
    from unmask.batch import Rows, starts
    from unmask.show.reading import spans_of

    rng = np.random.default_rng(0)
    start = starts(lengths)
    n = int(start[-1])
    word, sentence = rng.random(n) < 0.7, rng.random(n) < 0.05
    word[start[:-1]] = sentence[start[:-1]] = True
    word |= sentence
    spans = spans_of(word, 1)
    owner = np.searchsorted(start, spans, "right")
    fields = {"word": word, "sentence": sentence, "spans": spans[owner[:, 0] == np.searchsorted(start, spans[:, 1])]}
    more: dict[str, Any] = {k: v for k, v in fields.items() if k in needs}
    if needs & {"partner", "target"}:
        more["partner"] = rows_of(np.roll(lengths, 1), needs - {"partner", "target"}, words)
    return Rows(
        tokens=rng.choice(words.ordinary, n).astype(np.int32),
        start=start,
        key=keyed.row_keys(0, 0, np.arange(len(lengths))),
        index=np.arange(len(lengths)),
        fixed=np.zeros(n, bool),
        ends=np.ones(len(lengths), bool),
        **more,
    )


def real_lengths(count: int = 4000) -> np.ndarray:
    """Tokens of paragraphs: words × 1.3 of Wikipedia's, else log-normal with their median."""
    data = Path(os.environ.get("UNMASK_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    found: list[int] = []
    for path in sorted((data / "enwiki2015").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                found += [round(1.3 * len(p.split())) for p in json.loads(line)["text"].split("\n\n") if p.strip()]
                if len(found) >= count:
                    return np.maximum(np.array(found[:count]), 2)
    print("no data folder: lengths are log-normal, not Wikipedia's", file=sys.stderr)
    return np.maximum(np.random.default_rng(0).lognormal(np.log(120), 0.8, count).astype(np.int64), 2)


# ---------------------------------------------------------------- theirs


def peers() -> dict[str, tuple[Callable[[], Any], int]]:
    """The library's collators on 64 lists of 512 ids; PyTorch on one thread."""
    import torch
    import transformers as hf
    from tokenizers import Tokenizer, models

    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    torch.set_num_threads(1)
    controls = {k: f"[{k.upper()}]" for k in ("pad", "unk", "cls", "sep", "mask")}
    names = [*controls.values(), *(f"w{i}" for i in range(8192))]
    model = models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(model), **{f"{k}_token": name for k, name in controls.items()}
    )
    ids = np.random.default_rng(0).integers(5, len(names), (ROWS, CONTEXT)).tolist()
    features = [{"input_ids": row} for row in ids]
    made = {
        "causal": hf.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        "mlm": hf.DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.15),
        "permutation": hf.DataCollatorForPermutationLanguageModeling(tokenizer),
    }
    return {name: (lambda c=collator: c(features), ROWS * CONTEXT) for name, collator in made.items()}


if __name__ == "__main__":
    main()
