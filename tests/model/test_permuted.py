"""XLNet's `perm_mask` and `target_mapping`: read exactly or refused, and equal to transformers' two streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.batch import Batch
from unmask.errors import UserError
from unmask.evaluation.inputs import stream_of
from unmask.lm import LM
from unmask.loading import load
from unmask.model.interop import load_hf
from unmask.model.permuted import permuted

from .helpers import close, logits_of, model_of, tokens_of
from .test_parity import gradients
from .test_parity_relative import saved


@pytest.mark.parametrize("types", [False, True])
@pytest.mark.parametrize("targets", ["few", "all"])
def test_two_streams_equal_transformers(targets: str, types: bool, tmp_path: Path) -> None:
    stock = saved("xlnet", tmp_path)
    model, _ = load_hf(tmp_path)
    length = 11
    tokens = tokens_of(2, length)
    real = np.ones((2, length), np.int64)
    real[1, 8:] = 0
    # ranks without ties but for the visible ones
    ranks = np.stack([np.random.default_rng(s).permutation(length) for s in (0, 1)])
    ranks = np.maximum(ranks - 3, 0)
    blind = (ranks[:, None, :] >= ranks[:, :, None]) & (ranks[:, None, :] > 0)
    at = [[i for i in range(8) if ranks[b, i] > 0][:4] for b in range(2)] if targets == "few" else [range(length)] * 2
    mapping = np.stack([np.eye(length)[list(a)] for a in at]).astype(np.float32)
    kinds = (np.arange(length) > 5).astype(np.int64)[None].repeat(2, 0)
    more = {"token_type_ids": torch.tensor(kinds)} if types else {}
    theirs = stock(
        input_ids=torch.tensor(tokens).long(),
        attention_mask=torch.tensor(real),
        perm_mask=torch.tensor(blind).float(),
        target_mapping=torch.tensor(mapping),
        **more,
    ).logits
    stream = stream_of(tokens, "bidirectional", real, kinds if types else None)
    out = permuted(stream, blind, mapping)
    states = model(Batch(out, {}, {}))["stream"][:, length:]
    kept = torch.tensor([[real[b, i] for i in a] for b, a in enumerate(at)]) != 0
    assert int(kept.sum()) >= 8
    ours, theirs = logits_of(model, states)[kept], theirs[kept]
    assert close(ours, theirs)
    direction = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(3))
    (ours * direction).sum().backward()
    (theirs * direction).sum().backward()
    found = gradients(model)
    norms = {n: float(p.grad.norm()) for n, p in stock.named_parameters() if p.grad is not None}
    assert norms["transformer.mask_emb"] > 0
    for tensor, parameter in stock.named_parameters():
        if parameter.grad is not None:
            assert close(found[tensor], parameter.grad, absolute=1e-6 * max(norms.values())), tensor


def test_an_order_without_targets_equals_transformers(tmp_path: Path) -> None:
    """The content stream alone: each token sees itself and what comes before it in the order."""
    stock = saved("xlnet", tmp_path)
    model, _ = load_hf(tmp_path)
    tokens = tokens_of(2, 9)
    ranks = np.stack([np.random.default_rng(s).permutation(9) for s in (2, 3)])
    blind = ranks[:, None, :] >= ranks[:, :, None]
    theirs = stock(input_ids=torch.tensor(tokens).long(), perm_mask=torch.tensor(blind).float()).logits
    out = permuted(stream_of(tokens, "bidirectional"), blind.tolist())
    assert out.tokens.shape == (2, 9)
    assert close(logits_of(model, model(Batch(out, {}, {}))["stream"]), theirs)


def test_blanks_blind_to_each_other_equal_transformers(tmp_path: Path) -> None:
    """Several blanks at once, none of which reads another: what a user who fills blanks asks for."""
    stock = saved("xlnet", tmp_path)
    model, _ = load_hf(tmp_path)
    tokens = tokens_of(1, 9)
    blanks = [2, 5, 6]
    blind = np.zeros((1, 9, 9))
    blind[:, :, blanks] = 1
    mapping = np.eye(9)[None, blanks]
    theirs = stock(
        input_ids=torch.tensor(tokens).long(),
        perm_mask=torch.tensor(blind).float(),
        target_mapping=torch.tensor(mapping).float(),
    ).logits
    out = permuted(stream_of(tokens, "bidirectional"), blind, mapping)
    assert close(logits_of(model, model(Batch(out, {}, {}))["stream"][:, 9:]), theirs)


def test_targets_without_a_mask_equal_transformers(tmp_path: Path) -> None:
    stock = saved("xlnet", tmp_path)
    model, _ = load_hf(tmp_path)
    tokens = tokens_of(1, 7)
    mapping = np.eye(7)[None, [3]]
    theirs = stock(input_ids=torch.tensor(tokens).long(), target_mapping=torch.tensor(mapping).float()).logits
    out = permuted(stream_of(tokens, "bidirectional"), None, mapping)
    assert close(logits_of(model, model(Batch(out, {}, {}))["stream"][:, 7:]), theirs)


def test_a_mask_without_an_order_is_refused() -> None:
    stream = stream_of([[5, 6, 7, 8]], "bidirectional")
    window = np.abs(np.arange(4)[:, None] - np.arange(4)) > 1
    with pytest.raises(UserError, match="perm_mask is no order in row 0: what tokens 0 and 2 see"):
        permuted(stream, window[None])
    with pytest.raises(UserError, match=r"perm_mask is \(1, 3, 3\) but input_ids are \(1, 4\)"):
        permuted(stream, np.zeros((1, 3, 3)))
    with pytest.raises(UserError, match="target_mapping holds a row with more than one 1"):
        permuted(stream, None, np.ones((1, 1, 4)))
    with pytest.raises(UserError, match="perm_mask must hold zeros and ones alone"):
        permuted(stream, np.full((1, 4, 4), 0.5))


def test_every_mask_is_read_exactly_or_refused() -> None:
    """Against the masks themselves: whatever is accepted gives the sets of the mask, and orders are accepted."""
    generator = np.random.default_rng(0)
    accepted = 0
    for trial in range(300):
        length = int(generator.integers(2, 6))
        if trial % 2:
            ranks = generator.integers(0, 4, length)
            blind = (ranks[None, :] >= ranks[:, None]) & ~((ranks[None, :] == 0) & (ranks[:, None] == 0))
            if len(set(ranks[ranks > 0])) < (ranks > 0).sum():  # equal places that are blind to each other
                blind = ranks[None, :] > ranks[:, None]
        else:
            blind = generator.random((length, length)) < 0.4
        targets = generator.permutation(length)[: int(generator.integers(0, length + 1))]
        mapping = np.eye(length)[targets][None] if len(targets) else None
        try:
            out = permuted(stream_of(np.full((1, length), 7), "bidirectional"), blind[None], mapping)
        except UserError:
            assert not trial % 2
            continue
        accepted += 1
        sees = out.reveal[0][None, :] <= out.horizon[0][:, None]
        assert not sees[:, length:].any()  # nobody sees a query
        for n, target in enumerate(targets):
            assert sees[length + n, :length].tolist() == (~blind[target]).tolist()
        for i in range(length):
            read = (~blind[np.arange(length) != i][:, i]).any() or (i in targets and not blind[i, i])
            if mapping is None or read:
                assert sees[i, :length].tolist() == (~blind[i] | (np.arange(length) == i)).tolist()
    assert accepted > 150


def test_the_public_logits_take_them_too(tmp_path: Path) -> None:
    stock = saved("xlnet", tmp_path)
    lm = load(tmp_path, device="cpu")
    tokens, length = tokens_of(2, 7), 7
    blind = np.triu(np.ones((2, length, length), np.int64), 1)  # left to right
    mapping = np.eye(length, dtype=np.int64)[None, [2, 6]].repeat(2, 0)
    given = {"perm_mask": torch.tensor(blind).float(), "target_mapping": torch.tensor(mapping).float()}
    with torch.no_grad():
        theirs = stock(input_ids=torch.tensor(tokens).long(), **given).logits
        content = stock(input_ids=torch.tensor(tokens).long(), perm_mask=given["perm_mask"]).logits
    assert close(lm.logits(tokens, perm_mask=blind, target_mapping=mapping), theirs)
    assert close(lm.logits(tokens, perm_mask=blind), content)
    with pytest.raises(UserError, match="has no query vector"):
        network = model_of(torch.float32, visibility="bidirectional")
        LM(network, 20).logits(tokens, target_mapping=mapping)
