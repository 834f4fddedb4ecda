"""The learning rate's share of its peak, as a pure function of the update's number.

Nothing is stored and nothing advances: update `step` (0, 1, …, total - 1) of a run of `total` updates has one
factor, whatever the accumulation and however often the run was resumed.

    warm-up   (step + 1) / w for the first w updates, so update 0 already moves and update w - 1 is at the peak
    constant  1
    linear    from 1 at the peak to `final_lr` at the last update
    cosine    the same ends along half a cosine (Loshchilov and Hutter 2017, "SGDR", eq. 5 without restarts)
    wsd       1, then linear to `final_lr` over the last `decay_fraction` (Hu et al. 2024, "MiniCPM", section 4)

All but `constant` reach `final_lr` at update total - 1 exactly. A warm-up longer than half the run is cut to half.
"""

from __future__ import annotations

import math

from unmask.config import TrainConfig


def factor(step: int, total: int, config: TrainConfig) -> float:
    """The share of the peak rate at update `step` of `total`.

    >>> c = TrainConfig(schedule="linear", warmup_steps=2, final_lr=0.1)
    >>> [round(factor(s, 5, c), 3) for s in range(5)]
    [0.5, 1.0, 0.7, 0.4, 0.1]
    """
    warmup = min(config.warmup_steps, total // 2)
    if step < warmup:
        return (step + 1) / warmup
    peak, last = max(warmup, 1) - 1, total - 1
    if config.schedule == "wsd":
        peak = max(peak, last - round(config.decay_fraction * total))
    if config.schedule == "constant" or step <= peak:
        return 1.0
    x = min((step - peak) / (last - peak), 1.0)
    if config.schedule == "cosine":
        x = 0.5 * (1.0 - math.cos(math.pi * x))
    return 1.0 - (1.0 - config.final_lr) * x


def warming(step: int, config: TrainConfig) -> float:
    """The factor while a run in minutes is still being timed: its length, hence its fall, is not known yet."""
    return min((step + 1) / max(config.warmup_steps, 1), 1.0)


STILL = 1e-9
"""A rate at which weights in fp32 do not move: AdamW moves them by about the rate, and from 0.02 on the next number
is farther off than twice this."""
LOOKED_AT = 4096
"""Updates at which a schedule is looked at."""
MANY = 0.01
"""Share of a run's last updates at rate 0 that is worth a warning; the very last one may be."""


def idle(total: int, config: TrainConfig) -> str | None:
    """A sentence where the rate is 0 in effect all along, or well before the end; None = all is well.

    >>> idle(1000, TrainConfig()) is None
    True
    >>> str(idle(1000, TrainConfig(learning_rate=1e-12)))[:63]
    'WARNING: the learning rate is 0 in effect in all 1,000 updates '
    """
    peak = max(config.learning_rate, config.muon_learning_rate if config.optimizer == "muon" else 0.0)
    every = max(1, total // LOOKED_AT)
    steps = range(0, max(total - 1, 1), every)  # the very last update may rest
    moving = [step for step in steps if peak * factor(step, total, config) >= STILL]
    if not moving:
        return (
            f"WARNING: the learning rate is 0 in effect in all {total:,} updates (at most {peak:g}, and weights in "
            f"fp32 do not move below {STILL:g}): raise train.learning_rate"
        )
    resting = steps[-1] - moving[-1]
    if resting <= MANY * total:
        return None
    return (
        f"WARNING: the learning rate is 0 in effect in the last {resting:,} of {total:,} updates (below {STILL:g}, "
        "where weights in fp32 do not move): raise train.learning_rate or train.final_lr, or train shorter"
    )
