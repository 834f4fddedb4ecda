"""One text prepared by several processes or machines that share a folder: part i of n, side by side.

    cache/<print>.parts/of-3/2/   part 2 of 3: shards of the documents that begin in the second of three equal
                                  stretches of the text's bytes, and part.json, what the survey found

Every process surveys the whole text, which is cheap against encoding, and encodes its stretch. Whoever finishes last
joins the parts in order to what preparing in one go writes, byte for byte, and removes them. Two that finish at the
same moment both join, and the first to rename its result wins. Until the parts are removed the shards take twice
their disk, three times where two processes join.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from unmask.config import CorpusConfig, TokenizerConfig
from unmask.data.prepare import disk_full, encode, find, place_of, prepare, require_space, seal
from unmask.data.shards import Prepared, Shards, Writer
from unmask.data.text import Survey, Text
from unmask.data.whole import whole
from unmask.errors import UserError
from unmask.text.progress import Say
from unmask.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Part:
    """What a process knows when its part is written: which parts are missing, or the whole."""

    number: int
    of: int
    directory: Path
    missing: tuple[int, ...] = ()
    prepared: Prepared | None = None


def parse_part(text: str) -> tuple[int, int]:
    """ "2/3" as (2, 3).

    >>> parse_part("2/3")
    (2, 3)
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"part={text} is no part: write part=2/3 for the second of three")
    return int(match[1]), int(match[2])


def prepare_part(
    corpus: CorpusConfig,
    valid: CorpusConfig | None,
    tokenizer: Tokenizer | TokenizerConfig,
    cache_dir: Path,
    part: tuple[int, int],
    say: Say,
) -> Part:
    """Write part i of n, and join the parts if they are all there. Part 1 of 1 is `prepare`."""
    i, n = part
    if n == 1:
        prepared = prepare(corpus, valid, tokenizer, cache_dir, say)
        return Part(i, n, prepared.directory, prepared=prepared)
    if corpus.stream:
        raise UserError(
            f"part={i}/{n}: of a stream one chapter is prepared, by one process; leave part out, or stream to have all "
            "of the text prepared in parts"
        )
    if isinstance(tokenizer, TokenizerConfig):
        if tokenizer.file is None:
            raise UserError(
                f"part={i}/{n} needs a tokenizer that is the same for all parts: "
                "train one first (unmask tokenizer train) and give tokenizer.file=FILE"
            )
        tokenizer = Tokenizer.load(tokenizer.file)
    text = Text(corpus, valid)
    place = place_of(text, tokenizer, cache_dir)
    folder = place.with_name(f"{place.name}.parts") / f"of-{n}"
    if done := find(text, tokenizer, cache_dir, say):
        return Part(i, n, place, prepared=done)
    if not (folder / str(i) / "part.json").exists():
        _write(text, tokenizer, folder / str(i), part, say)
    missing = tuple(k for k in range(1, n + 1) if not (folder / str(k) / "part.json").exists())
    if missing and not (place / "meta.json").exists():  # else another process has joined, and removed the parts
        return Part(i, n, folder / str(i), missing)
    return Part(i, n, place, prepared=_join(text, tokenizer, folder, place, n, say))


def _write(text: Text, tokenizer: Tokenizer, place: Path, part: tuple[int, int], say: Say) -> None:
    survey = text.survey(say)
    with whole(place) as directory:
        require_space(directory, tokenizer, survey, part[1])
        encode(text, tokenizer, directory, survey, part)
        (directory / "part.json").write_text(json.dumps(asdict(survey)), encoding="utf-8")


def _join(text: Text, tokenizer: Tokenizer, folder: Path, place: Path, n: int, say: Say) -> Prepared:
    survey = Survey()
    try:
        if not (place / "meta.json").exists():
            survey = Survey.of(json.loads((folder / "1" / "part.json").read_text(encoding="utf-8")))
            with whole(place) as directory:
                require_space(directory, tokenizer, survey)
                for side, names in zip(("train", "valid"), text.sources, strict=True):
                    _join_side([folder / str(k) / side for k in range(1, n + 1)], directory / side, names, text.kept)
                seal(directory, tokenizer, place.name, survey, say)
    except (OSError, UserError) as error:
        if not (place / "meta.json").exists():  # else the parts were removed by the process that was faster
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise disk_full(place, tokenizer, survey) from error
            raise
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or gone already
        folder.parent.rmdir()
    return Prepared.load(place)


def _join_side(parts: list[Path], directory: Path, names: list[str], kept: frozenset[str]) -> None:
    shards = [Shards.load(part) for part in parts]
    writer = Writer(directory, len(shards[0].counts), names, kept)
    try:
        for one in shards:
            writer.extend(one)
        writer.finish()
    finally:
        writer.close()
