"""The model that is opened: its recipe, its training, and the held-out text as the pieces it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from unmask.data.worlds import KINDS, SPLITS, World
from unmask.lm import LM
from unmask.recipe import Recipe, load_recipe
from unmask.run import Run, pretrain
from unmask.tokens.pieces import CHAR_PATTERN
from unmask.tokens.tokenizer import Tokenizer

Say = Callable[[str], None]
CHARACTERS = 96
"""Of a row."""
TURN, TURNS = 5, 19
"""Windows of 95 characters at fixed places would be learnt by heart: 19 copies begin 5 characters apart."""
FIRST = 64
"""Updates from which on the learning curve is measured, wherever a checkpoint was kept."""


Reading = Literal["stream", "lines"]
"""stream: lines run on, and windows begin anywhere in the text. lines: each line is read by itself, from its start."""
READINGS: tuple[Reading, ...] = ("stream", "lines")


def recipe(folder: Path, reading: Reading, seed: int, steps: int | None = None) -> Recipe:
    """The laboratory's recipe over a world's text in `folder`; steps: other than the recipe's."""
    given: dict[str, Any] = {
        "seed": seed,
        "tokenizer.file": str(folder / f"{reading}.json"),
        "corpus.path": str(folder / ("turned" if reading == "stream" else "train.txt")),
        "valid.path": str(folder / "valid.txt"),
    }
    if reading == "stream":  # the line end is a symbol like others, and opens each window
        given |= {"corpus.document": "file", "valid.document": "file", "start": 0, "end": 0}
    if steps is not None:
        given |= {"budget.steps": steps}
    with resources.as_file(resources.files("unmask.labs.inside") / "model.yaml") as file:
        return load_recipe(file, given)


def train(world: World, out: Path, reading: Reading, seed: int, resume: str, say: Say, steps: int | None = None) -> Run:
    """Write the world's text beside the runs, and train one seed on it."""
    folder = out / "world" / f"{reading}-{seed}"
    write(world, folder)
    return pretrain(recipe(folder, reading, seed, steps), out=place(out, reading, seed), resume=resume, say=say)


def write(world: World, folder: Path) -> None:
    """The world's text, its tokenizers, and copies of the training text that begin `TURN` characters apart."""
    (folder / "turned").mkdir(parents=True, exist_ok=True)
    text = world.text()
    files = {f"turned/{k:02d}.txt": text[TURN * k :] + text[: TURN * k] for k in range(TURNS)}
    files |= {f"{split}.txt": world.text(split=split) for split in SPLITS}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8", newline="\n")
    world.tokenizer("char").save(folder / "lines.json")
    symbols(world).save(folder / "stream.json")


def symbols(world: World) -> Tokenizer:
    """The world's 44 symbols, the line end first and one of them: `World.tokenizer("char")` without a control token."""
    library = Library(models.BPE({symbol: i for i, symbol in enumerate(world.symbols())}, []))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(CHAR_PATTERN), "isolated")
    library.decoder = decoders.Fuse()
    return Tokenizer(library.to_str())


def place(out: Path, reading: Reading, seed: int) -> Path:
    """Where the run of a seed lies."""
    return out / "runs" / f"{reading}-{seed}"


@dataclass(frozen=True)
class Piece:
    """A window of held-out text: what the model reads, what it must say next, and of which kind the line is."""

    read: np.ndarray  # (T,)
    say: np.ndarray  # (T,)
    kind: np.ndarray  # (T,) place in `KINDS`


def pieces(lm: LM, world: World, reading: Reading) -> list[Piece]:
    """The held-out text, cut as in training: full pieces and a rest; at its end a document says its line end."""
    lines = [(KINDS.index(kind), line) for kind in KINDS for line in world.lines(kind, "valid")]
    if reading == "lines":
        return [p for kind, line in lines for p in _cut(lm, encode(lm, line), np.full(len(line) + 1, kind))]
    kinds = {line: kind for kind, line in lines}
    text = world.text(split="valid")
    kind = np.concatenate([np.full(len(line) + 1, kinds[line]) for line in text.splitlines()])
    return list(_cut(lm, encode(lm, text), np.append(kind, kind[-1])))


def _cut(lm: LM, ids: list[int], kind: np.ndarray) -> Iterator[Piece]:
    room, begins, ends = CHARACTERS - 1, lm.vocabulary.need("bos"), lm.vocabulary.need("eos")
    for begin in range(0, len(ids), room):
        part = ids[begin : begin + room]
        said = [*part, ends] if begin + room >= len(ids) else part
        yield Piece(np.array([begins, *said[:-1]]), np.array(said), kind[begin : begin + len(said)])


def encode(lm: LM, text: str) -> list[int]:
    """One id a character."""
    assert lm.tokenizer is not None
    return [int(i) for i in lm.tokenizer.encode(text)]


def decode(lm: LM, ids: Sequence[int]) -> str:
    assert lm.tokenizer is not None
    return lm.tokenizer.decode(np.asarray(ids, np.int32))
