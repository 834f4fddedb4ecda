"""Where the numbers of a parameter lie: all of them here, or a shard on every rank (FSDP2's DTensors).

The optimizer asks this where a step needs a matrix as a whole, and a checkpoint for what each rank writes and reads.
On one process every answer is the tensor itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from unmask.tensors import Readable

HELD = 1 << 26
"""Numbers of whole matrices that a rank holds at once beside its shards, where Muon gathers them: 256 MB in fp32."""

Moved = tuple[Tensor, Tensor]
"""(parameter, update)."""


class Layout:
    """Every tensor is whole, and here."""

    sharded = False
    """Whether each rank holds rows of its own."""

    def whole(self, tensor: Tensor) -> Tensor:
        """All numbers of a tensor. On many ranks a collective: every rank asks for the same tensors in one order."""
        return tensor

    def rows(self, tensor: Tensor) -> tuple[int, int] | None:
        """(first, end) of the rows that this rank holds; None where it holds the tensor as a whole."""
        return None

    def held(self, tensor: Tensor) -> Tensor:
        """What this rank holds of a tensor, as a plain one of the same memory."""
        return tensor

    def part(self, whole: Readable, like: Tensor) -> Tensor:
        """A copy of what this rank holds of a tensor, laid out and placed as `like` is; no more of it is read."""
        return whole[...].to(like.device, copy=True)

    def fill(self, tensor: Tensor, whole: Readable) -> None:
        """Copy what this rank holds of a tensor into it; no more of it is read."""
        tensor.copy_(whole[...])

    def fill_all(self, tensors: Mapping[str, Tensor], wholes: Mapping[str, Readable]) -> None:
        """`fill` tensors by name, one after the other."""
        with torch.no_grad():
            for name, tensor in tensors.items():
                self.fill(tensor, wholes[name])

    def goal(self, parameter: Tensor) -> Tensor:
        """A whole tensor that updates are added to, before `settle`."""
        return parameter

    def settle(self, parameter: Tensor, goal: Tensor) -> None:
        """Bring what was added to the goal to the parameter."""

    def gathered(self, tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
        """The whole tensors for the rank that keeps them, {} for the others. A collective.

        Of shards they are made one after the other, as copies in main memory.
        """
        return dict(tensors) if keep else {}

    def bundles(self, moved: Sequence[Moved]) -> Iterable[Sequence[Moved]]:
        """The parameters that are worked on together: all."""
        return [moved]


HERE = Layout()
"""The layout of one process."""


class Shards(Layout):
    """Rank r of R holds the rows of its shard: of n rows those from r × ⌈n / R⌉ on, ⌈n / R⌉ or what is left.

    n = 10, R = 4    rows 0–2, 3–5, 6–8, 9
    n = 2,  R = 4    rows 0, 1, none, none
    """

    sharded = True

    def __init__(self) -> None:
        from torch.distributed.tensor import DTensor  # imported here: one process does not need it

        self._type = DTensor

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, self._type) else tensor

    def rows(self, tensor: Tensor) -> tuple[int, int] | None:
        if not isinstance(tensor, self._type):
            return None
        number, mesh = tensor.shape[0], tensor.device_mesh
        each = -(-number // mesh.size())
        first = min(number, mesh.get_local_rank() * each)
        end = min(number, first + each)
        if tensor.to_local().shape[0] != end - first:
            raise ValueError(f"a shard of {tensor.to_local().shape[0]} rows stands where {end - first} were expected")
        return first, end

    def held(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, self._type) else tensor

    def part(self, whole: Readable, like: Tensor) -> Tensor:
        rows = self.rows(like)
        if rows is None:
            return super().part(whole, like)
        assert isinstance(like, self._type)
        here = whole[rows[0] : rows[1]].to(like.device, copy=True)
        return self._type.from_local(
            here, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def fill(self, tensor: Tensor, whole: Readable) -> None:
        rows = self.rows(tensor)
        self.held(tensor).copy_(whole[...] if rows is None else whole[rows[0] : rows[1]])

    def goal(self, parameter: Tensor) -> Tensor:
        return torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)

    def settle(self, parameter: Tensor, goal: Tensor) -> None:
        parameter.add_(self.part(goal, parameter))

    def gathered(self, tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
        out = {}
        for name, tensor in tensors.items():
            whole = self.whole(tensor)
            if keep:
                same = whole.untyped_storage().data_ptr() == self.held(tensor).untyped_storage().data_ptr()
                out[name] = whole.to("cpu", copy=same)  # off the device: its memory is for one of them at a time
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
