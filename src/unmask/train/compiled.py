"""torch.compile, counted and bounded: inputs that keep changing must not make a run compile without end.

Every graph that is handed to the compiler is one compilation. The first updates of a process may make as many as they
like (each network, each kind of input, then again with lengths left open), and so may those of every stage of a run;
after them `MOST` more are made, and from then on what would need another one runs uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from unmask.train.base import Counters

Line = TypeVar("Line")
BACKEND = "inductor"
WARM = 3
"""Updates of a process whose compilations are not bounded."""
MOST = 3
"""Compilations that training may ask for after those."""


class Compilations:
    """The compiler that networks are given, and how often it was called."""

    def __init__(self) -> None:
        self.count = self.late = self.updates = 0
        self._known = 0  # those that the counters hold

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        from torch._dynamo import lookup_backend  # what torch's pages on own backends name; slow to import

        self.count += 1
        return lookup_backend(BACKEND)(graph, inputs, **options)

    def compile(self, module: nn.Module) -> None:
        """Compile a module's forward pass from its next call on."""
        module.compile(backend=self)

    @staticmethod
    def failed(error: Exception) -> bool:
        """Whether this is a compiler's failure, such as of one that a signal to all of a terminal's processes ended."""
        return any(kind.__name__ == "TorchDynamoException" for kind in type(error).__mro__)

    def expect(self) -> None:
        """The next updates have inputs of another kind: they may compile as the first ones did."""
        self.close()
        self.late = self.updates = 0

    def counted(self, update: Callable[[], Line], counters: Counters, say: Callable[[str], None]) -> Line:
        """An update, whose compilations are counted and, after the first updates, bounded.

        What an evaluation between two updates compiled is counted, and no fault of training.
        """
        before = self.count
        line = update()
        counters.compilations += self.count - self._known
        self._known, self.updates = self.count, self.updates + 1
        if self.updates > WARM and self.late < MOST:
            self.late += self.count - before
            if self.late >= MOST:
                torch.compiler.set_stance("eager_on_recompile")
                say(
                    f"compiled {self.count} times, {self.late} of them after the first {WARM} updates, since the "
                    "inputs keep changing: what would need another compilation runs uncompiled from here"
                )
        return line

    def close(self) -> None:
        """Let others of this process compile again."""
        if self.late >= MOST:
            torch.compiler.set_stance("default")
