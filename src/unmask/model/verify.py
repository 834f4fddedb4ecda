"""Does an exported directory compute what the model computes? Reload it with transformers and compare.

Legend: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from unmask import batch as record
from unmask.batch import Batch, Stream
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.bundle import auto_classes, is_own
from unmask.model.heads import HeadModule
from unmask.model.transformer import Transformer
from unmask.model.translate import known_heads

TOLERANCE = 1e-4
"""The largest logit difference an export may show after reloading."""
TOP = 5
"""How many of the likeliest tokens must be the same ones, in the same order but for ties within `TOLERANCE`."""


def check_export(
    model: Transformer,
    directory: str | Path,
    texts: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    rows: int = 3,
    length: int = 24,
) -> float:
    """The largest logit difference between `model` and the directory reloaded with transformers.

    Compared are random tokens in rows of unequal lengths, padded (a prefix model's under its own mask), and `texts`:
    text → the ids that the first stack reads, which the directory's own tokenizer must give, and where the likeliest
    tokens must be the same. Every class that config.json names is loaded, and every head compared. More than
    `TOLERANCE`, another id or another order of the likeliest tokens is refused.
    """
    path = Path(directory)
    samples = [np.asarray(ids, np.int64) for ids in _same_ids(path, texts or {})]
    config = model.config
    lengths = np.maximum(min(length, config.max_position) - np.arange(rows) * max(1, length // (2 * rows)), 1)
    batches = [_random(config, seed, lengths)]
    pad = config.position_offset - 1  # RoBERTa's class counts no position at a pad id: such a text differs by design
    read = [ids for ids in samples if len(ids) > 0 and pad not in ids]
    batches += [_random(config, seed, np.array([len(ids)]), ids) for ids in read]
    largest = 0.0
    with trusted(), torch.no_grad():
        for stock in _classes(path):
            theirs = _load(path, stock)
            for batch in batches:
                largest = max(largest, _difference(path, model, theirs, batch))
    return largest


def check_ids(directory: str | Path, wanted: Mapping[str, int | None]) -> None:
    """Control ids in config.json and generation_config.json must be those of the model: role → id."""
    path = Path(directory)
    for name in ("config.json", "generation_config.json"):
        held = json.loads((path / name).read_text(encoding="utf-8"))
        for role, id_ in wanted.items():
            if (found := held.get(f"{role}_token_id", id_)) != id_:
                raise UserError(
                    f"{path / name} says {role}_token_id={found}, but the model's is {id_}: the export is refused; "
                    "please report this as a bug"
                )


@contextmanager
def trusted() -> Iterator[None]:
    """Inside, transformers may run the code that this process wrote beside a model, from a fresh cache of modules."""
    from transformers import dynamic_module_utils as dynamic

    before, paths, kept = set(sys.modules), list(sys.path), dynamic.HF_MODULES_CACHE
    with tempfile.TemporaryDirectory() as cache, _quiet():
        dynamic.HF_MODULES_CACHE = cache
        try:
            yield
        finally:
            dynamic.HF_MODULES_CACHE, sys.path[:] = kept, paths
            for name in [n for n in sys.modules if n.startswith("transformers_modules") and n not in before]:
                del sys.modules[name]


# ---------------------------------------------------------------- ids


def _same_ids(path: Path, texts: Mapping[str, Sequence[int]]) -> list[list[int]]:
    """The ids of the texts, which the directory's tokenizer gives too, or a refusal."""
    if not texts:
        return []
    from transformers import AutoTokenizer

    with trusted():
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=True)
        given = {text: tokenizer(text)["input_ids"] for text in texts}
    for text, ids in texts.items():
        if (found := given[text]) != list(ids):
            same = [a == b for a, b in zip(found, ids, strict=False)]
            at = same.index(False) if False in same else len(same)
            raise UserError(
                f"{path}: after reloading with transformers, the tokenizer gives other ids for {text!r} "
                f"(token {at}: {found[at : at + 3]}, not {list(ids[at : at + 3])}): the export is refused; "
                "please report this as a bug"
            )
    return [list(ids) for ids in texts.values()]


# ---------------------------------------------------------------- logits


def _classes(path: Path) -> list[str]:
    """The classes of the library to load a directory with: the stock one, or every Auto class with code there."""
    if is_own(path):
        return list(auto_classes(path))
    return [json.loads((path / "config.json").read_text(encoding="utf-8"))["architectures"][0]]


def _load(path: Path, name: str) -> Any:
    """The model of a directory as a class of the library reads it, in fp32."""
    import transformers

    auto = {"trust_remote_code": True} if name.startswith("Auto") else {}
    try:
        theirs, info = getattr(transformers, name).from_pretrained(
            path, output_loading_info=True, dtype=torch.float32, **auto
        )
    except Exception as fault:
        raise UserError(f"{path}: transformers cannot load the export ({' '.join(str(fault).split())})") from fault
    for kind in ("missing", "unexpected"):
        # a bare body of the library's brings a pooler, which its states do not go through
        if names := [n for n in info[f"{kind}_keys"] if kind == "unexpected" or not n.startswith("pooler.")]:
            raise UserError(f"{path}: the reloaded model has {kind} tensors: {', '.join(sorted(names)[:3])}")
    return theirs.eval()


def _difference(path: Path, model: Transformer, theirs: Any, batch: Batch) -> float:
    """The largest difference over everything the reloaded model answers at real positions; too large is refused."""
    device = next(model.parameters()).device
    states = model(batch.map(lambda a: a.to(device)))["stream"]
    accepts = inspect.signature(theirs.forward).parameters
    out = theirs(**{k: v for k, v in _arguments(batch, model.config).items() if k in accepts})
    real = batch.stream.block != 0
    pairs = list(_pairs(model, states, batch.stream, out))
    if not pairs:
        raise UserError(f"{path}: {type(theirs).__name__} answers nothing that this model knows: nothing to compare")
    largest = 0.0
    for ours, other in pairs:
        ours, other = ours.cpu().float(), other.float()
        if ours.shape != other.shape:
            raise UserError(f"{path}: after reloading, answers are {tuple(other.shape)}, not {tuple(ours.shape)}")
        if ours.shape[:2] == real.shape:
            ours, other = ours[real], other[real]
        difference = float((ours - other).abs().max())
        if not difference <= TOLERANCE:
            raise UserError(
                f"{path}: after reloading with transformers, logits differ by {difference:.3g} (at most {TOLERANCE}): "
                "the export is refused; please report this as a bug"
            )
        if ours.shape[-1] == model.config.vocab_size and not _same_order(ours, other):
            raise UserError(
                f"{path}: after reloading with transformers, the {TOP} likeliest tokens are others: "
                "the export is refused; please report this as a bug"
            )
        largest = max(largest, difference)
    return largest


def _pairs(model: Transformer, states: Tensor, stream: Stream, out: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """What ours and theirs say of the same thing, for everything in a ModelOutput that we know."""
    names = known_heads(model.declared)
    by_key = {"prediction_logits": "lm", "seq_relationship_logits": "pair", "sop_logits": "pair"}
    first = stream.block.argmax(1)[:, None].to(states.device)
    for key, value in out.items():
        if key == "last_hidden_state":
            yield states, value
            continue
        role = by_key.get(key, "")
        if key == "logits":
            role = "detect" if value.dim() == 2 else "lm"
        name = names.get(role, key.removesuffix("_logits"))
        if not isinstance(value, Tensor) or name not in model.heads:
            continue
        head = cast(HeadModule, model.heads[name])
        if head.head.over == "classes":
            at = states.gather(1, first[..., None].expand(-1, -1, states.shape[2]))
            yield head.project(head.features(at)), value
        else:
            answers = head.project(head.features(states.flatten(0, 1)[:, None])).view(*states.shape[:2], -1)
            yield answers.squeeze(-1), value


def _same_order(ours: Tensor, other: Tensor) -> bool:
    """Whether the likeliest tokens (…, V) agree: theirs are ours, but for tokens that ours hold equal."""
    best = ours.topk(min(TOP, ours.shape[-1]), -1).values
    theirs = ours.gather(-1, other.topk(best.shape[-1], -1).indices)
    return bool(((best - theirs).abs() <= 2 * TOLERANCE).all())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's progress bar, and its warning that untied T5 weights are untied (they are meant to be)."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


# ---------------------------------------------------------------- what both read


def _random(config: ModelConfig, seed: int, lengths: np.ndarray, first: np.ndarray | None = None) -> Batch:
    """Right-padded random rows under the model's mask (prefix: a third of each row); `first` = what its stack reads."""
    random = np.random.default_rng(seed)
    if not config.num_source_layers:
        return Batch(_ragged(random, config, config.visibility, lengths, first), {}, {})
    stream = replace(_ragged(random, config, config.visibility, lengths, None), token_type=None)
    return Batch(stream, {}, {}, _ragged(random, config, "bidirectional", lengths, first))


def _ragged(
    random: np.random.Generator, config: ModelConfig, visibility: str, lengths: np.ndarray, tokens: np.ndarray | None
) -> Stream:
    lengths = np.minimum(lengths, config.max_position)
    start = record.starts(lengths)
    if tokens is None:
        low = min(config.position_offset, config.vocab_size - 1)  # beyond the pad id, after which positions start
        tokens = random.integers(low, config.vocab_size, start[-1])
    tokens = tokens[: start[-1]]
    types = random.integers(0, config.token_types, start[-1]) if config.token_types > 1 else None
    if visibility == "prefix":
        text = record.prefix(tokens, start, np.maximum(lengths // 3, 1), token_type=types)
    else:
        text = (record.full if visibility == "bidirectional" else record.causal)(tokens, start, token_type=types)
    rows, length = len(lengths), int(lengths.max())
    row, column = np.repeat(np.arange(rows), lengths), record.places(start)

    def laid(values: np.ndarray) -> Tensor:
        out = np.zeros((rows, length), np.int32)
        out[row, column] = values
        return torch.from_numpy(out)

    return replace(text.map(laid), start=None, contiguous=True)


def _arguments(batch: Batch, config: ModelConfig) -> dict[str, Tensor]:
    """The same batch for a class of the library; what its forward does not take is left out by the caller."""
    stream, source = batch.stream, batch.source
    real = stream.block != 0
    first = stream if source is None else source
    out = {"input_ids": first.tokens.long(), "attention_mask": (first.block != 0).long()}
    if first.token_type is not None:
        out["token_type_ids"] = first.token_type.long()
    if source is not None:
        out.update(decoder_input_ids=stream.tokens.long(), decoder_attention_mask=real.long())
    elif config.visibility == "prefix":
        out["prefix_length"] = ((stream.reveal == 0) & real).sum(1)
    return out
