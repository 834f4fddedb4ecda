"""Where the numbers of a parameter lie: all of them here, or a shard on every rank (FSDP2's DTensors).

The optimizer asks this where a step needs a matrix as a whole. On one process every answer is the tensor itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

HELD = 1 << 26
"""Numbers of whole matrices that a rank holds at once beside its shards, where Muon gathers them: 256 MB in fp32."""

Moved = tuple[Tensor, Tensor]
"""(parameter, update)."""


class Layout:
    """Every tensor is whole, and here."""

    def whole(self, tensor: Tensor) -> Tensor:
        """All numbers of a tensor. On many ranks a collective: every rank asks for the same tensors in one order."""
        return tensor

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """A copy of what this rank holds of a whole tensor, laid out and placed as `like` is."""
        return whole.to(like.device, copy=True)

    def goal(self, parameter: Tensor) -> Tensor:
        """A whole tensor that updates are added to, before `settle`."""
        return parameter

    def settle(self, parameter: Tensor, goal: Tensor) -> None:
        """Bring what was added to the goal to the parameter."""

    def gathered(self, tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
        """The whole tensors, one after the other, for the rank that keeps them; {} for the others. A collective."""
        return dict(tensors) if keep else {}

    def bundles(self, moved: Sequence[Moved]) -> Iterable[Sequence[Moved]]:
        """The parameters that are worked on together: all."""
        return [moved]


HERE = Layout()
"""The layout of one process."""


class Shards(Layout):
    """Every rank holds the rows of its shard (dim 0)."""

    def __init__(self) -> None:
        from torch.distributed.tensor import DTensor, distribute_tensor  # imported here: one process needs neither

        self._type, self._distribute = DTensor, distribute_tensor

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, self._type) else tensor

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        assert isinstance(like, self._type)
        here = whole.to(like.device)
        # src_data_rank=None: every rank has the same whole tensor and cuts its own shard; nothing is sent
        return self._distribute(here, like.device_mesh, like.placements, src_data_rank=None).clone()

    def goal(self, parameter: Tensor) -> Tensor:
        return torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)

    def settle(self, parameter: Tensor, goal: Tensor) -> None:
        parameter.add_(self.part(goal, parameter))

    def gathered(self, tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
        out = {}
        for name, tensor in tensors.items():
            whole = self.whole(tensor)
            if keep:
                out[name] = whole.cpu()  # off the device: its memory is for one of them at a time
        return out

    def bundles(self, moved: Sequence[Moved]) -> Iterator[Sequence[Moved]]:
        """Runs of at most HELD numbers, or of one parameter that is larger."""
        bundle: list[Moved] = []
        for one in moved:
            if bundle and sum(p.numel() for p, _ in bundle) + one[0].numel() > HELD:
                yield bundle
                bundle = []
            bundle.append(one)
        if bundle:
            yield bundle
