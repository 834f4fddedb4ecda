"""The processes that train one run together: how many there are, which one this is, and what they tell each other.

`Ranks` is one process, for which every method is trivial; `Group` is what torchrun starts. A run does not depend on
how many there are: an update is cut into micro-batches by arithmetic, rank r of R takes those numbered r, r + R, …,
and what is small (norms, counts, sums of losses, a wish to stop) is added up over the ranks in double precision.

Rank 0 alone speaks, and writes all but the rows of a checkpoint that others hold (`train.saver`). All ranks make the
same decisions, from numbers that they share.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from unmask.errors import RankError, UserError
from unmask.process import processes
from unmask.train.devices import choose_device
from unmask.train.hooks import Stop
from unmask.train.spread import Replicated, Sharded, Spread

Parallel = Literal["auto", "ddp", "fsdp"]
Made = TypeVar("Made")

PATIENCE = timedelta(hours=1)
"""How long a rank waits for the others, as while rank 0 prepares text or writes a large checkpoint."""
SAME_REQUEST = 10.0
"""Seconds in which a second signal is the first one again: a scheduler and torchrun both pass it on."""
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LOST = ("closed by peer", "Connection reset", "Connection refused", "Broken pipe", "Timed out", "timed out", "NCCL")
"""What torch's errors say when another rank is gone."""


class Ranks:
    """One process."""

    rank, count, local = 0, 1, 0
    first = True
    """Whether this one writes and speaks."""
    parallel: Parallel = "auto"

    def device(self, name: str) -> torch.device:
        """The device that a setting names, for this rank."""
        return choose_device(name)

    def add(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, which must ask for as many; the same bits everywhere."""
        return list(values)

    def most(self, value: float) -> float:
        """The largest over the ranks."""
        return value

    def told(self, value: float) -> float:
        """What rank 0 has, whatever this one has."""
        return value

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work that may fail on some ranks and then fails on all; no rank leaves before all are done.

        The lowest rank that failed tells its own error (`RankError` where that is not rank 0). Inside there is no
        other exchange between ranks.
        """
        yield

    def in_turn(self, make: Callable[[], Made]) -> Made:
        """Rank 0 first, then the first rank of every other machine, then all: what one makes, the next ones find."""
        return make()

    def stop(self) -> Stop:
        """What listens for Ctrl-C and SIGTERM."""
        return Stop()

    def spread(self, networks: nn.ModuleDict, device: torch.device) -> Spread:
        """The networks as this run's ranks hold them."""
        return Spread(networks)

    def choose(self, parallel: Parallel, continuing: bool) -> None:
        """Take up the recipe's setting; a sentence where one process cannot. A run that is continued may: its numbers
        are those of any number of ranks."""
        if parallel != "auto" and not continuing:
            raise UserError(
                f"parallel={parallel} needs several processes, and this is one: start it with torchrun "
                "(torchrun --nproc-per-node 2 -m unmask pretrain …), or leave parallel out"
            )

    def describe(self, micro: int) -> str | None:
        """A sentence about who does what, where there is something to say; `micro` batches an update."""
        return None

    def deal(self, micro: int) -> range:
        """The numbers of this rank's micro-batches, of `micro` of an update."""
        return range(self.rank, micro, self.count)


class Group(Ranks):
    """This process among those of torch.distributed's default group."""

    def __init__(self, local: int = 0) -> None:
        self.rank, self.count, self.local = dist.get_rank(), dist.get_world_size(), local
        self.first = self.rank == 0

    def device(self, name: str) -> torch.device:
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        if name.startswith("cuda:"):
            raise UserError(f"device={name} is one GPU and there are {self.count} ranks: give device=cuda, or auto")
        return choose_device(f"cuda:{self.local}" if name == "cuda" else name)

    def _all(self, values: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
        tensor = torch.tensor(list(values), dtype=torch.float64)  # on the CPU: gloo, whatever the networks' device
        dist.all_reduce(tensor, how)
        return list(tensor.tolist())

    def add(self, values: Sequence[float]) -> list[float]:
        return self._all(values, dist.ReduceOp.SUM)

    def most(self, value: float) -> float:
        return self._all([value], dist.ReduceOp.MAX)[0]

    def told(self, value: float) -> float:
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(tensor, 0)
        return float(tensor)

    @contextmanager
    def together(self) -> Iterator[None]:
        failed: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failed = error
        lowest = int(-self.most(-float(self.count if failed is None else self.rank)))
        if failed is not None:
            if isinstance(failed, UserError) and self.rank == lowest != 0:
                raise RankError(f"rank {self.rank}: {failed}") from failed
            raise failed
        if lowest < self.count:
            raise UserError(f"rank {lowest} cannot go on, and says why: the run stops on all {self.count} ranks")

    def in_turn(self, make: Callable[[], Made]) -> Made:
        mine = 0 if self.rank == 0 else 1 if self.local == 0 else 2
        made: list[Made] = []
        for turn in range(3):
            with self.together():
                if turn == mine:
                    made.append(make())
        return made[0]

    def stop(self) -> Stop:
        return Patient()

    def spread(self, networks: nn.ModuleDict, device: torch.device) -> Spread:
        return Sharded(networks, device) if self.parallel == "fsdp" else Replicated(networks)

    def choose(self, parallel: Parallel, continuing: bool) -> None:
        self.parallel = "ddp" if parallel == "auto" else parallel

    def describe(self, micro: int) -> str:
        how = "shards (FSDP2)" if self.parallel == "fsdp" else "copies (DDP)"
        text = f"{self.count} ranks hold {how} of the model; micro-batches of an update: {micro}"
        rounds = -(-micro // self.count)
        if idle := rounds * self.count - micro:
            text += (
                f", so {idle} of {rounds * self.count} turns are idle: none would be at train.grad_accumulation="
                f"{rounds * self.count} (which is fixed when a run starts)"
            )
        return text


class Unwritten:
    """The metrics of a rank that writes none."""

    def write(self, line: Mapping[str, Any]) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Patient(Stop):
    """Listens where several senders pass one request on: a repeat within SAME_REQUEST seconds says nothing new."""

    def __init__(self) -> None:
        super().__init__()
        self._since = 0.0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None and time.monotonic() - self._since < SAME_REQUEST:
            return
        self._since = time.monotonic()
        super()._handle(number, frame)


def number_of(request: str | None) -> int:
    """A request to stop as a number that ranks can compare; 0 = none."""
    return 0 if request is None else int(signal.Signals[request])


def request_of(number: float) -> str | None:
    return signal.Signals(int(number)).name if number else None


@contextmanager
def session(device: str = "auto") -> Iterator[Ranks]:
    """The ranks that this process is one of, by the variables that torchrun sets; one process without them.

    gloo carries what is on the CPU, nccl what is on GPUs. A group that exists already is used, and left.
    """
    if processes() == 1 and not dist.is_initialized():
        yield Ranks()
        return
    owns = not dist.is_initialized()
    if owns:
        _meet(device)
    try:
        group = Group(int(os.environ.get("LOCAL_RANK", "0")))
        group.device(device)  # refused now, not after text was prepared
        yield group
    except RuntimeError as error:
        if any(word in str(error) for word in LOST):
            raise UserError(
                "another rank is gone: checkpoints that were written are whole, so start the command again with "
                f"resume=auto (rank {dist.get_rank()} heard: {' '.join(str(error).split())[:200]})"
            ) from error
        raise
    if owns:
        dist.destroy_process_group()


def _meet(device: str) -> None:
    """Join the default group."""
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise UserError(
            f"WORLD_SIZE={os.environ.get('WORLD_SIZE')} is set and {missing[0]} is not: start several processes with "
            "torchrun, or unset it"
        )
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.is_available() and not device.startswith("cpu")
    if gpus and here > torch.cuda.device_count():
        raise UserError(
            f"{here} processes and {torch.cuda.device_count()} GPUs on this machine: give torchrun "
            f"--nproc-per-node {torch.cuda.device_count()}, or device=cpu"
        )
    if gpus:
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=PATIENCE)
