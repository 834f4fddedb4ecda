"""How a table says what several seeds found."""

from __future__ import annotations

from collections.abc import Iterable

Cell = str | float | int | None


def spread(values: Iterable[float | None]) -> Cell:
    """The mean, where several seeds have one with the lowest and the highest; without those that are None or nan.

    >>> spread([0.5]), spread([0.5, None, 0.75]), spread([float("nan")])
    (0.5, '0.62 (0.50–0.75)', None)
    """
    there = [v for v in values if v is not None and v == v]
    if len(there) < 2:
        return there[0] if there else None
    return f"{sum(there) / len(there):.2f} ({min(there):.2f}–{max(there):.2f})"
