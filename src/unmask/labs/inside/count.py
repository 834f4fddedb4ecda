"""Parameters of a GPT by formula: four matrices a layer, two tables, and little else.

Legend: V vocabulary, T positions, d hidden size, L layers.
"""

from __future__ import annotations

from typing import NamedTuple


class Size(NamedTuple):
    vocabulary: int
    positions: int
    hidden: int
    layers: int


INSIDE = Size(44, 96, 64, 2)
GPT2_SMALL = Size(50_257, 1_024, 768, 12)
"""Radford et al. 2019."""
GPT3 = Size(50_257, 2_048, 12_288, 96)
"""Brown et al. 2020, table 2.1."""


class Row(NamedTuple):
    """A part with its formula, what one is made of, and how many there are."""

    part: str
    formula: str
    each: int
    copies: int

    @property
    def numbers(self) -> int:
        return self.each * self.copies


def rows(size: Size) -> list[Row]:
    """Every parameter once; the output table is the embedding's own."""
    v, t, d, n = size
    return [
        Row("token embeddings", "V d", v * d, 1),
        Row("positions", "T d", t * d, 1),
        Row("norms of a layer", "2 · 2d", 4 * d, n),
        Row("queries, keys, values", "3d² + 3d", 3 * d * d + 3 * d, n),
        Row("attention's output", "d² + d", d * d + d, n),
        Row("feed-forward, up", "4d² + 4d", 4 * d * d + 4 * d, n),
        Row("feed-forward, down", "4d² + d", 4 * d * d + d, n),
        Row("final norm", "2d", 2 * d, 1),
        Row("output table", "tied: 0", 0, 1),
    ]


def total(size: Size) -> int:
    """
    >>> total(INSIDE), total(GPT2_SMALL), total(GPT3)
    (109056, 124439808, 174604259328)
    """
    return sum(row.numbers for row in rows(size))


def matrices(size: Size) -> int:
    """12 L d²: the four matrices of the layers, the usual estimate.

    >>> matrices(INSIDE), matrices(GPT3)
    (98304, 173946175488)
    """
    return 12 * size.layers * size.hidden**2


def tables(size: Size) -> int:
    """Of tokens and positions."""
    return (size.vocabulary + size.positions) * size.hidden


def shares(size: Size) -> tuple[float, float, float]:
    """Of attention and of feed-forward in a layer, and of both tables in the whole."""
    each = {row.part: row.each for row in rows(size)}
    attention = each["queries, keys, values"] + each["attention's output"]
    feed = each["feed-forward, up"] + each["feed-forward, down"]
    layer = attention + feed + each["norms of a layer"]
    return attention / layer, feed / layer, tables(size) / total(size)
