"""A run in stages: the context or the batch size changes on the way (sequence-length and batch-size warm-up).

Every stage has a `Loader`. Which stage an update belongs to, and which of its updates it is, follows from (step,
progress) alone: progress is step / total, and the total says where stages begin (`TrainConfig.begins`). So the batches
of a run remain a pure function, whatever was built, cut or resumed before.

Stages of one context share one order of texts, and a later one goes on where the earlier one stopped: no text is read
twice in an epoch. A window of samples that a stage leaves amid is not taken up again, so up to 255 texts wait for the
next epoch. Another context cuts the texts anew: it has an order, and epochs, of its own, unless all texts are so short
that they are the same ones.

    total 12, shares ½ ¼ ¼     updates 0 … 5     6 7 8           9 10 11
    contexts                   64                128             64
    sample numbers             0 … of order 0    0 … of order 1  of order 0, after the first stage's
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from unmask.batch import Batch
from unmask.data.loader import Begin, Loader
from unmask.data.sampling import Sampler
from unmask.keyed import row_keys
from unmask.objectives.mixture import Part


class Stages:
    """Batches of a run of one stage or several; `stages(step, progress)` is a pure function like `Loader`'s.

    loaders: one a stage; those with equal orders have the same texts.
    begins: total → the first update of every stage.
    """

    def __init__(self, loaders: Sequence[Loader], begins: Callable[[int], Sequence[int]]) -> None:
        self.loaders, self.begins = list(loaders), begins

    @property
    def parts(self) -> dict[str, Part]:
        return self.loaders[0].parts

    def __call__(self, step: int, progress: float = 0.0, cut: range | None = None) -> list[Batch]:
        """The micro-batches of an update (`Loader`); at progress 0 of the first stage, which an unknown total is in."""
        loader, begin = self._at(step, progress)
        return loader(step, progress, cut, begin)

    def texts(self, step: int, progress: float = 0.0) -> list[tuple[int, np.ndarray]]:
        """The texts that an update reads (`Loader.texts`)."""
        loader, begin = self._at(step, progress)
        return loader.texts(step, progress, begin)

    def _at(self, step: int, progress: float) -> tuple[Loader, Begin]:
        if not step or not progress:
            return self.loaders[0], Begin()
        begins = self.begins(round(step / progress))
        k = bisect_right(begins, step) - 1
        own = self.loaders[k]
        before = zip(self.loaders[:k], pairwise(begins[: k + 1]), strict=True)
        return own, Begin(begins[k], sum(a.samples(end - at) for a, (at, end) in before if a.order == own.order))

    # ------------------------------------------------------------ what is said of them

    def require_sound(self) -> None:
        """`Loader.require_sound`, of each."""
        for loader in self.loaders:
            loader.require_sound()

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for loader in self.loaders for note in loader.notes))

    def mixture(self, names: Sequence[str], steps: int | None = None) -> str:
        """What each source gets (`Loader.mixture`)."""
        if len(self.loaders) == 1:
            return self.loaders[0].mixture(names, steps)
        each = [None] * len(self.loaders) if steps is None else [b - a for a, b in self._spans(steps)]
        told = [loader.mixture(names, n) for loader, n in zip(self.loaders, each, strict=True)]
        return "; ".join(f"stage {k}, {one}" for k, one in enumerate(told, 1))

    def coverage(self, steps: int) -> str | None:
        """How often a run of so many updates has read each text (`Loader.coverage`), order by order."""
        if len(self.loaders) == 1:
            return self.loaders[0].coverage(steps)
        orders: dict[Sampler, list[tuple[int, Loader, int]]] = {}
        for k, (loader, (first, end)) in enumerate(zip(self.loaders, self._spans(steps), strict=True), 1):
            orders.setdefault(loader.order, []).append((k, loader, end - first))
        told = []
        for own in orders.values():
            loader, updates = own[0][1], sum(n for *_, n in own)
            samples = None if len(own) == 1 else sum(n * each.per_step for _, each, n in own)
            if (one := loader.coverage(updates, samples)) is not None:
                told.append(f"stage {', '.join(str(k) for k, *_ in own)}: {one}")
        return "; ".join(told) or None

    def _spans(self, steps: int) -> list[tuple[int, int]]:
        return list(pairwise([*self.begins(steps), steps]))


def seed_of(seed: int, nth: int) -> int:
    """The seed of the run's nth order of texts; that of the first is the run's own."""
    return seed if nth == 0 else int(row_keys(seed, 0, nth, "stage")) >> 1
