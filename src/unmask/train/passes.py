"""Forward and backward passes of one update: what its loss is divided by, and which micro-batches are this rank's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.batch import Batch, TermKey
from unmask.keyed import row_keys
from unmask.train.devices import doubled, to_device
from unmask.train.ranks import Ranks
from unmask.train.spread import Program, Spread


@dataclass(frozen=True)
class Passes:
    """Called with an update's micro-batches, they leave its gradients on the parameters (`trainer` has the formula).

    seed: of the run; with the update's number and a micro-batch's it keys dropout. precision: fp32, or bf16 (autocast).
    """

    spread: Spread
    program: Program
    ranks: Ranks
    device: torch.device
    precision: str
    seed: int

    def __call__(
        self,
        step: int,
        micro: list[Batch],
        norms: Mapping[TermKey, float],
        number: int | None = None,
        filler: Batch | None = None,
    ) -> dict[TermKey, tuple[float, float]]:
        """Add up the gradients of the update's loss; returns (coefficient, value) of every term.

        number: micro-batches over all ranks. A rank that has fewer than others, or none, goes through `filler` at a
        factor of 0 in their stead: its gradient is 0, and no rank waits for it in vain.
        """
        number = number or len(micro)
        rounds = -(-number // self.ranks.count)
        sums: dict[TermKey, list[Tensor]] = {}
        weights: dict[TermKey, tuple[float, float]] = {}  # term → (coefficient, divisor)
        for m in range(rounds):
            own = m < len(micro)
            batch = micro[m] if own else filler
            assert batch is not None
            g = self.ranks.rank + m * self.ranks.count
            generator = torch.Generator(self.device).manual_seed(int(row_keys(self.seed, step, g, "dropout")))
            with self.spread.round(last=m == rounds - 1):
                with self.casting():
                    terms = self.spread.terms(self.program, to_device(batch, self.device), generator)
                loss: Tensor | None = None
                for key, term in terms.items():
                    divisor = norms.get(key, number * float(term.norm))
                    if weights.setdefault(key, (term.coefficient, divisor)) != (term.coefficient, divisor):
                        raise ValueError(f"term {key}: coefficient and norm must agree between the micro-batches")
                    part = term.sum * (term.coefficient / divisor if divisor and own else 0.0)
                    loss = part if loss is None else loss + part
                    sums.setdefault(key, []).append(term.sum.detach() if own else torch.zeros_like(term.sum))
                if loss is not None and loss.requires_grad:
                    torch.autograd.backward(loss)
        return self._values(sums, weights)

    def _values(
        self, sums: Mapping[TermKey, list[Tensor]], weights: Mapping[TermKey, tuple[float, float]]
    ) -> dict[TermKey, tuple[float, float]]:
        """(coefficient, value) of every term from this rank's sums and the update's divisors."""
        totals = torch.stack([doubled(torch.stack(s)).sum() for s in sums.values()]).tolist() if sums else []
        return {
            key: (weights[key][0], total / weights[key][1] if weights[key][1] else 0.0)
            for key, total in zip(sums, self.ranks.add(totals), strict=True)
        }

    def casting(self) -> torch.autocast:
        """Products in the run's precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")
