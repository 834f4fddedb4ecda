"""Activation checkpointing (Chen et al. 2016): a layer keeps its input alone, and is computed again going backward.

Dropout draws from explicit generators, which torch's checkpoint knows nothing of: the second pass finds them in the
state that the first one found, and leaves them where they are now. The result is the same bit for bit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unmask.model.parts import Context

if TYPE_CHECKING:
    from unmask.model.experts import Routing


def recomputed(layer: nn.Module, x: Tensor, context: Context, depth: int, keys: Tensor | None) -> Tensor:
    """What the layer makes of x (B, T, d), keeping x alone for the backward pass."""
    from torch.utils.checkpoint import checkpoint

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), Again(context)

    found: Tensor = checkpoint(
        layer, x, context, depth, keys, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
    )
    return found


class Again(AbstractContextManager[None]):
    """Around every second pass: generators as the first pass found them, and no report of experts made twice."""

    def __init__(self, context: Context) -> None:
        drops = [drop for drop in (context.drop, context.drop_attention) if drop is not None]
        self.generators: list[torch.Generator] = list({id(d.generator): d.generator for d in drops}.values())
        self.first = [generator.get_state() for generator in self.generators]
        self.now: list[Tensor] = []
        self.routing: list[Routing] = [] if context.routing is None else context.routing.found
        self.reports = 0

    def __enter__(self) -> None:
        self.now, self.reports = [generator.get_state() for generator in self.generators], len(self.routing)
        for generator, state in zip(self.generators, self.first, strict=True):
            generator.set_state(state)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self.routing[self.reports :]
        for generator, state in zip(self.generators, self.now, strict=True):
            generator.set_state(state)
