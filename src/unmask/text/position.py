"""Where reading stands, so that it can go on from there.

A position lies before a record: a line of JSON, a row, a paragraph, a whole file. What is read of a file is whole, so a
position names the file and a place inside it, by what its format can find again without reading what lies before:

    plain text, JSON lines   `offset` unpacked bytes, which is where line number `line` begins, then `row` lines on
    tables                   `row` rows
    hf:NAME                  `state` of the `datasets` library, which is where row number `line` begins, then `row` rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Position:
    """A place before a record, in files that are numbered from 0 in their order."""

    file: int = 0
    offset: int = 0
    line: int = 1
    row: int = 0
    state: Mapping[str, Any] | None = None

    def dump(self) -> dict[str, Any]:
        """Ready for JSON, without what is as in the beginning.

        >>> Position(2, row=7).dump(), Position.of({"file": 2, "row": 7})
        ({'file': 2, 'row': 7}, Position(file=2, offset=0, line=1, row=7, state=None))
        """
        first = Position()
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != getattr(first, f.name)}

    @staticmethod
    def of(values: Mapping[str, Any]) -> Position:
        return Position(**values)


@dataclass
class Cursor:
    """Moves with a reader, which begins at `at`."""

    at: Position = Position()
    """Where the record begins that the document at hand comes from."""
    now: Position = Position()
    """Where the line at hand begins."""


@dataclass(frozen=True)
class Span:
    """What was read between two places of a stream."""

    begin: Position
    end: Position | None
    """None: the stream is over."""
    documents: int
    """As they stand there: what filters drop, and what is held out, among them."""
    files: tuple[tuple[str, int, str], ...]
    """(name, bytes, version) of every file of the stream, in their order, and of what is beside them."""

    def dump(self) -> dict[str, Any]:
        """Ready for JSON."""
        end = None if self.end is None else self.end.dump()
        return {"begin": self.begin.dump(), "end": end, "documents": self.documents, "files": [*map(list, self.files)]}

    @staticmethod
    def of(values: Mapping[str, Any]) -> Span:
        end = None if values["end"] is None else Position.of(values["end"])
        files = tuple((str(name), int(size), str(version)) for name, size, version in values["files"])
        return Span(Position.of(values["begin"]), end, int(values["documents"]), files)
