"""Which documents and lines are passed over, and why: each reason is counted."""

from __future__ import annotations

from array import array

import numpy as np

from unmask.config import FilterConfig
from unmask.errors import UserError, nearest
from unmask.text.characters import SCRIPTS, letters
from unmask.text.document import Counts, Document, number_of, without


class Seen:
    """A set of 64-bit numbers that holds each in 10 to 15 bytes.

    256 tables with linear probing, split by the number's low byte; a table that is four fifths full grows by
    half, so that never more than one is copied.
    """

    PARTS = 256

    def __init__(self) -> None:
        self.tables = [array("Q", bytes(8 * 8)) for _ in range(self.PARTS)]
        self.filled = [0] * self.PARTS

    def __len__(self) -> int:
        return sum(self.filled)

    @property
    def nbytes(self) -> int:
        return sum(8 * len(table) for table in self.tables)

    def add(self, number: int) -> bool:
        """Whether the number is new."""
        number = number or 1  # 0 marks a free place
        k = number % self.PARTS
        table = self.tables[k]
        place = _place(table, number)
        if table[place]:
            return False
        table[place] = number
        self.filled[k] += 1
        if self.filled[k] * 5 > len(table) * 4:
            larger = array("Q", bytes(8 * (len(table) + len(table) // 2)))
            for old in table:
                if old:
                    larger[_place(larger, old)] = old
            self.tables[k] = larger
        return True


def _place(table: array[int], number: int) -> int:
    """Where the number stands, or the free place it belongs to."""
    size = len(table)
    place = (number >> 8) % size
    while (found := table[place]) and found != number:
        place = place + 1 if place + 1 < size else 0
    return place


class Filter:
    """The filters of one pass over a source; it remembers what it saw."""

    def __init__(self, config: FilterConfig, counts: Counts) -> None:
        unknown = [s for s in config.scripts if s not in SCRIPTS]
        if unknown:
            known = f"the scripts are {', '.join(SCRIPTS)}"
            raise UserError(f"filter.scripts: no script '{unknown[0]}'; {known}{nearest(unknown[0], SCRIPTS)}")
        if config.max_characters is not None and config.max_characters < config.min_characters:
            raise UserError(
                f"filter.max_characters={config.max_characters} is below min_characters={config.min_characters}: "
                "no document fits"
            )
        self.config, self.counts = config, counts
        self.wanted = np.isin(SCRIPTS, config.scripts)
        self.documents, self.lines = Seen(), Seen()

    def __call__(self, document: Document) -> Document | None:
        """The document, perhaps with fewer lines, or None; what was dropped is counted."""
        if self.config.duplicates != "keep" and not self.documents.add(_number(document)):
            reason: str | None = "duplicate documents"
        else:
            reason = self._reason(document.text)
            if reason is None and self.config.duplicates == "lines":  # lines of a dropped document are not "seen"
                document = self._new_lines(document)
                reason = self._reason(document.text)
        if reason is not None:
            self.counts.drop(reason)
        return document if reason is None else None

    def _reason(self, text: str) -> str | None:
        config = self.config
        if not text or text.isspace():
            return "documents of duplicate lines alone"
        if len(text) < config.min_characters:
            return "too short"
        if config.max_characters is not None and len(text) > config.max_characters:
            return "too long"
        if config.max_repetition < 1 and repetition(text) > config.max_repetition:
            return "repetitive"
        if config.scripts:
            count = letters(text)
            if count[self.wanted].sum() < config.min_script_share * max(1, count.sum()):
                return "in other scripts"
        return None

    def _new_lines(self, document: Document) -> Document:
        """Without the lines that stood before, in this document or an earlier one; blank lines stay."""
        repeated = []
        at = 0
        for line in document.text.split("\n"):
            if line and not line.isspace() and not self.lines.add(number_of(line.strip())):
                repeated.append((at, min(at + len(line) + 1, len(document.text))))
            at += len(line) + 1
        if repeated:
            self.counts.drop("duplicate lines", len(repeated))
        return without(document, repeated)


def _number(document: Document) -> int:
    """Of a document with a target: of both, since one question may have several answers."""
    own = number_of(document.text)
    return own if document.target is None else own ^ number_of(document.target, b"target")


def repetition(text: str) -> float:
    """The share of characters in lines that stood in the text before (Rae et al. 2021, table A1, "duplicate line
    character fraction"); line ends and blank lines count as neither.

    >>> repetition("ab\\nab\\ncd")
    0.3333333333333333
    """
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    total = sum(map(len, lines))
    return (total - sum(map(len, set(lines)))) / total if total else 0.0
