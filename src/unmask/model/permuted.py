"""XLNet's `perm_mask` and `target_mapping` as a record: an order becomes reveal and horizon, targets appended queries.

Legend: B rows, T tokens, N targets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.batch import INFINITY, QUERY, Stream
from unmask.errors import UserError


def permuted(stream: Stream, perm_mask: Any, target_mapping: Any = None) -> Stream:
    """A stream (B, T) read in the order that a mask says, with N queries appended: (B, T + N).

    perm_mask       (B, T, T): 1 at [b, i, j] = token i does not see token j; None = every token sees all
    target_mapping  (B, N, T): 1 at [b, n, j] = query n stands at token j and sees what the mask leaves to row j;
                    a row of zeros is padding. None = no queries

    A token sees itself whatever the mask says, a query does not; nobody sees padding. What stands in the stream's
    reveal and horizon is replaced. Such sets are an order if of any two one holds the other: a set's size is then its
    horizon, and a token's reveal the smallest size that holds it. Where there are queries, the set of a token that
    nobody else reads is free, and so are two blanks that are blind to each other.

    A query that sees nothing gives what attention to nothing is, 0, where the common library takes a mean.

    >>> from unmask.evaluation.inputs import stream_of
    >>> blind = np.array([[[0, 1, 1], [0, 0, 0], [0, 1, 1]]])  # 0, then 2, then 1, which nobody reads
    >>> out = permuted(stream_of([[7, 8, 9]], "bidirectional"), blind, np.array([[[0, 0, 1]]]))
    >>> out.tokens.tolist(), out.positions.tolist()
    ([[7, 8, 9, -1]], [[0, 1, 2, 2]])
    >>> out.reveal.tolist(), out.horizon.tolist()
    ([[1, 2147483647, 2, 2147483647]], [[1, 3, 2, 1]])
    """
    rows, length = stream.tokens.shape
    device = stream.tokens.device
    real = stream.block != 0
    query = real[:, None, :] & real[:, :, None]  # what a query at i sees
    if perm_mask is not None:
        query = query & ~_flags(perm_mask, "perm_mask", rows, length, device)
    eye = torch.eye(length, dtype=torch.bool, device=device)
    content = (query | eye) & real[:, :, None]
    asked, target, mapping = real, torch.zeros_like(real), None
    if target_mapping is not None:
        mapping = _flags(target_mapping, "target_mapping", rows, length, device)
        if bool((mapping.sum(2) > 1).any()):
            raise UserError("target_mapping holds a row with more than one 1: a query stands at one token")
        target = mapping.any(1) & real
        asked = (query & ~(eye & ~target[:, :, None])).any(1)  # somebody else, or a query at the token, reads it
    sets = torch.cat([content & asked[:, :, None], query & target[:, :, None]], 1)  # (B, 2 T, T)
    sizes = torch.cat([content.sum(2), query.sum(2)], 1)
    reveal = torch.where(sets, sizes[:, :, None], INFINITY).amin(1)
    wrong = ((reveal[:, None, :] <= sizes[:, :, None]) != sets) & torch.cat([asked, target], 1)[:, :, None]
    if bool(wrong.any()):
        raise UserError(_fault(sets, wrong))
    horizon = sizes[:, :length]
    ordered = replace(
        stream, reveal=reveal.int(), horizon=horizon.int(), pattern="order", isolated=False, contiguous=False
    )
    return ordered if mapping is None else _with_queries(ordered, mapping, sizes[:, length:])


def _with_queries(stream: Stream, mapping: Tensor, sizes: Tensor) -> Stream:
    """The stream, and one query at the token of each row of the mapping (B, N, T)."""
    at, stands = mapping.int().argmax(2), mapping.any(2)

    def append(name: str, queries: Tensor | None = None) -> Tensor | None:
        own = getattr(stream, name)
        if own is None:
            return None
        return torch.cat([own, (own.gather(1, at) if queries is None else queries).to(own.dtype)], 1)

    vectors = {
        "tokens": append("tokens", torch.full_like(at, QUERY)),
        "positions": append("positions"),
        "block": append("block", stream.block.gather(1, at) * stands),
        "reveal": append("reveal", torch.full_like(at, INFINITY)),
        "horizon": append("horizon", sizes.gather(1, at)),
        "token_type": append("token_type"),
        "positions2": append("positions2"),
    }
    return replace(stream, **vectors)  # type: ignore[arg-type]


def _flags(values: Any, name: str, rows: int, length: int, device: torch.device) -> Tensor:
    """(B, …, T) zeros and ones as booleans."""
    try:
        tensor = torch.as_tensor(np.asarray(values) if isinstance(values, (list, tuple)) else values).to(device)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} must hold zeros and ones in rows of equal length: {error}") from error
    middle = "tokens" if name == "perm_mask" else "targets"
    shape = tuple(tensor.shape)
    if len(shape) != 3 or (shape[0], shape[2]) != (rows, length) or (middle == "tokens" and shape[1] != length):
        raise UserError(f"{name} is {shape} but input_ids are {(rows, length)}: it must be (rows, {middle}, tokens)")
    if not bool(((tensor == 0) | (tensor == 1)).all()):
        raise UserError(f"{name} must hold zeros and ones alone")
    return tensor != 0


def _fault(sets: Tensor, wrong: Tensor) -> str:
    """Which two tokens the mask puts in no order."""
    row = int(wrong.flatten(1).any(1).int().argmax())
    held = sets[row]
    length = held.shape[1]
    first = int(wrong[row].any(1).int().argmax())
    # both have something that the other lacks
    apart = (held[first] & ~held).any(1) & (held & ~held[first]).any(1)
    a, b = sorted((first % length, int(apart.int().argmax()) % length))
    return (
        f"perm_mask is no order in row {row}: what tokens {a} and {b} see lies neither way inside the other; "
        "give every token a place in one order (equal places may see each other), or ask for them in rows of their own"
    )
