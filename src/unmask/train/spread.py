"""How the networks of a run lie on its ranks: whole on one process, copied (DDP), or sharded (FSDP2).

    Spread      one process: a program is called, and that is all
    Replicated  DistributedDataParallel: every rank holds everything, gradients are added up in the last backward pass
    Sharded     fully_shard: every rank holds a share of every parameter, its gradient and the optimizer's state

A program reads heads and tied tables outside its networks' own forward passes, and may read several networks. DDP and
FSDP2 act around the forward pass of one module, so `Around` makes the whole program the forward pass of one module:
whatever it touches is inside, a table that two networks share is one parameter, and FSDP2's root group (all that is in
no layer) stays unsharded until the backward pass has used it.

Gradients are summed over ranks, never averaged: what a loss is divided by is global before the first backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from unmask.batch import Batch, TermKey
from unmask.train.compiled import Compilations
from unmask.train.layout import HERE, Layout, Shards

Found = TypeVar("Found")


class Term(Protocol):
    """One summand of the loss: a sum over targets, what it is divided by, and its coefficient."""

    @property
    def sum(self) -> Tensor: ...

    @property
    def norm(self) -> float: ...

    @property
    def coefficient(self) -> float: ...


Program = Callable[[Any, Batch, torch.Generator | None], Mapping[TermKey, Term]]
"""(networks, batch as tensors, generator for dropout) → terms."""


@dataclass(frozen=True)
class Addend:
    """A term whose sum went through a wrapper."""

    sum: Tensor
    norm: float
    coefficient: float


class Spread:
    """Networks of one process."""

    lockstep = False
    """Whether a forward pass is a collective, so that all ranks must make the same ones."""

    def __init__(self, networks: nn.ModuleDict) -> None:
        self.networks = networks
        self.layout: Layout = HERE

    def terms(self, program: Program, batch: Batch, generator: torch.Generator | None) -> Mapping[TermKey, Term]:
        """The terms of a micro-batch, with their graph."""
        return program(self.networks, batch, generator)

    def round(self, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward pass of a micro-batch; gradients are exchanged in the last of an update."""
        return nullcontext()

    def measured(self, function: Callable[[nn.ModuleDict], Found]) -> Found:
        """What a function that only reads them makes of the networks; called without gradients, on every rank."""
        return function(self.networks)

    def compile(self, compiled: Compilations) -> None:
        """torch.compile what is called."""
        for network in self.networks.values():
            compiled.compile(network)


class Around(nn.Module):
    """Networks under one module whose forward pass is whatever is done with them."""

    def __init__(self, networks: nn.ModuleDict) -> None:
        super().__init__()
        self.networks = networks

    def forward(self, work: Callable[[nn.ModuleDict], Any]) -> Any:
        return work(self.networks)


def _through(
    around: nn.Module, program: Program, batch: Batch, generator: torch.Generator | None
) -> Mapping[TermKey, Term]:
    """A program's terms, whose sums alone go through the wrapper: it looks for tensors in what a module returns."""
    found: dict[TermKey, Term] = {}

    def work(networks: nn.ModuleDict) -> dict[TermKey, Tensor]:
        found.update(program(networks, batch, generator))
        return {key: term.sum for key, term in found.items()}

    sums = around(work)
    return {key: Addend(sums[key], term.norm, term.coefficient) for key, term in found.items()}


class Replicated(Spread):
    """Every rank holds the networks; DDP adds up their gradients while the last backward pass still runs."""

    def __init__(self, networks: nn.ModuleDict) -> None:
        super().__init__(networks)
        from torch.nn.parallel import DistributedDataParallel

        # A part of a mixture may leave parameters unused in some updates: hence the search, and no static graph.
        self.ddp = DistributedDataParallel(Around(networks), find_unused_parameters=True, gradient_as_bucket_view=True)
        self.ddp.register_comm_hook(None, lambda _, bucket: _added(bucket))

    def terms(self, program: Program, batch: Batch, generator: torch.Generator | None) -> Mapping[TermKey, Term]:
        return _through(self.ddp, program, batch, generator)

    def round(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self.ddp.no_sync()


def _added(bucket: Any) -> torch.futures.Future[Tensor]:
    """DDP's exchange of a bucket of gradients (a `dist.GradBucket`) without its division by the ranks."""
    work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


class Sharded(Spread):
    """FSDP2: layers are gathered one by one where they are used; all the rest is one group, the root's.

    The networks come without storage (on the meta device). Here a rank gets that of its own rows, which hold nothing
    yet: whoever asked for this fills them (`Layout.fill_all`).
    """

    lockstep = True

    def __init__(self, networks: nn.ModuleDict, device: torch.device) -> None:
        super().__init__(networks)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if any(not tensor.is_meta for tensor in (*networks.parameters(), *networks.buffers())):
            raise ValueError("networks that are cut come without storage: what they hold would be lost")
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        self.layout = Shards()
        self.around = Around(networks)
        self.layers = list(layers_apart(networks))
        for layer in self.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.around, mesh=mesh, reshard_after_forward=False)
        self.around.to_empty(device=device)
        for module in self.around.modules():
            if isinstance(module, FSDPModule):  # sums, not means; gloo knows no other reduction
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def terms(self, program: Program, batch: Batch, generator: torch.Generator | None) -> Mapping[TermKey, Term]:
        return _through(self.around, program, batch, generator)

    @contextmanager
    def round(self, last: bool) -> Iterator[None]:
        """Until the last one, gradients stay whole on the rank that made them (4 bytes a parameter)."""
        self.around.set_requires_gradient_sync(last)  # type: ignore[operator]  # of FSDPModule, which it is by now
        self.around.set_is_last_backward(last)  # type: ignore[operator]
        yield

    def measured(self, function: Callable[[nn.ModuleDict], Found]) -> Found:
        """Inside the root's forward pass, where tables and heads are whole; every rank makes the same passes."""
        found: Found = self.around(function)
        self.around.reshard()  # type: ignore[operator]  # no backward pass will: the root would keep stale numbers
        return found

    def compile(self, compiled: Compilations) -> None:
        """Layers by themselves: what gathers them cannot be compiled."""
        for layer in self.layers:
            compiled.compile(layer)


def layers_apart(networks: nn.Module) -> Iterator[nn.Module]:
    """The repeated layers (children of a "layers") that hold their parameters alone; each once.

    One whose parameter another module holds, too, is left to the root: two groups cannot shard one parameter.
    """
    holders: dict[int, set[int]] = {}
    for module in networks.modules():
        for p in module.parameters(recurse=False):
            holders.setdefault(id(p), set()).add(id(module))
    for name, module in networks.named_modules():
        inside = {id(m) for m in module.modules()}
        own = [holders[id(p)] <= inside for p in module.parameters()]
        if name.split(".")[-2:-1] == ["layers"] and own and all(own):
            yield module
