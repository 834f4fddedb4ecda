"""From shards to batches: (seed, step) → samples → noise → packed rows → Batch. Stateless.

A window of samples is packed at once and its rows are dealt to `steps` updates, so an update
is found by arithmetic, and short texts find room beside long ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from unmask import keyed
from unmask.batch import Batch, Examples, Rows, full
from unmask.config import CorpusConfig
from unmask.data.collate import Placement, at_least, collate, pack
from unmask.data.marks import Kept, Marks, Rule
from unmask.data.sampling import (
    InTurn,
    Mixture,
    Order,
    Partners,
    Pieces,
    Sampler,
    TooFew,
    counts_in_block,
    read_rows,
    shares,
)
from unmask.data.targets import Targets, has_target, reads_target, require_texts, target_notes, with_targets
from unmask.errors import UserError
from unmask.objectives.base import Objective, Outline, Shape, Sizes, Vocabulary
from unmask.objectives.dealing import sizes_of
from unmask.objectives.mixture import Mixture as Objectives
from unmask.objectives.mixture import Part, parts_of
from unmask.objectives.rooms import no_room
from unmask.objectives.sound import require

_WINDOW = 256


class Text(Protocol):
    """Token ids end to end and the (D + 1,) offsets of documents; `shards.Shards` is one."""

    @property
    def tokens(self) -> np.ndarray: ...

    @property
    def documents(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Stretch:
    """The place in a run of a text that is read once in it: a chapter of a stream (`data.stream`).

    Each of its pieces is a sample once, but for those that are too few for one more update.
    """

    number: int
    """Of the chapter in its epoch; chapter 0 has the order and noise that a corpus has."""
    epoch: int
    """How often the stream was read before."""
    updates: int
    """Of the run before this text."""
    samples: int
    """Likewise."""

    def seed(self, seed: int) -> int:
        """Of the chapter's order and noise, from the run's."""
        return int(keyed.row_keys(seed, 0, self.number, "chapter")) if self.number else seed


@dataclass(frozen=True)
class Window:
    """Samples that are packed together, the number of each one's part, and where they went; the updates that share it.

    found: by the order of every lane, the piece of each sample and the key of its noise.
    """

    index: np.ndarray
    part: np.ndarray
    place: Placement
    found: Sequence[tuple[np.ndarray, np.ndarray]]
    steps: int


@dataclass(frozen=True)
class Lane:
    """What the texts of one part are read with; an objective that is no mixture is its only part.

    order: all lanes have one order of texts, and keys that recur as the part's own noise does.
    partners, targets: where its second texts come from, if it needs any.
    """

    part: Part
    order: Sampler
    marks: Marks
    partners: Partners | None
    targets: Targets | None


@dataclass(frozen=True)
class Begin:
    """Where the updates of a loader begin in a run that has others before it (`data.stages`)."""

    update: int = 0
    """The run's number of its first update."""
    sample: int = 0
    """The number in its order of the first sample."""


BEGINNING = Begin()


class Loader:
    """Batches of one text under one objective. `loader(step, progress)` is a pure function.

    rows: rows of `shape` an update should have on average; an update has a few more or fewer, since
    windows hold a fixed number of samples.
    sources: the first document of each source, by which `mix` says how they share the samples; unshuffled
    sources take turns, each piece once.
    kept, words: where what the objective `needs` beside the tokens comes from.
    stretch: the text is read once, and this is its place in the run; `updates` says how many it gives.

    Texts that have a target go to the parts of a mixture that read targets, and to no others (`data.targets`).
    """

    def __init__(
        self,
        text: Text,
        objective: Objective,
        vocabulary: Vocabulary,
        shape: Shape,
        *,
        rows: int,
        seed: int,
        micro: int = 1,
        shuffle: bool = True,
        sources: Sequence[int] = (0,),
        mix: CorpusConfig | None = None,
        kept: Kept | None = None,
        words: Rule | None = None,
        stretch: Stretch | None = None,
    ) -> None:
        self.stretch, seed = stretch, seed if stretch is None else stretch.seed(seed)
        self.text, self.objective, self.vocabulary, self.shape = text, objective, vocabulary, shape
        room = objective.room(shape)
        if room < 1:
            raise UserError(no_room(objective, shape))
        self.parts = parts_of(objective)
        for part in self.parts.values():
            if part.mode is not None:
                vocabulary.need(part.mode)
        self.marks = Marks(objective.needs, kept, words)
        self.pieces = self._pieces(room, sources)
        if not len(self.pieces):
            raise TooFew("the text holds no tokens: give a corpus with at least one non-empty document", 0)
        self.sizes = tuple(self.pieces.of_sources(sources).tolist())
        self.mix = mix
        self.order = self._order(seed, shuffle, objective.recurs)
        self.targets = None if self.marks.target is None else Targets.of(self.marks.target, self.pieces)
        if self.targets is not None and shuffle:
            require_texts(objective, self.targets.has, self.sizes)
        self.partners = Partners(self.pieces) if "partner" in objective.needs else None
        self.lanes = [self._lane(part, seed, shuffle, kept, words) for part in self.parts.values()]
        self.separator = vocabulary.need("sep") if self.pieces.joined is not None else None
        self.micro = micro
        self.rows_a_sample = self._rows_a_sample()
        self._deal_out(rows)

    def _deal_out(self, rows: int) -> None:
        self.per_step = max(1, round(rows / self.rows_a_sample))
        self.steps = 1 if self.objective.moves else max(1, _WINDOW // self.per_step)
        self.updates = None if self.stretch is None else len(self.pieces) // self.per_step
        self.window = lru_cache(maxsize=4)(self._window)

    def of_rows(self, rows: int) -> Loader:
        """The same texts in the same order, at other rows an update."""
        other = copy(self)
        other._deal_out(rows)
        return other

    def _pieces(self, room: int, sources: Sequence[int]) -> Pieces:
        """The texts as the objective wants them cut."""
        documents, kind = np.asarray(self.text.documents), self.objective.cut
        if kind == "tokens":
            pieces = Pieces.cut(documents, room)
        elif kind == "joined":
            pieces = Pieces.across(documents, room, self.marks.sentence_places(), sources)
        else:
            pieces = Pieces.whole(documents, room, self.marks.sentence_places(), most=2 if kind == "pairs" else 0)
        if self.marks.target is None:
            return pieces
        reads = {name: reads_target(part.objective) for name, part in self.parts.items()}
        room = min(part.room(self.shape) for name, part in self.parts.items() if reads[name])
        return with_targets(pieces, documents, room, has_target(self.marks.target), others=not all(reads.values()))

    def _order(self, seed: int, shuffle: bool, recurs: int) -> Sampler:
        if len(self.sizes) > 1 and not shuffle:
            return InTurn(self.sizes, seed, recurs)
        if len(self.sizes) == 1 or self.mix is None or self.mix.mix == "proportional":
            epoch, before = (0, 0) if self.stretch is None else (self.stretch.epoch, self.stretch.samples)
            return Order(len(self.pieces), seed, shuffle, recurs, epoch, before)
        return Mixture(self.sizes, counts_in_block(shares(self.mix, self.sizes)), seed, recurs)

    def _lane(self, part: Part, seed: int, shuffle: bool, kept: Kept | None, words: Rule | None) -> Lane:
        needs = part.objective.needs
        return Lane(
            part,
            self._order(seed, shuffle, part.objective.recurs),
            Marks(needs, kept, words),
            self.partners if "partner" in needs else None,
            self.targets if "target" in needs else None,
        )

    def require_sound(self) -> None:
        """Refuse an objective whose first examples are not what it says of them (`objectives.sound`)."""
        index = np.arange(self.per_step)
        part = self._deal(index, 0.0)
        for k, (name, lane) in enumerate(zip(self.parts, self.lanes, strict=True)):
            if len(own := index[part == k]):
                examples = self._examples(*lane.order.find(own), own, 0.0, lane)
                said = lane.part.sizes(self._outline(own, 0.0, lane))
                require(name, lane.part.heads(), said, examples, self.vocabulary.size)

    @property
    def notes(self) -> list[str]:
        """What a user should be told once, before training: a sentence each."""
        target = None if self.marks.kept is None else self.marks.kept.target
        return [*target_notes(self.parts, target, self.pieces, np.asarray(self.text.documents)), *self._unasked()]

    def _unasked(self) -> list[str]:
        """Of heads that ask each text one question: how many texts have none, where they are more than a few."""
        heads = [h for h in self.objective.heads() if h.over == "classes" and h.pool == "at"]
        if isinstance(self.objective, Objectives) or not heads:
            return []
        batches, out = self(0), []
        texts = sum(0 if batch.samples is None else len(batch.samples.index) for batch in batches)
        for head in heads:
            targets = [batch.targets[self.objective.type, head.name] for batch in batches]
            if (asked := sum(int((t.weight > 0).sum()) for t in targets)) < 0.9 * texts:
                out.append(
                    f"{asked} of the {texts} texts of the first update have a question for head {head.name}: the "
                    "others hold too few sentences (a longer context has more)"
                )
        return out

    def texts(self, step: int, progress: float = 0.0, begin: Begin = BEGINNING) -> list[tuple[int, np.ndarray]]:
        """The texts that an update reads, by place in the corpus: each one's document, by number, and its tokens.

        Pieces of a document are texts by themselves; second texts of pairs are not among them.
        """
        window, rows = self._found(step, progress, begin)
        mine = np.isin(window.place.row, rows)
        piece = np.unique(np.concatenate([p[mine & (window.part == k)] for k, (p, _) in enumerate(window.found)]))
        none = np.zeros(len(piece), np.int64)
        read = read_rows(self.text.tokens, self.pieces, piece, none.astype(np.uint64), none, 0.0, self.separator)
        return list(zip(self.pieces.document[piece].tolist(), np.split(read.tokens, read.start[1:-1]), strict=True))

    def samples(self, updates: int) -> int:
        """Sample numbers that the windows of so many first updates take up."""
        return -(-updates // self.steps) * self.steps * self.per_step

    def coverage(self, steps: int, samples: int | None = None) -> str | None:
        """How often so many updates have read each text of a corpus: equally often, but for an epoch that is not over.

        An order is a permutation of each epoch, and an update is cut up for ranks after its samples are known: so it is
        the same on any number of them. None where sources are mixed (`mixture` says it).
        samples: that these updates have read, where not all of them are this loader's; it is not told to the last one.
        """
        if not isinstance(self.order, Order):
            return None
        about = "" if samples is None and steps % self.steps == 0 else "about "
        samples = steps * self.per_step if samples is None else samples
        times, more = divmod(samples, len(self.pieces))
        if not times:
            return (
                f"{about}{samples:,} of the corpus's {len(self.pieces):,} texts read in {steps:,} updates, none twice"
            )
        rest = f", {more:,} of them once more" if more else ""
        return f"{about}{samples:,} texts read in {steps:,} updates: each of {len(self.pieces):,} {times}×{rest}"

    def mixture(self, names: Sequence[str], steps: int | None = None) -> str:
        """What each source gets: its share of the samples, and in so many updates how often its text is seen."""
        counts = self.order.counts if isinstance(self.order, Mixture) else self.sizes
        each = []
        for name, size, count in zip(names, self.sizes, counts, strict=True):
            share = count / sum(counts)
            seen = "" if steps is None else f", {steps * self.per_step * share / size:.2g} epochs"
            each.append(f"{name} {share:.1%} of samples{seen}")
        mix = self.mix
        unread = mix is not None and mix.mix != "weight" and any(s.weight != 1 for s in mix.sources.values())
        note = f" (weights are not read: corpus.mix={mix.mix})" if mix is not None and unread else ""
        return f"mixture: {'; '.join(each)}{note}"

    def _deal(self, index: np.ndarray, progress: float | None) -> np.ndarray:
        """(S,) the number of each sample's part; progress None: at the mean shares of the run."""
        if isinstance(self.objective, Objectives):
            paired = None if self.targets is None else self.targets.has[self.order.piece(index)]
            return self.objective.deal(index, progress, paired)
        return np.zeros(len(index), np.int64)

    def _sizes(self, index: np.ndarray, part: np.ndarray, progress: float = 0.0) -> Sizes:
        return sizes_of(
            list(self.parts.values()), part, lambda k, mine: self._outline(index[mine], progress, self.lanes[k])
        )

    def _outline(self, index: np.ndarray, progress: float = 0.0, lane: Lane | None = None) -> Outline:
        lane = lane or self.lanes[0]
        piece, key = lane.order.find(index)
        own = self._outlined(piece, key, index, progress, lane)
        if lane.targets is not None:
            return replace(own, partner=lane.targets.outline(piece, key, index, progress))
        if lane.partners is None:
            return own
        return replace(own, partner=self._outlined(*lane.partners(piece, key), index, progress, lane))

    def _outlined(self, piece: np.ndarray, key: np.ndarray, index: np.ndarray, progress: float, lane: Lane) -> Outline:
        pieces = self.pieces
        return Outline(
            pieces.length[piece], key, index, pieces.ends[piece], progress, lane.marks.sentences(pieces, piece)
        )

    def _read(
        self, piece: np.ndarray, key: np.ndarray, index: np.ndarray, progress: float, lane: Lane | None = None
    ) -> Rows:
        """The texts of pieces, with what the part needs to know of their inside."""
        text = read_rows(self.text.tokens, self.pieces, piece, key, index, progress, self.separator)
        return (lane or self.lanes[0]).marks.fill(text, self.pieces, piece)

    def _examples(self, piece: np.ndarray, key: np.ndarray, index: np.ndarray, progress: float, lane: Lane) -> Examples:
        texts = self._read(piece, key, index, progress, lane)
        if lane.targets is not None:
            texts = replace(texts, partner=lane.targets.read(piece, key, index, progress))
        if lane.partners is not None:
            texts = replace(texts, partner=self._read(*lane.partners(piece, key), index, progress, lane))
        return lane.part(texts, self.vocabulary)

    def _rows_a_sample(self) -> float:
        """Rows that a sample fills on average: measured by packing four windows, over as many epochs."""
        windows = self._first + np.arange(4 * _WINDOW).reshape(4, _WINDOW)
        packed = [pack(self._sizes(index, self._deal(index, None)), self.shape).rows for index in windows]
        return sum(packed) / windows.size

    @property
    def _first(self) -> int:
        """The number of the first sample."""
        return 0 if self.stretch is None else self.stretch.samples

    def _window(self, first: int, progress: float) -> Window:
        steps = self.steps if self.updates is None else min(self.steps, self.updates - first // self.per_step)
        # Rows are dealt to updates in turn: where each text fills a row, an update then holds samples with neighbouring
        # numbers, so that draws stratified over sample numbers come out right inside every batch.
        index = self._first + first + np.arange(steps * self.per_step).reshape(steps, self.per_step).T.reshape(-1)
        part = self._deal(index, progress)
        place = pack(self._sizes(index, part, progress), self.shape)
        return Window(index, part, at_least(place, steps), [lane.order.find(index) for lane in self.lanes], steps)

    def _found(self, step: int, progress: float, begin: Begin) -> tuple[Window, np.ndarray]:
        """The window of an update, and its rows there."""
        before = begin.update + (0 if self.stretch is None else self.stretch.updates)
        number, turn = divmod(step - before, self.steps)
        first = begin.sample + number * self.per_step * self.steps
        # A window is packed once, under the progress of its first update, to the last bit; noise has its update's own.
        window = self.window(first, round(progress * (step - turn) / max(step, 1), 9))
        return window, np.arange(turn, window.place.rows, window.steps)

    def __call__(
        self, step: int, progress: float = 0.0, cut: range | None = None, begin: Begin = BEGINNING
    ) -> list[Batch]:
        """The micro-batches of update `step`: all, or those numbered in `cut`, of `cut.stop`.

        Those without a row are left out: they are the last ones. How an update is cut changes no text and no noise.
        """
        cut = range(self.micro) if cut is None else cut
        (window, rows), progress = self._found(step, progress, begin), round(progress, 9)
        return [self._batch(window, part, progress) for m in cut if len(part := rows[m :: cut.stop])]

    def _batch(self, window: Window, rows: np.ndarray, progress: float) -> Batch:
        place = window.place
        mine = np.zeros(place.rows, bool)
        mine[rows] = True
        which = np.flatnonzero(mine[place.row])
        # The examples of a part stand end to end, and as they will in the rows: that is laid out fastest.
        which = which[np.lexsort((place.stream_at[which], place.row[which], window.part[which]))]
        found = {}
        for k, (name, lane) in enumerate(zip(self.parts, self.lanes, strict=True)):
            own = which[window.part[which] == k]
            if len(self.parts) == 1 or len(own):
                piece, key = window.found[k]
                found[name] = self._examples(piece[own], key[own], window.index[own], progress, lane)
        none = _no_examples(next(iter(found.values())))  # of a part without a text: its heads are there, unasked
        return collate(
            {name: found.get(name, none) for name in self.parts},
            {name: part.heads() for name, part in self.parts.items()},
            place.take(which, rows),
            shape=self.shape,
            index=window.index[which],
        )

    def once(self, limit: int | None = None) -> Iterator[Batch]:
        """Every piece once, in order, in batches of about `rows` rows; stops after `limit` pieces."""
        total = len(self.pieces) if limit is None else min(limit, len(self.pieces))
        for begin in range(0, total, self.per_step):
            index = np.arange(begin, min(begin + self.per_step, total))
            part = self._deal(index, None)
            place = pack(self._sizes(index, part), self.shape)
            window = Window(index, part, place, [lane.order.find(index) for lane in self.lanes], 1)
            yield self._batch(window, np.arange(window.place.rows), 0.0)


def _no_examples(like: Examples) -> Examples:
    """No example at all, of the patterns of others: a batch of one pattern keeps it."""
    none = full(np.zeros(0, np.int32), np.zeros(1, np.int64))
    source = None if like.source is None else replace(none, pattern=like.source.pattern)
    return Examples(replace(none, pattern=like.stream.pattern), {}, source)
