"""Does an exported directory compute what the model computes? Reload it with transformers and compare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from unmask import batch as record
from unmask.batch import Batch, Stream
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.heads import HeadModule
from unmask.model.transformer import Transformer
from unmask.model.translate import known_heads

TOLERANCE = 1e-4
"""The largest logit difference an export may show after reloading."""


@torch.no_grad()
def check_export(model: Transformer, directory: str | Path, seed: int = 0, rows: int = 3, length: int = 24) -> float:
    """The largest logit difference between `model` and the directory reloaded with transformers.

    Random tokens, unequal lengths, padding; a prefix model is compared under its own mask. More than
    `TOLERANCE` is refused.
    """
    import transformers

    path = Path(directory)
    settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
    stock = getattr(transformers, settings["architectures"][0])
    with _quiet():
        theirs, info = stock.from_pretrained(path, output_loading_info=True, dtype=torch.float32)
    theirs.eval()
    if info["missing_keys"]:
        raise UserError(f"{path}: the reloaded model misses {sorted(info['missing_keys'])[0]}")
    length = min(length, model.config.max_position)
    batch = _random(model.config, seed, rows, length)
    device = next(model.parameters()).device
    states = model(batch.map(lambda a: a.to(device)))["stream"]
    names = known_heads(model.declared)
    if "lm" not in names:
        raise UserError(f"{path}: a model without a vocabulary head has no logits to compare")
    head = cast(HeadModule, model.heads[names["lm"]])
    ours = head.project(head.features(states.flatten(0, 1)[:, None])).view(rows, length, -1).cpu().float()
    out = theirs(**_arguments(batch, model.config))
    other = out.prediction_logits if "prediction_logits" in out else out.logits
    real = batch.stream.block != 0
    difference = float((ours - other)[real].abs().max())
    if not difference <= TOLERANCE:
        raise UserError(
            f"{path}: after reloading with transformers, logits differ by {difference:.3g} (at most {TOLERANCE}): "
            "the export is refused; please report this as a bug"
        )
    return difference


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


def _random(config: ModelConfig, seed: int, rows: int, length: int) -> Batch:
    """Right-padded random rows of unequal lengths under the model's mask (prefix: a third of each row)."""
    random = np.random.default_rng(seed)
    stream = _ragged(random, config, config.visibility, rows, length)
    source = _ragged(random, config, "bidirectional", rows, length) if config.num_source_layers else None
    return Batch(stream, {}, {}, source)


def _ragged(random: np.random.Generator, config: ModelConfig, visibility: str, rows: int, length: int) -> Stream:
    lengths = np.maximum(length - np.arange(rows) * max(1, length // (2 * rows)), 1)
    start = record.starts(lengths)
    tokens = random.integers(0, config.vocab_size, start[-1])
    if visibility == "prefix":
        text = record.prefix(tokens, start, np.maximum(lengths // 3, 1))
    else:
        text = (record.full if visibility == "bidirectional" else record.causal)(tokens, start)
    row, column = np.repeat(np.arange(rows), lengths), record.places(start)

    def laid(values: np.ndarray) -> Tensor:
        out = np.zeros((rows, length), np.int32)
        out[row, column] = values
        return torch.from_numpy(out)

    return replace(text.map(laid), start=None, contiguous=True)


def _arguments(batch: Batch, config: ModelConfig) -> dict[str, Tensor]:
    """The same batch for a stock class."""
    stream, source = batch.stream, batch.source
    real = (stream.block != 0).long()
    if source is not None:
        return {
            "input_ids": source.tokens.long(),
            "attention_mask": (source.block != 0).long(),
            "decoder_input_ids": stream.tokens.long(),
            "decoder_attention_mask": real,
        }
    if config.visibility == "prefix":
        sees = record.visible(stream.block, stream.horizon, stream.block, stream.reveal)[:, None]
        mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)
        return {"input_ids": stream.tokens.long(), "attention_mask": mask}
    return {"input_ids": stream.tokens.long(), "attention_mask": real}
