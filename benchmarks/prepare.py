"""Preparing text on two cores: `unmask data prepare` against `datasets.map` with a fast tokenizer.

    python benchmarks/prepare.py [--megabytes 100] [--rounds 3]       needs the data folder ($UNMASK_DATA)

Both read the same JSON lines with the same tokenizer.json into an empty folder, in turn, each time in a process of
its own. Ours hashes the text, surveys it, splits it and writes shards; theirs loads the lines and maps them to ids
by two processes (batched, ids alone kept). One JSON row for whole processes, imports included, and one for the work
after the imports. Figures are medians in seconds; ratio = theirs / ours; spread = the ratio's range over the rounds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description="Preparing text: ours against datasets.map.")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--files", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        text, tokenizer, out = options.files
        print(json.dumps(ours(text, tokenizer, out) if options.run == "ours" else theirs(text, tokenizer, out)))
        return
    with tempfile.TemporaryDirectory() as folder:
        text, tokenizer = material(Path(folder), options.megabytes)
        times: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
        for number in range(options.rounds):
            for who in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
                times[who].append(process(who, text, tokenizer, Path(folder)))
    tokens = {t["tokens"] for side in times.values() for t in side}
    assert len(tokens) == 1, f"the two count different tokens: {tokens}"
    for what, key in (("whole process", "process"), ("after the imports", "work")):
        mine, peer = ([t[key] for t in times[who]] for who in ("ours", "theirs"))
        ratios = [b / a for a, b in zip(mine, peer, strict=True)]
        row = {
            "work": f"prepare {options.megabytes} MB of English, {what}",
            "peer": "datasets.map, num_proc=2, PreTrainedTokenizerFast",
            "ours": round(statistics.median(mine), 2),
            "theirs": round(statistics.median(peer), 2),
            "ratio": round(statistics.median(ratios), 2),
            "target": TARGET,
            "spread": [round(min(ratios), 2), round(max(ratios), 2)],
            "verdict": "met" if statistics.median(ratios) >= TARGET else "missed",
        }
        print(json.dumps(row))


def material(folder: Path, megabytes: int) -> tuple[Path, Path]:
    """So many MB of Wikipedia articles as JSON lines, and a byte-level BPE of 32,000 entries trained on 10 of them."""
    from unmask.config import TokenizerConfig
    from unmask.tokens.tokenizer import Tokenizer

    data = Path(os.environ.get("UNMASK_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    text, left, first = folder / "text.jsonl", megabytes * 1_000_000, []
    with text.open("w", encoding="utf-8") as out:
        for path in sorted((data / "enwiki2015").glob("train-*.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    document = json.loads(line)["text"]
                    if left <= 0:
                        break
                    left -= len(document.encode())
                    out.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
                    if len(first) < 600:  # about 10 MB
                        first.append(document)
    if left > 0:
        sys.exit(f"the data folder holds {left:,} bytes less than --megabytes {megabytes}")
    Tokenizer.train(TokenizerConfig(vocab_size=32_000), first).save(folder / "tokenizer.json")
    return text, folder / "tokenizer.json"


def process(who: str, text: Path, tokenizer: Path, folder: Path) -> dict[str, float]:
    """One run in a process and a folder of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [sys.executable, __file__, "--run", who, "--files", str(text), str(tokenizer), out]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": out, "HF_HOME": out}
        begun = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{who} failed:\n{done.stderr[-2000:]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "process": seconds}


def ours(text: str, tokenizer: str, out: str) -> dict[str, float]:
    from unmask.config import CorpusConfig, TokenizerConfig
    from unmask.data.prepare import prepare

    begun = time.perf_counter()
    made = prepare(CorpusConfig(path=text), None, TokenizerConfig(file=tokenizer), Path(out), lambda _: None)
    seconds = time.perf_counter() - begun
    return {"work": seconds, "tokens": len(made.train.tokens) + len(made.valid.tokens)}


def theirs(text: str, tokenizer: str, out: str) -> dict[str, float]:
    import datasets
    from transformers import PreTrainedTokenizerFast

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        more = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
        return {"input_ids": fast(batch["text"], **more)["input_ids"]}

    begun = time.perf_counter()
    fast = PreTrainedTokenizerFast(tokenizer_file=tokenizer)
    lines = datasets.load_dataset("json", data_files=text, split="train", cache_dir=out)
    ids = lines.map(encode, batched=True, num_proc=2, remove_columns=lines.column_names)
    seconds = time.perf_counter() - begun
    tokens = sum(len(column) for batch in ids.with_format("arrow").iter(1000) for column in batch["input_ids"])
    return {"work": seconds, "tokens": tokens}


if __name__ == "__main__":
    main()
