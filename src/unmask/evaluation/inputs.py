"""What a model reads, from ids and masks or from a text, without an objective: `lm.logits`, `hidden`, `embed`.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unmask.batch import Examples, Rows, Stream, causal, full, prefix
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.evaluation.abilities import spoken
from unmask.evaluation.shown import in_mode
from unmask.objectives.bart import Bart
from unmask.objectives.base import Objective, frame
from unmask.objectives.denoise import SpanCorruption
from unmask.objectives.glm import GLM
from unmask.objectives.mixture import Mixture
from unmask.objectives.permutation import Permutation
from unmask.objectives.study import DroppedTokens, Restoration
from unmask.objectives.supervised import Supervised
from unmask.objectives.ul2 import UL2
from unmask.tokens.special import Vocabulary
from unmask.tokens.tokenizer import Around

Order = Literal["bidirectional", "causal", "prefix"]

CLOSED = (SpanCorruption, UL2, Bart, Restoration, DroppedTokens, Supervised)
"""Objectives whose sources end with [EOS], whatever their texts do."""


def stream_of(
    ids: Any,
    order: Order,
    mask: Any = None,
    token_type: Any = None,
    prefix_length: Any = None,
    device: torch.device | None = None,
    name: str = "input_ids",
) -> Stream:
    """(B, T) ids under a visibility, from lists, numpy or tensors.

    mask           1 = a real token; what is 0 is block 0, wherever it stands. Positions count from a row's first
                   real token, so padding on either side gives the same answers; no pad id is looked for.
    prefix_length  for order=prefix: how many real tokens of each row see each other, one number or one a row;
                   None = 1, the first token alone (normally [BOS]), which is causal: no token sees a later one
    """
    tokens = _whole(ids, name, device)
    real = torch.ones_like(tokens) if mask is None else _whole(mask, "attention_mask", device, tokens.shape).ne(0).int()
    index = torch.arange(tokens.shape[1], dtype=torch.int32, device=tokens.device)
    first = real.argmax(1, keepdim=True).int()
    positions = (index - first).clamp(min=0) * real
    if order == "bidirectional":
        reveal = torch.zeros_like(positions)
    elif order == "causal" or prefix_length is None:
        reveal = positions
    else:
        length = torch.as_tensor(prefix_length, dtype=torch.int32, device=tokens.device).reshape(-1, 1)
        reveal = (positions - length + 1).clamp(min=0)
    pattern: Literal["full", "causal", "prefix"] = "full" if order == "bidirectional" else order
    types = None if token_type is None else _whole(token_type, "token_type_ids", device, tokens.shape)
    return Stream(
        tokens=torch.where(real != 0, tokens, 0),
        positions=positions,
        block=real,
        reveal=reveal,
        horizon=reveal.clone(),
        token_type=types,
        pattern=pattern,
        isolated=bool((real != 0).all()),
    )


def _whole(values: Any, name: str, device: torch.device | None, shape: torch.Size | None = None) -> Tensor:
    """(B, T) int32; one row may come as (T,)."""
    try:
        tensor = torch.as_tensor(np.asarray(values) if isinstance(values, (list, tuple)) else values)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} must hold whole numbers in rows of equal length: {error}") from error
    tensor = tensor[None] if tensor.dim() == 1 else tensor
    if tensor.dim() != 2 or tensor.is_floating_point() or 0 in tensor.shape:
        raise UserError(f"{name} must be (rows, tokens) of whole numbers, not {tuple(tensor.shape)} {tensor.dtype}")
    if shape is not None and tensor.shape != shape:
        raise UserError(f"{name} is {tuple(tensor.shape)} but input_ids are {tuple(shape)}: give one value a token")
    return tensor.to(device=device, dtype=torch.int32)


def framed(rows: Rows, config: ModelConfig, vocabulary: Vocabulary, objective: Objective | None = None) -> Examples:
    """Texts as the stack that reads them saw them in training, one stream each.

    two stacks      text [EOS], for the encoder
    bidirectional   [CLS] text [SEP], or text [SEP] [CLS] (XLNet's permutation)
    GLM             [CLS] text [SEP], all of it seen both ways
    causal, prefix  [BOS] text; a prefix model sees all of it both ways

    A mixture's are those of its part `read_as`, behind that part's mode token.
    """
    objective = read_as(objective, config)
    examples = _framed(rows, config, vocabulary, objective)
    return examples if objective is None else in_mode(examples, objective, "infill", vocabulary)


def read_as(objective: Objective | None, config: ModelConfig) -> Objective | None:
    """The objective whose texts a model reads; of a mixture, its first part that sees as the network does by itself."""
    if not isinstance(objective, Mixture):
        return objective
    alike = (p.asked for p in objective.parts.values() if p.objective.visibility == config.visibility)
    return objective.first if config.num_source_layers else next(alike, objective.first)


def _framed(rows: Rows, config: ModelConfig, vocabulary: Vocabulary, objective: Objective | None) -> Examples:
    if config.num_source_layers:
        text = frame(rows, after=vocabulary.need("eos"))
        return Examples(full(text.tokens, text.start), {})
    if _both_ways(config, objective):
        cls, sep = vocabulary.need("cls"), vocabulary.need("sep")
        last = isinstance(objective, Permutation) and objective.cls == "last"
        text = frame(frame(rows, after=sep), after=cls) if last else frame(rows, cls, sep)
        return Examples(full(text.tokens, text.start), {})
    text = frame(rows, before=vocabulary.need("bos"))
    if config.visibility == "causal":
        return Examples(causal(text.tokens, text.start), {})
    return Examples(prefix(text.tokens, text.start, text.lengths), {})


def frame_size(config: ModelConfig, objective: Objective | None = None) -> int:
    """How many control tokens `framed` adds to a text."""
    objective = read_as(objective, config)
    told = () if objective is None else spoken(objective, "infill")
    return (2 if _both_ways(config, objective) else 1) + len(told)


def _both_ways(config: ModelConfig, objective: Objective | None) -> bool:
    return not config.num_source_layers and (config.visibility == "bidirectional" or isinstance(objective, GLM))


def around(objective: Objective | None, config: ModelConfig) -> Around:
    """The roles of the control tokens around a text that the first stack reads, for tokenizers of exports."""
    objective = read_as(objective, config)
    if config.num_source_layers:
        return (None, "eos") if isinstance(objective, CLOSED) else (None, None)
    if isinstance(objective, Permutation) and objective.cls == "last":
        return None, ("sep", "cls")
    return ("cls", "sep") if _both_ways(config, objective) else ("bos", None)
