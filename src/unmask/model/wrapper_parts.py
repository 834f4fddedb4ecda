"""What the classes of `wrapper` share and the `transformers` library has no part in.

Like them it is only copied into generated files. Legend: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.batch import Stream

IGNORED = -100
"""A label that does not count."""


def stream_of(
    ids: Tensor,
    mask: Tensor | None,
    order: Literal["bidirectional", "causal", "prefix"],
    prefix_length: int | Tensor | None = None,
    token_type: Tensor | None = None,
    position_ids: Tensor | None = None,
    positions2: Tensor | None = None,
) -> Stream:
    """(B, T) ids as the model reads them. What `mask` calls 0 is padding, on either side; no pad id is looked for.

    Positions count from a row's first real token unless they are given. Given alone, without a mask or a second axis
    (which lets an answer stand where its [MASK] does), they part the texts of a row as well: a new one begins wherever
    they do not count on, and sees nothing of the others. `prefix_length`, one number or one a row, says how many of a
    prefix model's real tokens see each other; without it, only the first.
    """
    if ids.dim() != 2 or (mask is not None and mask.shape != ids.shape):
        shape = "" if mask is None else f" and attention_mask {tuple(mask.shape)}"
        raise ValueError(
            f"input_ids are {tuple(ids.shape)}{shape}: both must be (rows, tokens), the mask 1 at real tokens; "
            "who sees whom follows from the model, so masks of pairs are not supported"
        )
    real = torch.ones_like(ids) if mask is None else mask.ne(0).to(ids.dtype)
    index = torch.arange(ids.shape[1], device=ids.device, dtype=ids.dtype)
    place = (index - real.argmax(1, keepdim=True)).clamp(min=0) * real
    reveal = torch.zeros_like(place) if order == "bidirectional" else place
    if order == "prefix" and prefix_length is not None:
        length = torch.as_tensor(prefix_length, dtype=ids.dtype, device=ids.device).reshape(-1, 1)
        reveal = (place - length + 1).clamp(min=0)
    block = real
    if position_ids is not None:
        position_ids = position_ids.to(ids.dtype).expand_as(ids)
        if mask is None and positions2 is None:
            block = F.pad(position_ids.diff() != 1, (1, 0), value=True).cumsum(1).to(ids.dtype)
    return Stream(
        tokens=torch.where(real != 0, ids, 0),
        positions=place if position_ids is None else position_ids,
        block=block,
        reveal=reveal,
        horizon=reveal.clone(),
        token_type=token_type,
        positions2=positions2,
        pattern="full" if order == "bidirectional" else order,
        contiguous=position_ids is None,
    )


def continued(values: Tensor, length: int, step: int) -> Tensor:
    """(B, P) positions of a prompt, and behind them those of what is written, each `step` after the one before.

    >>> continued(torch.tensor([[0, 1, 2, 1]]), 6, 0).tolist(), continued(torch.tensor([[0, 0, 0, 1]]), 6, 1).tolist()
    ([[0, 1, 2, 1, 1, 1]], [[0, 0, 0, 1, 2, 3]])
    """
    more = torch.arange(1, length - values.shape[1] + 1, device=values.device, dtype=values.dtype)
    return torch.cat([values, values[:, -1:] + step * more], 1)


def mean_loss(logits: Tensor, labels: Tensor, count: Tensor | int | None = None) -> Tensor:
    """Mean cross-entropy in nats over the labels that count; a router's balance and z-losses are not in it.

    `count` is over how many the mean is, where gradients are gathered over several batches.
    """
    flat, wanted = logits.flatten(0, 1).float(), labels.flatten().long()
    if count is None:
        return F.cross_entropy(flat, wanted, ignore_index=IGNORED)
    total = F.cross_entropy(flat, wanted, ignore_index=IGNORED, reduction="sum")
    return total / (count.to(total.device) if isinstance(count, Tensor) else count)


def kept(states: list[Tensor], asked: bool | None) -> tuple[Tensor, ...] | None:
    """The states of every depth, where they were asked for."""
    return tuple(states) if asked and states else None
