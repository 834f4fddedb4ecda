"""Texts that come with a target: which pieces they are, which part of a mixture reads them, and what is left out.

    documents      which          piece                         read by
    without        any            full pieces and a rest        the parts that read plain text
    with target    within room    the whole text, its target    the parts that read targets
    with target    longer         its beginning, its target     the same; the rest is in no piece

A text beyond the room is cut as T5 does (Raffel et al. 2020): its target never stands beside a later piece of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from unmask import keyed
from unmask.batch import Rows
from unmask.config import CorpusConfig
from unmask.data.marks import TargetText
from unmask.data.sampling import Pieces, read_rows
from unmask.errors import UserError
from unmask.objectives.base import Objective, Outline
from unmask.objectives.mixture import Mixture, Part, parts_of
from unmask.objectives.supervised import Supervised


class Side(Protocol):
    """What a text was prepared with; `shards.Shards` is one."""

    @property
    def counts(self) -> np.ndarray: ...

    @property
    def target(self) -> TargetText | None: ...


def reads_target(objective: Objective) -> bool:
    return "target" in objective.needs


# ---------------------------------------------------------------- before text is prepared


def require_columns(objective: Objective, corpus: CorpusConfig, valid: CorpusConfig | None) -> None:
    """Refuse texts by their settings that the objective could never read."""
    kinds = {name: reads_target(part.objective) for name, part in parts_of(objective).items()}
    if not any(kinds.values()):
        return
    readers = ", ".join(name for name, reads in kinds.items() if reads)
    for side, config in (("corpus", corpus), ("valid", valid)):
        if config is None:
            continue
        named = {name: source.target is not None for name, source in config.parts.items()}
        if not all(named.values()) and all(kinds.values()):
            first = next(name for name, has in named.items() if not has)
            of, key = (f" of {first}", f"{side}.sources.{first}") if first else ("", side)
            raise UserError(
                f"{readers} writes a target for each text, but the text{of} names none: set {key}.target to the key "
                "or column that holds it"
            )
    if not all(kinds.values()) and not any(source.target is not None for source in corpus.parts.values()):
        raise UserError(
            f"{readers} writes a target for each text, but no source names one: set corpus.sources.NAME.target to the "
            f"key or column that holds it, or leave {readers} out"
        )
    if not all(kinds.values()) and all(source.target is not None for source in corpus.parts.values()):
        others = ", ".join(name for name, reads in kinds.items() if not reads)
        raise UserError(
            f"{others} would get no text: a text that has a target trains {readers}, and every source names one; add a "
            "source without target (a file may stand in two)"
        )


# ---------------------------------------------------------------- pieces


def has_target(target: TargetText) -> np.ndarray:
    """(D,) bool."""
    return np.diff(target.documents) > 0


def with_targets(pieces: Pieces, documents: np.ndarray, room: int, has: np.ndarray, others: bool) -> Pieces:
    """The pieces, but of each document that has a target (`has` (D,)) one alone: its first `room` tokens.

    others: whether the pieces of the other documents are wanted, too.

    >>> documents = np.array([0, 5, 7, 12])
    >>> p = with_targets(Pieces.cut(documents, 3), documents, 4, np.array([False, True, True]), True)
    >>> p.begin.tolist(), p.length.tolist(), p.document.tolist(), p.ends.tolist()
    ([0, 3, 5, 7], [3, 2, 2, 4], [0, 0, 1, 2], [False, True, True, False])
    """
    if pieces.joined is not None:
        raise UserError(
            "texts that have targets cannot be joined across documents, as another part of this mixture wants: train "
            "it in a run of its own"
        )
    size = np.diff(documents)
    mine = np.flatnonzero(has & (size > 0))
    first = Pieces(documents[mine], np.minimum(size[mine], room), mine, size[mine] <= room)
    if not others and not len(mine):
        raise UserError("no document has a target that gives a token: look at the column of corpus.target")
    if not others:
        return first
    rest = ~has[pieces.document]
    order = np.argsort(np.append(pieces.document[rest], mine), kind="stable")
    names = ("begin", "length", "document", "ends")
    return Pieces(*(np.append(getattr(pieces, k)[rest], getattr(first, k))[order] for k in names))


@dataclass(frozen=True)
class Targets:
    """The targets of the pieces of a side, as the second texts of `Rows`."""

    text: TargetText
    pieces: Pieces
    """One for each document."""
    document: np.ndarray
    """(P,) of the pieces of texts."""
    has: np.ndarray
    """(P,) bool: whether it has a target."""

    @staticmethod
    def of(text: TargetText, pieces: Pieces) -> Targets:
        documents = np.asarray(text.documents)
        number = np.arange(len(documents) - 1)
        whole = Pieces(documents[:-1], np.diff(documents), number, np.ones(len(number), bool))
        return Targets(text, whole, pieces.document, has_target(text)[pieces.document])

    def outline(self, piece: np.ndarray, key: np.ndarray, index: np.ndarray, progress: float) -> Outline:
        which = self.document[piece]
        return Outline(self.pieces.length[which], _own(key), index, self.pieces.ends[which], progress)

    def read(self, piece: np.ndarray, key: np.ndarray, index: np.ndarray, progress: float) -> Rows:
        """The targets of texts (S,), whole."""
        return read_rows(self.text.tokens, self.pieces, self.document[piece], _own(key), index, progress)


def _own(key: np.ndarray) -> np.ndarray:
    return keyed.absorb(key, keyed.purpose("target"))


def counts_by_part(parts: Mapping[str, Part], side: Side) -> dict[str, np.ndarray]:
    """(V,) for each part: how often each id occurs in what it asks for, targets or the texts themselves."""
    own, target = np.asarray(side.counts), side.target
    return {
        name: own if target is None or not reads_target(part.objective) else np.asarray(target.counts)
        for name, part in parts.items()
    }


# ---------------------------------------------------------------- who reads what


def require_texts(objective: Objective, has: np.ndarray, sizes: Sequence[int]) -> None:
    """Refuse to train where a part would never get a text, a text would have no part, or a source no text.

    has: (P,) bool, which pieces have a target; sizes: pieces of each source.
    """
    if not all(sizes):
        raise UserError("a source has no text with a target: leave it out, or name its target")
    if not isinstance(objective, Mixture):
        return
    reads = np.array([reads_target(part.objective) for part in objective.parts.values()])
    for kind, what in ((True, "with a target"), (False, "without a target")):
        names = ", ".join(name for name, r in zip(objective.parts, reads, strict=True) if r is np.bool_(kind))
        if names and not (has == kind).any():
            raise UserError(f"{names} would get no text: there is no document {what}")
        silent = [p for p in objective.turns() if not objective.shares(p)[reads == kind].sum() > 0]
        if names and silent:
            raise UserError(
                f"no part that reads texts {what} ({names}) has a weight at {silent[0]:.3g} of the run, but such texts "
                "come all along: let one of them last from 0 to 1"
            )


def target_notes(
    parts: Mapping[str, Part], target: TargetText | None, pieces: Pieces, documents: np.ndarray
) -> list[str]:
    """What a user should be told once of a training text's targets, a sentence each."""
    if target is None or not len(target.tokens):
        return []
    kinds = {name: reads_target(part.objective) for name, part in parts.items()}
    readers, others = (", ".join(n for n, r in kinds.items() if r is kind) for kind in (True, False))
    if not readers:
        return [f"the text has targets (corpus.target), which {others} does not read: they are left out"]
    has = has_target(target)
    out = []
    without = int((~has & (np.diff(documents) > 0)).sum())
    if others:
        unread = len({part.weight for part in parts.values()}) > 1
        how = "; corpus.mix says how often either comes, the parts' weights share out each" if unread else ""
        out.append(f"{int(has.sum()):,} texts with a target train {readers}, {without:,} without train {others}{how}")
    elif without:
        out.append(f"{without:,} documents without a target are left out")
    of = has[pieces.document]
    size, kept = np.diff(documents)[pieces.document[of]], pieces.length[of]
    if (cut := size > kept).any():
        out.append(
            f"{int(cut.sum()):,} of {len(size):,} texts with a target are longer than the {int(kept[cut].max()):,} "
            f"tokens that fit and end there ({(size - kept).sum() / size.sum():.1%} of their tokens are not read): "
            "raise context to read more"
        )
    asked = np.diff(target.documents)[pieces.document[of]]
    for name, part in parts.items():
        own = part.objective
        if isinstance(own, Supervised) and (long := int((asked > own.max_target).sum())):
            out.append(
                f"{long:,} of {len(asked):,} targets are longer than max_target={own.max_target} tokens and end there "
                f"under {name}"
            )
    return out
