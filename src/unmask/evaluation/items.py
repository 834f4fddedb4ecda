"""What suites over items (pairs, gaps, questions) share: their options, their files, and how texts are scored.

An item's file is JSON lines, one item a line. Texts are scored a part at a time, so memory does not grow with
their number, and no result depends on the order or the number of the texts in a part.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask import keyed
from unmask.errors import UserError, nearest
from unmask.evaluation.base import Model, objective_of, shape_of, tokenizer_of
from unmask.evaluation.intervals import Ratio
from unmask.evaluation.plans import in_source, plan_of, room, source_room
from unmask.evaluation.score import Score, score
from unmask.evaluation.watch import Watch, silent
from unmask.objectives.base import Plan

TIE = 1e-6
"""Nats a token: summed log-probabilities that differ by less are equal, whatever order they were added up in."""
PART = 512
"""Texts that are scored together."""
ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
"""How the files of items are called in a directory."""
FIELDS = frozenset(
    (
        *("sentence_good", "sentence_bad", "good", "bad", "context", "choices", "label", "text", "answer"),
        *("candidates", "relation", "template", "sub", "obj", "sentences", "masked_sentences"),
    )
)
"""The fields that some suite reads: none of them is another one misspelt."""


@dataclass(frozen=True)
class Options:
    """How a suite measures; each reads what concerns it.

    plan    how texts are scored; None = the model's own
    limit   at most so many items of a set, drawn by key (bpb: pieces, or sampled tokens); None = all, but for pseudo
            bits per byte, which are then estimated from `bpb.SAMPLE` tokens
    stride  bpb: tokens between two rolling windows; None = pieces side by side
    seed    of samples and intervals
    counts  bpb: (V,) unigram counts of the training text
    items   give each item's outcome, too (`outcomes`)
    watch   shows the progress of long work
    """

    plan: Plan | None = None
    limit: int | None = None
    stride: int | None = None
    seed: int = 0
    counts: np.ndarray | None = None
    items: bool = False
    watch: Watch = silent

    def __post_init__(self) -> None:
        for name in ("limit", "stride"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}={value} must be at least 1")
        if self.seed < 0:
            raise UserError(f"seed={self.seed} must be 0 or more")


# ---------------------------------------------------------------- files


def item_files(path: str | Path, endings: Sequence[str] = ENDINGS) -> list[Path]:
    """The files of items at a path: itself, or those in a directory by name."""
    place = Path(path)
    if place.is_dir():
        found = sorted(p for p in place.iterdir() if p.is_file() and p.name.endswith(tuple(endings)))
        if not found:
            raise UserError(
                f"{place} holds no {' or '.join(endings[:2])}: give a file of JSON lines, or a folder of them"
            )
        return found
    if not place.exists():
        raise UserError(f"{place} does not exist: give a file of JSON lines, or a directory of them")
    return [place]


def read_items(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file:line, the item) of each line that is not blank."""
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{file}:{number}", _item(line, f"{file}:{number}")
    except (OSError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"cannot read {file}: {reason}") from error


def _item(line: bytes, where: str) -> dict[str, Any]:
    try:
        item = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{where} is no line of JSON: {error}; write one object a line") from error
    if not isinstance(item, dict):
        raise UserError(f"{where} holds no JSON object: write one object a line, with named fields")
    return item


def text_of(item: Mapping[str, Any], key: str, where: str) -> str:
    """A field that must be a text with something in it."""
    if key not in item:
        strange = [name for name in item if name not in FIELDS]
        raise UserError(
            f"{where} has no '{key}' (it has: {', '.join(map(str, item)) or 'nothing'}){nearest(key, strange)}"
        )
    value = item[key]
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: '{key}' must be a text that is not empty, not {json.dumps(value)[:60]}")
    return value


def texts_of(item: Mapping[str, Any], key: str, where: str, least: int = 1) -> tuple[str, ...]:
    """A field that must be a list of texts."""
    value = item.get(key)
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        raise UserError(f"{where}: '{key}' must be a list of texts that are not empty, not {json.dumps(value)[:60]}")
    if len(value) < least:
        raise UserError(f"{where}: '{key}' must hold at least {least} texts; it is {value}")
    return tuple(value)


def sample(n: int, limit: int | None, seed: int, name: str) -> np.ndarray:
    """(k,) ascending: at most `limit` of n items, a function of the seed and the set's name."""
    if limit is None or limit >= n:
        return np.arange(n)
    key = keyed.row_keys(seed, 0, keyed.purpose(name), "items")
    return np.sort(keyed.permuted(np.arange(limit), n, key))


def outcomes(
    of: str,
    values: Sequence[float | None],
    groups: Sequence[int] = (),
    weights: Sequence[float] | None = None,
    scale: float = 100.0,
) -> dict[str, Any]:
    """What a suite's `value` is made of, one number an item, ready for JSON: models are compared item by item.

    value = scale × mean over groups of (Σ values / Σ weights), over items that are not None (not scored).

    groups   items of each group, in their order; none = all are one
    weights  what an item counts for; None = 1 each
    """
    return {
        "items": {
            "of": of,
            "values": list(values),
            "groups": list(groups) or [len(values)],
            "weights": None if weights is None else list(weights),
            "scale": scale,
        }
    }


# ---------------------------------------------------------------- scores


def scored(
    model: Model,
    texts: Sequence[str],
    context: Sequence[str] | None = None,
    only: Sequence[tuple[int, int]] | None = None,
    plan: Plan | None = None,
    watch: Watch = silent,
    what: str = "scoring",
    end: bool = False,
) -> Iterator[Score]:
    """`score` of each text, a part at a time."""
    with watch(what, len(texts)) as advance:
        for begin in range(0, len(texts), PART):
            part = slice(begin, begin + PART)
            yield from score(
                model,
                texts[part],
                None if context is None else context[part],
                plan,
                end=end,
                only=None if only is None else only[part],
            )
            advance(len(texts[part]))


def shortened(model: Model, plan: Plan | None, context: str, texts: Sequence[str]) -> str:
    """The end of a context that the model has room for before each of the texts; all of it, if that fits.

    What lies farthest from the texts is cut off, by the rule of `score`: in one stack the context gives way to the
    longest text where that fits as a whole, and keeps half of the room where it does not. All texts keep the same.
    """
    objective, shape, tokenizer = objective_of(model), shape_of(model), tokenizer_of(model)
    plan = plan_of(objective, plan)
    source = source_room(shape, plan, objective) if in_source(objective, plan) else None
    most = room(objective, shape, plan) if source is None else source
    while context:
        whole = [context + t for t in texts] if source is None else [context]
        over = max(len(ids) for ids in tokenizer.encode_batch(whole)) - most
        if over <= 0:
            break
        begin = tokenizer.encode_aligned([context])[0].begin
        own = most + over - len(begin)  # tokens of the longest text
        cut = over if source is not None or own < most else len(begin) - most // 2
        if cut <= 0:
            break
        context = context[max(int(begin[cut]), 1) :] if cut < len(begin) else ""
    return context


def unknown(model: Model, texts: Sequence[str]) -> int:
    """How many of the texts hold an unknown token, which stands for whatever the tokenizer cannot spell."""
    unk = model.vocabulary.unk
    if unk is None:
        return 0
    parts = (texts[begin : begin + PART] for begin in range(0, len(texts), PART))
    return sum(bool((ids == unk).any()) for part in parts for ids in tokenizer_of(model).encode_batch(list(part)))


class Events:
    """The events of scores as they pass: nearly all have one in common, the rest are shown with their number."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.plan: Plan | None = None
        self.start: str | None = None
        self.merged = 0

    def see(self, scores: Iterable[Score]) -> Iterator[Score]:
        for s in scores:
            self.seen[s.event] += 1
            self.plan, self.start, self.merged = s.plan, s.start, self.merged + s.merged
            yield s

    def named(self) -> dict[str, Any]:
        """plan and event, ready for JSON."""
        (event, _), *others = self.seen.most_common() or [("nothing was scored", 0)]
        more = {"other_events": dict(others)} if others else {}
        return {"plan": self.plan, "event": event, "start": self.start, **more}


@dataclass(frozen=True)
class Standing:
    """How many wrong values lie above the best right one, how many tie with it, and how many right ones are as good.

    Tied ones stand in any order, each as likely as another.
    """

    above: int
    tied: int
    right: int = 1

    def precision(self, k: int = 1) -> float:
        """P@k: the chance that a right one is among the first k.

        >>> Standing(0, 3).precision(), Standing(0, 2, right=2).precision(), Standing(1, 1).precision(2)
        (0.25, 0.5, 0.5)
        """
        first = max(k - self.above, 0)
        return 1.0 - float(self._wrong_first()[min(first, self.tied + 1)])

    def reciprocal_rank(self) -> float:
        """The expected 1 / rank of the first right one.

        >>> Standing(1, 0).reciprocal_rank(), Standing(0, 1).reciprocal_rank()
        (0.5, 0.75)
        """
        at_least = self._wrong_first()  # of exactly x wrong ones: at_least[x] - at_least[x + 1]
        return float((-np.diff(at_least) / (1 + self.above + np.arange(self.tied + 1))).sum())

    def _wrong_first(self) -> np.ndarray:
        """(tied + 2,) the chance that at least x of the tied wrong ones stand before the first right one."""
        i = np.arange(self.tied + 1)
        return np.append(1.0, np.cumprod((self.tied - i) / (self.tied + self.right - i)))


def standing(values: np.ndarray, right: np.ndarray, tolerance: float = 0.0) -> Standing:
    """Where the best right value stands; values tie within `tolerance`.

    >>> standing(np.array([-1.0, -2.0, -2.0, -5.0]), np.array([False, True, False, False]))
    Standing(above=1, tied=1, right=1)
    """
    best, wrong = values[right].max(), values[~right]
    tied = np.abs(wrong - best) <= tolerance
    level = np.abs(values[right] - best) <= tolerance
    return Standing(int(((wrong > best) & ~tied).sum()), int(tied.sum()), int(level.sum()))


def in_percent(measured: Ratio | None) -> dict[str, Any]:
    """A share's value, interval and error, ready for JSON; None where nothing could be measured."""
    if measured is None:
        return {"value": None, "interval": None, "standard_error": None}
    interval, error = measured.interval, measured.error
    return {
        "value": 100 * measured.value,
        "interval": None if interval is None else [100 * bound for bound in interval],
        "standard_error": None if error is None else 100 * error,
    }
