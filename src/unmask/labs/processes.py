"""Models of a laboratory side by side, a process of its own for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

import torch

from unmask.process import cores

Found = TypeVar("Found")


def side_by_side(
    works: Sequence[Callable[[], Found]], say: Callable[[str], None], told: Callable[[int, Found], str]
) -> list[Found]:
    """What each of the works finds, in their order; as many run at a time as there are cores, with one thread each.

    works: can be pickled, as processes are started afresh. told: of a work that is done, by its place, what to say.
    What a work raises is raised here, once those that had begun are done.
    """
    jobs = min(len(works), cores())
    say(f"{len(works)} models, {jobs} at a time")
    with ProcessPoolExecutor(jobs, get_context("spawn"), _one_thread) as pool:
        places = {pool.submit(_call, work): k for k, work in enumerate(works)}
        for number, future in enumerate(as_completed(places)):
            say(f"{number + 1} of {len(works)}: {told(places[future], future.result())}")
        return [future.result() for future in places]


def _call(work: Callable[[], Found]) -> Found:
    return work()


def _one_thread() -> None:
    torch.set_num_threads(1)
