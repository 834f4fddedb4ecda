"""Which checkpoints a run writes, how many of them lie together, and the disk that takes: said and asked beforehand."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from unmask.config import CheckpointConfig
from unmask.errors import UserError
from unmask.train.checkpoint import find, is_light, is_power_of_two


def due(step: int, config: CheckpointConfig) -> bool:
    """Is a checkpoint written after this many updates, whatever is measured?

    every = 0: at powers of two, then every 1,000. Better held-out losses and the end of a run are due besides.
    """
    if config.only_best:
        return False
    if config.at:
        return step in config.at
    if config.every:
        return step % config.every == 0
    return step % 1000 == 0 if step >= 1000 else is_power_of_two(step)


def most_at_once(total: int, config: CheckpointConfig) -> tuple[int, int]:
    """The most checkpoints that lie on the disk together, and beside them the most that are weights alone.

    Powers of two, the last, the best and one being written; those `at` steps are light but for the last.
    """
    powers = sum(due(2**k, config) for k in range(total.bit_length())) if not config.at else 0
    return powers + config.keep + 2, max(0, sum(step <= total for step in config.at) - config.keep)


def written(total: int, config: CheckpointConfig, done: int = 0) -> int:
    """How many a run of `total` updates, `done` of them over, still writes at least: of its schedule, and the last.

    >>> written(10, CheckpointConfig()), written(10, CheckpointConfig(every=5)), written(2500, CheckpointConfig())
    (5, 2, 13)
    >>> written(10, CheckpointConfig(), 4), written(12, CheckpointConfig(every=5), 10)
    (2, 1)
    """
    if done >= total:
        return 0
    return _scheduled(total, config) - _scheduled(done, config) + (not due(total, config))


def _scheduled(step: int, config: CheckpointConfig) -> int:
    """How many are due until this update."""
    if config.only_best:
        return 0
    if config.at:
        return sum(each <= step for each in config.at)
    return step // config.every if config.every else min(step, 999).bit_length() + step // 1000


def writers(config: CheckpointConfig, parallel: str, ranks: int) -> int:
    """How many ranks write files of a checkpoint."""
    return ranks if parallel == "fsdp" and config.sharded else 1


@dataclass(frozen=True)
class Room:
    """What a run's checkpoints take, in bytes: the weights of one, and the optimizer's state beside them."""

    weights: int
    optimizer: int

    @property
    def one(self) -> int:
        return self.weights + self.optimizer

    def need(self, whole: int, light: int) -> int:
        """Bytes of so many checkpoints, and so many with weights alone."""
        return whole * self.one + light * self.weights

    def required(self, out: Path, checkpoints: Path, total: int | None, config: CheckpointConfig, done: int = 0) -> str:
        """A sentence about what is to be written; UserError where the disk cannot hold what is still to come.

        total: updates of the run, `done` of which are over; None = not known before it is timed, and then room for a
        few is asked. Bytes count a little for headers.
        """
        held = list(find(checkpoints).whole.values())
        whole, light = most_at_once(total or 1, config)
        held_light = sum(map(is_light, held))
        left = max(1, whole - (len(held) - held_light)), max(0, light - held_light)
        needed, free = self.need(*left), shutil.disk_usage(out).free
        if free < needed:
            raise UserError(
                f"no room to write {out}: its checkpoints need about {needed:,} bytes ({sum(left)} at a time) and "
                f"{free:,} bytes are free: free some space, or set a larger checkpoint.every"
            )
        each = f"a checkpoint takes about {self.one:,} bytes ({self.weights:,} weights, {self.optimizer:,} optimizer)"
        if total is None:
            return f"{each}; {free:,} bytes are free; how many are written is known once the run is timed"
        number = written(total, config, done)
        more = ", and one at every better held-out loss" if config.only_best else ""
        return (
            f"{each}; at least {number} {'still ' if done else ''}to write, {number * self.one:,} bytes{more}; "
            f"at most {whole + light} lie there together, {self.need(whole, light):,} bytes; {free:,} are free"
        )
