"""What a terminal shows while a run trains: a small table that is redrawn in place.

    step 120/1,000 · 0:42 left
    loss of all targets    2.345
      pairs/lm             2.100
      pairs/next           0.245
    tokens/s               12,345
    target tokens/s         1,852
    learning rate         9.8e-04
    gradient norm           0.712
    data wait                 1 %
    MFU                      34 %  of 1.2e+12 FLOP/s, by peak_flops

Rates are of the updates since the table was drawn last. A row whose value is not known is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TextIO

from unmask.train.peak import Peak


@dataclass(frozen=True)
class Mark:
    """Where the counters stood at some update; `waited`: seconds spent on waiting for batches, of this process."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    target_tokens: int = 0
    flops: float = 0.0
    waited: float | None = None

    @classmethod
    def of(cls, line: Mapping[str, Any], waited: float | None) -> Self:
        """Of a line of metrics."""
        counted = (line["step"], line["seconds"], line["tokens"], line.get("target_tokens", 0), line.get("flops", 0.0))
        return cls(*counted, waited)


Row = tuple[str, str, str]
"""Name, value, and a note on how it is known."""


def rows(line: Mapping[str, Any], since: Mark, now: Mark, peak: Peak | None) -> list[Row]:
    """Everything that is known after an update.

    >>> line = {"loss": 2.5, "terms": {"a/b": 2.5}, "lr": 1e-3, "grad_norm": 0.5}
    >>> now = Mark(step=8, seconds=4.0, tokens=800, target_tokens=120, flops=4e9, waited=0.2)
    >>> for name, value, note in rows(line, Mark(waited=0.0), now, Peak(2e9, "by peak_flops")):
    ...     print(f"{name:20} {value} {note}".rstrip())
    loss of all targets  2.500
    tokens/s             200
    target tokens/s      30
    learning rate        1.0e-03
    gradient norm        0.500
    data wait            5 %
    MFU                  50 % of 2e+09 FLOP/s, by peak_flops
    """
    spent = max(now.seconds - since.seconds, 1e-9)
    known = {"loss of all targets": number(line["loss"])}
    if len(line["terms"]) > 1:
        known |= {f"  {name}": number(value) for name, value in line["terms"].items()}
    known["tokens/s"] = f"{(now.tokens - since.tokens) / spent:,.0f}"
    if now.target_tokens:
        known["target tokens/s"] = f"{(now.target_tokens - since.target_tokens) / spent:,.0f}"
    if (rate := line.get("lr")) is not None:
        known["learning rate"] = f"{rate:.1e}"
    if (norm := line.get("grad_norm")) is not None:
        known["gradient norm"] = f"{norm:.3f}"
    if now.waited is not None and since.waited is not None:
        known["data wait"] = f"{100 * (now.waited - since.waited) / spent:.0f} %"
    out = [(name, value, "") for name, value in known.items()]
    if peak is not None and now.flops > since.flops:
        used = (now.flops - since.flops) / spent / peak.flops
        out.append(("MFU", f"{100 * used:.0f} %", f"of {peak.flops:.2g} FLOP/s, {peak.known}"))
    return out


def number(value: float | None) -> str:
    """A loss as it is shown.

    >>> number(2.5), number(None)
    ('2.500', 'no targets')
    """
    return "no targets" if value is None else f"{value:.3f}"


class Display:
    """The table on a terminal; messages that stay go above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # imported here: only a terminal needs it
        from rich.live import Live

        self.live = Live(console=Console(file=stream), auto_refresh=False, transient=True)
        self.live.start()

    def show(self, title: str, values: list[Row]) -> None:
        """Draw it anew."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column(justify="right")
        table.add_column()
        for row in values:
            table.add_row(*map(Text, row))
        outer = Table.grid()
        outer.add_row(Text(title, style="bold"))
        outer.add_row(table)
        self.live.update(outer, refresh=True)

    def say(self, text: str) -> None:
        """A message that stays."""
        self.live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self.live.stop()
