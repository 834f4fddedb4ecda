"""How fast a step would be as matrix products alone: python benchmarks/roofline.py [ROW …] (docs/performance.md).

The peak is that of bf16 products (4096 × 256) · (256 × 1024), the shape of the rows' feed-forward layers, with torch's
own number of threads. The products of our step are counted while it runs (`FlopCounterMode`), so what it leaves out
counts nothing. Beside them stand the rates that docs/results/performance-*.json hold of this processor, if any.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from unmask.bench.base import OURS, Measured, Record
from unmask.bench.rows import ROWS
from unmask.directory import environment

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
STEPS = ("bert", "modernbert", "electra", "t5", "gpt2", "llama")
SHAPE = 4096, 256, 1024


class Stop(Exception):
    """Enough steps."""


def peak(seconds: float = 3.0) -> float:
    """FLOPs a second of the fastest product seen."""
    n, d, m = SHAPE
    a, b = torch.randn(n, d).bfloat16(), torch.randn(d, m).bfloat16()
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(10):
            a @ b
        best = max(best, 10 * 2 * n * d * m / (time.perf_counter() - began))
    return best


def products(name: str) -> tuple[float, int]:
    """FLOPs of one step's matrix products, and its tokens."""
    with tempfile.TemporaryDirectory() as place:
        ROWS[name].prepare(Path(place))
        worker = ROWS[name].sides[OURS](Path(place))

        def stop() -> None:
            raise Stop

        with FlopCounterMode(display=False) as counted, suppress(Stop):
            worker.run(stop)
    return float(counted.get_total_flops()), worker.tokens


def measured_here() -> dict[str, Measured]:
    """The committed rows of this processor: rates of another one say nothing beside this one's peak."""
    records = [
        Record.model_validate_json(path.read_text("utf-8")) for path in sorted(RESULTS.glob("performance*.json"))
    ]
    here = environment()["processor"]
    return {row.name: row for record in records if record.environment.get("processor") == here for row in record.rows}


def main(names: list[str]) -> None:
    top, held = peak(), measured_here()
    print(f"peak {top / 1e9:,.0f} GFLOP/s in bf16, {torch.get_num_threads()} threads\n")
    print("| row | GFLOP a step | products alone, tokens/s | unmask | of it | peer's best | the most it could be |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in names or STEPS:
        flops, tokens = products(name)
        most, rates = top * tokens / flops, "not measured here | – | – | –"
        if row := held.get(name):
            ours, theirs = row.ours.rate, row.best.rate
            rates = f"{ours:,.0f} | {ours / most:.0%} | {theirs:,.0f} | {most / theirs:.1f} ×"
        print(f"| {name} | {flops / 1e9:,.0f} | {most:,.0f} | {rates} |")


if __name__ == "__main__":
    main(sys.argv[1:])
