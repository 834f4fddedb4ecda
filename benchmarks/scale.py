"""How often the intervals of a fitted scaling law hold the law that its points were drawn from.

    OMP_NUM_THREADS=1 python benchmarks/scale.py [--draws 100] [--resamples 1000] [--noise 0.001 0.003 0.01]

The points are those of the tests (tests/scale/helpers.py): 63 runs on the published refit of Chinchilla's data, log
loss off by normal noise. A row for each noise, as docs/scale.md has them: of so many draws those inside the 95 %
interval, and the median and largest error of the predicted loss at ten and a hundred times the largest budget.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "scale"))

from helpers import ladder

from unmask.scale.fit import bootstrap, fit, interval
from unmask.scale.law import REFIT, laws

AHEAD = (1e22, 1e23)


def row(noise: float, draws: int, resamples: int) -> str:
    """A row of the table."""
    inside, ahead, errors = np.zeros((draws, 6), bool), np.zeros(draws, bool), np.zeros((draws, 2))
    for k in range(draws):
        points = ladder(noise, seed=k)
        law = fit(points)
        rows = bootstrap(points, law, resamples)
        low, high = np.quantile(rows, [0.025, 0.975], axis=0)
        inside[k, :5] = (low <= REFIT.row()) & (high >= REFIT.row())
        low, high = interval(laws(rows).exponent)
        inside[k, 5] = low <= REFIT.exponent <= high
        at = [REFIT.best(c) for c in AHEAD]
        truth = [float(REFIT.loss(*b)) for b in at]
        low, high = interval(laws(rows).loss(*at[0]))
        ahead[k] = low <= truth[0] <= high
        errors[k] = [abs(float(law.loss(*b)) / t - 1) for b, t in zip(at, truth, strict=True)]
    counts = [*inside[:, :5].sum(0), inside[:, :5].all(1).sum(), inside[:, 5].sum(), ahead.sum()]
    told = [f"{100 * np.median(e):.2f} %, {100 * e.max():.2f} %" for e in errors.T]
    return f"| {100 * noise:g} % | {' | '.join(str(int(c)) for c in counts)} | {' | '.join(told)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.001, 0.003, 0.01])
    options = parser.parse_args()
    print("| noise | E | A | B | α | β | all five | a | loss at 10²² | its error: median, largest | at 10²³ |")
    print("|" + "---|" * 11)
    for noise in options.noise:
        print(row(noise, options.draws, options.resamples), flush=True)


if __name__ == "__main__":
    main()
