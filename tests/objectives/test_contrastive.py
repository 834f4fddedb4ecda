"""Contrastive pairs: where query and passage come from, and the loss over a micro-batch's pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unmask.batch import Batch, Rows
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.loss import forward_heads
from unmask.model.transformer import Transformer
from unmask.objectives import Causal, Contrastive, Masked
from unmask.objectives.base import Shape, outline
from unmask.programs import in_batch, program_of

from .cases import VOCABULARY, changed, reachable, take, texts
from .cases_sentence import PAIRS, One, dressed, each

CLS, SEP = 2, 3
LENGTHS = [7, 1, 33, 0, 2, 64, 3, 12, 5, 40, 1, 90]
every = pytest.mark.parametrize("name", PAIRS)


def sides(one: One) -> tuple[list[int], list[int]]:
    """Query and passage of an example."""
    tokens, block = one.stream["tokens"], one.stream["block"]
    cut = block.index(2)
    assert block == [1] * cut + [2] * (len(block) - cut)
    assert one.stream["positions"] == [*range(cut), *range(len(block) - cut)]
    assert tokens[0] == tokens[cut] == CLS and tokens[cut - 1] == tokens[-1] == SEP
    if one.targets["query"][0]:
        assert (one.targets["query"][0], one.targets["passage"][0]) == ([0], [cut])
    return tokens[1 : cut - 1], tokens[cut + 1 : -1]


# ---------------------------------------------------------------- what the suite asks


@every
def test_a_ragged_batch_is_its_rows_alone(name: str) -> None:
    objective, rows = PAIRS[name], texts(LENGTHS)
    whole = each(objective(dressed(rows), VOCABULARY))
    for part in np.array_split(np.random.default_rng(0).permutation(len(LENGTHS)), 5):
        assert each(objective(dressed(take(rows, part)), VOCABULARY)) == [whole[i] for i in part]


@every
def test_sizes_room_and_types(name: str) -> None:
    objective, rows = PAIRS[name], dressed(texts(LENGTHS * 10))
    e = objective(rows, VOCABULARY)
    assert np.diff(e.stream.start).tolist() == objective.sizes(outline(rows)).stream.tolist()
    assert {getattr(e.stream, k).dtype for k in ("tokens", "positions", "block", "reveal", "horizon")} == {
        np.dtype("i4")
    }
    for context in (2, 5, 32):
        room = objective.room(Shape(context))
        assert (objective.sizes(outline(dressed(texts([room] * 50)))).stream <= context).all() or context < 4
    for lengths in ([], [0], [0, 1, 0], [1]):
        made = objective(dressed(texts(lengths)), VOCABULARY)
        assert len(made.stream.start) == len(lengths) + 1 and not len(made.targets["query"].index)


# ---------------------------------------------------------------- pairs


@every
def test_both_sides_come_from_their_text(name: str) -> None:
    objective, rows = PAIRS[name], dressed(texts(LENGTHS * 40))
    stay = total = 0
    for one, text in zip(each(objective(rows, VOCABULARY)), np.split(rows.tokens, rows.start[1:-1]), strict=True):
        query, passage = sides(one)
        text, n = text.tolist(), len(text)
        assert bool(query and passage) == (n > 1) == bool(one.targets["query"][0]) == bool(one.targets["passage"][0])
        if objective.pairs == "neighbours":
            both = query + passage
            assert any(text[i : i + len(both)] == both for i in range(n - len(both) + 1))
            continue
        assert len(passage) == n - len(query) == n or (
            len(query) <= max(n // 3, 1) and len(passage) == n - max(n // 3, 1)
        )
        around = [passage[:i] + query + passage[i:] for i in range(len(passage) + 1)]
        removed = any(text[i : i + len(x)] == x for x in around for i in range(n - len(x) + 1))
        kept = any(text[i : i + len(passage)] == passage for i in range(n - len(passage) + 1)) and any(
            passage[i : i + len(query)] == query for i in range(len(passage))
        )
        assert removed or kept
        if n > 30:
            stay, total = stay + (not removed), total + 1
    if objective.pairs == "inverse_cloze":
        assert abs(stay / total - (1 - objective.removed)) < 4 * np.sqrt(0.25 / total)


def test_a_sentence_is_asked_of_its_surroundings() -> None:
    rows = texts([30] * 3000)
    place = np.arange(30)
    rows = replace(rows, sentence=np.tile((place == 0) | (place == 8) | (place == 19) | (place == 24), 3000))
    begin, length = Contrastive(removed=1.0).stretches(outline(rows))
    found, counts = np.unique(np.stack([begin[:, 0], length[:, 0]], 1), axis=0, return_counts=True)
    assert found.tolist() == [[0, 8], [19, 5], [24, 6]] and np.abs(counts / 3000 - 1 / 3).max() < 0.04
    assert (length[:, 1:].sum(1) == 20).all() and (begin[:, 2] == begin[:, 0] + length[:, 0]).all()
    assert (begin[:, 1] + length[:, 1] == begin[:, 0]).all() and len(np.unique(begin[begin[:, 0] == 19, 1])) == 6
    begin, length = Contrastive(removed=0.0).stretches(outline(rows))
    inside = (begin[:, 1] <= begin[:, 0]) & (begin[:, 0] + length[:, 0] <= begin[:, 1] + length[:, 1])
    assert inside.all() and (length[:, 2] == 0).all() and (length[:, 1] == 20).all()


def test_neighbours_meet_at_the_middle_and_end_between_sentences() -> None:
    rows = texts([30] * 3000)
    place = np.arange(30)
    rows = replace(rows, sentence=np.tile(np.isin(place, [0, 4, 9, 17, 20, 26]), 3000))
    begin, length = Contrastive(pairs="neighbours").stretches(outline(rows))
    assert (begin[:, 1] == 17).all() and (begin[:, 0] + length[:, 0] == 17).all() and (length[:, 2] == 0).all()
    for found, wanted in ((begin[:, 0], [0, 4]), (begin[:, 1] + length[:, 1], [26, 30])):
        value, counts = np.unique(found, return_counts=True)
        assert value.tolist() == wanted and np.abs(counts / 3000 - 0.5).max() < 0.04


@pytest.mark.parametrize("name", ["cloze", "neighbours"])
def test_lengths_do_not_find_the_pairs_of_a_batch(name: str) -> None:
    """Of 32 full texts, the passage whose length is likeliest beside a query's is its own as often as by chance."""
    rng = np.random.default_rng(0)
    size = rng.integers(3, 16, (6400, 12))
    rows = texts(np.minimum(size.sum(1), 100).tolist())
    flags = np.concatenate([np.isin(np.arange(n), np.cumsum(s) - s) for n, s in zip(rows.lengths, size, strict=True)])
    _, length = PAIRS[name].stretches(outline(replace(rows, sentence=flags)))  # type: ignore[attr-defined]
    q, p = length[:, 0], length[:, 1:].sum(1)
    full = np.flatnonzero(rows.lengths == 100)[:1600].reshape(50, 32)
    assert len(full) == 50
    table = np.zeros((101, 101))
    rest = np.setdiff1d(np.flatnonzero(rows.lengths >= 95), full)
    np.add.at(table, (q[rest] // 4, p[rest] // 4), 1.0)
    likely = table / np.maximum(table.sum(0), 1)
    score = likely[q[full][:, :, None] // 4, p[full][:, None, :] // 4]
    best = score == score.max(2, keepdims=True)
    right = (best[:, np.arange(32), np.arange(32)] / best.sum(2)).mean()
    assert right < 2 / 32, right


@pytest.mark.parametrize("name", ["cloze", "neighbours", "cloze-paper"])
def test_texts_are_whole_sentences_and_the_paper_reads_cls(name: str) -> None:
    objective = PAIRS[name]
    assert objective.cut == "sentences"
    assert {h.pool for h in objective.heads()} == {"at" if name == "cloze-paper" else "mean"}


def test_removed_at_the_published_rate() -> None:
    rows = dressed(texts([40] * 5000))
    begin, length = Contrastive.inverse_cloze().stretches(outline(rows))
    kept = (begin[:, 1] <= begin[:, 0]) & (begin[:, 0] < begin[:, 1] + length[:, 1])
    assert abs(kept.mean() - 0.1) < 4 * np.sqrt(0.09 / 5000)


@every
def test_the_two_sides_never_see_each_other(name: str) -> None:
    for one in each(PAIRS[name](dressed(texts([12, 20, 9])), VOCABULARY)):
        block = np.array(one.stream["block"])
        assert (reachable(one.stream) == (block[:, None] == block)).all()


def test_without_the_sentence_no_token_of_the_query_is_in_its_passage() -> None:
    rows = dressed(texts([25, 18]))
    objective = Contrastive(removed=1.0)
    before, moved = each(objective(rows, VOCABULARY)), 0
    for at in range(len(rows.tokens)):
        for a, b in zip(before, each(objective(changed(rows, at), VOCABULARY)), strict=True):
            sides_differ = [x != y for x, y in zip(sides(a), sides(b), strict=True)]
            assert sum(sides_differ) <= 1
            moved += sum(sides_differ)
    assert moved == sum(len(x) for one in before for x in sides(one))


# ---------------------------------------------------------------- the program


CONFIG = ModelConfig(
    vocab_size=110, hidden_size=48, num_layers=2, num_heads=4, max_position=64, visibility="bidirectional"
)


def batch_of(objective: Contrastive, rows: Rows, shape: Shape | None = None, name: str = "contrastive") -> Batch:
    place = None if shape is None else pack(objective.sizes(outline(rows)), shape)
    return collate({name: objective(rows, VOCABULARY)}, {name: objective.heads()}, place, shape=shape)


def terms(objective: Contrastive, batch: Batch, model: Any) -> dict[str, Any]:
    found = program_of(objective)({"model": model}, batch.map(torch.from_numpy), None)
    return {name: term for (_, name), term in found.items()}


def test_in_batch_losses_are_those_of_the_formula() -> None:
    torch.manual_seed(0)
    q, p = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    real = torch.tensor([True, True, False, True, False])
    for objective in (Contrastive(), Contrastive.inverse_cloze()):
        a, b = q[real], p[real]
        if objective.similarity == "cosine":
            a, b = a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True)
        s = (a @ b.t() / objective.temperature).exp()
        want = [-(s.diag() / s.sum(d)).log().sum() for d in (1, 0)]
        torch.testing.assert_close(in_batch(q, p, real, objective), tuple(want))
    nothing = in_batch(q, p, torch.zeros(5, dtype=torch.bool), Contrastive())
    assert [float(x) for x in nothing] == [0.0, 0.0]


def test_the_softmax_over_pairs_is_not_in_bf16() -> None:
    torch.manual_seed(0)
    q, p, real = torch.randn(16, 32), torch.randn(16, 32), torch.ones(16, dtype=torch.bool)
    plain = in_batch(q, p, real, Contrastive())
    with torch.autocast("cpu", torch.bfloat16):
        cast = in_batch(q, p, real, Contrastive())
    assert [x.dtype for x in cast] == [torch.float32] * 2 and [*map(float, cast)] == [*map(float, plain)]


@every
def test_terms_have_their_norms_and_packing_changes_nothing(name: str) -> None:
    objective = PAIRS[name]
    rows = dressed(texts([12, 9, 1, 20, 7, 0, 15]))
    model = Transformer(CONFIG, objective.heads(), seed=0).double()
    apart, packed = batch_of(objective, rows), batch_of(objective, rows, Shape(64))
    assert packed.stream.tokens.shape[0] < len(rows.lengths)
    one, two = terms(objective, apart, model), terms(objective, packed, model)
    assert one.keys() == two.keys() == {"query", "passage"}
    for k in one:
        assert one[k].norm == two[k].norm == 5 == apart.norms()["contrastive", k]
        torch.testing.assert_close(one[k].sum, two[k].sum, rtol=1e-5, atol=1e-6)
    share = [one[k].coefficient for k in ("query", "passage")]
    assert share == ([0.5, 0.5] if objective.directions == "both" else [1.0, 0.0])
    (one["query"].sum * share[0] + one["passage"].sum * share[1]).backward()
    grads = [p.grad for p in model.parameters()]
    assert all(g is not None and torch.isfinite(g).all() for g in grads)
    assert {n for n, _ in model.named_parameters() if n.startswith("heads.")} == (
        {"heads.pair.weight", "heads.pair.bias"}
        if objective.shared
        else {f"heads.{k}.{w}" for k in ("query", "passage") for w in ("weight", "bias")}
    )


def test_o04_a_batch_without_pairs_is_a_finite_zero() -> None:
    objective = Contrastive()
    model = Transformer(CONFIG, objective.heads(), seed=0)
    found = terms(objective, batch_of(objective, dressed(texts([1, 1]))), model)
    assert [(t.sum.item(), t.norm) for t in found.values()] == [(0.0, 0.0)] * 2
    sum(t.sum for t in found.values()).backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


def test_other_heads_of_the_batch_are_as_usual() -> None:
    objective, masked = Contrastive(), Masked()
    rows = dressed(texts([12, 9, 20]))
    heads = {"contrastive": objective.heads(), "masked": masked.heads()}
    parts = {"contrastive": objective(rows, VOCABULARY), "masked": masked(rows, VOCABULARY)}
    model = Transformer(CONFIG, (*objective.heads(), *masked.heads()), seed=0)
    batch = collate(parts, heads).map(torch.from_numpy)
    found = program_of(objective)({"model": model}, batch, None)
    usual = forward_heads({"model": model}, batch)
    assert set(found) == set(usual)
    torch.testing.assert_close(found["masked", "lm"].sum, usual["masked", "lm"].sum)


def test_programs_are_found_by_name() -> None:
    assert program_of(Causal()) is forward_heads

    class Odd(Causal):
        program = "strange"

    with pytest.raises(UserError, match=r"asks for program 'strange' \(known: heads, contrastive"):
        program_of(Odd())


@pytest.mark.parametrize("name", ["cloze", "neighbours", "cloze-paper"])
def test_overfits_64_pairs_to_half_of_ln_64(name: str) -> None:
    rng = np.random.default_rng(0)
    objective = PAIRS[name]
    rows = dressed(Rows.of([rng.integers(5, 45, n) for n in rng.integers(8, 15, 64)]))
    batch = batch_of(objective, rows, Shape(32)).map(torch.from_numpy)
    model, losses = Transformer(CONFIG, objective.heads(), seed=0), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    floor = np.log(64)
    for _ in range(300):
        found = program_of(objective)({"model": model}, batch, None)
        loss = sum((t.coefficient * t.sum / t.norm for t in found.values()), torch.zeros(()))
        losses.append(loss.item())
        if losses[-1] < floor / 2:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < floor / 2, losses[::20]


@pytest.mark.parametrize("n", [2, 3, 9, 40])
def test_a_text_of_one_sentence_is_cut_between_tokens(n: int) -> None:
    """As docs/objectives.md says: such a text has no sentence start inside, and is a pair all the same."""
    rows = dressed(texts([n] * 2000))
    rows = replace(rows, sentence=np.tile(np.arange(n) == 0, 2000))
    begin, length = Contrastive(pairs="neighbours").stretches(outline(rows))
    assert (begin[:, 1] == n // 2).all() and (length == [n // 2, n - n // 2, 0]).all()
    begin, length = Contrastive().stretches(outline(rows))
    most = max(n // 3, 1)
    assert (length[:, 0] == most).all() and (length[:, 1:].sum(1) == n - most).all()
    assert np.unique(begin[:, 0]).tolist() == list(range(n - most + 1))
