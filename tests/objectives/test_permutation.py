"""Permutation language modelling: what is asked, in which order, and that one sequence equals two streams."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.explicit import Explicit, Text
from model.helpers import VOCABULARY as WORDS
from model.helpers import close, logits_of, model_of
from model.test_parity_relative import saved
from unmask import batch as record
from unmask.batch import INFINITY, QUERY, Batch, Examples, Rows, Stream, places
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.errors import UserError
from unmask.model.families import FAMILIES
from unmask.model.interop import load_hf
from unmask.model.transformer import Transformer
from unmask.objectives.base import Shape, outline
from unmask.objectives.chunks import choose_groups
from unmask.objectives.permutation import HAVE_QUERIES, Permutation, ordered
from unmask.objectives.show import toy

from .cases import texts, within

XLNET: dict[str, Any] = {"positions": "xlnet", "norm_position": "post", "final_norm": False, "embedding_norm": True}
POSITIONS: dict[str, dict[str, Any]] = {
    "xlnet": XLNET,
    "t5": {"positions": "t5", "attention_scale": 1.0},
    "rotary": {"positions": "rotary"},
    "learned": {"positions": "learned"},
}


def network(name: str) -> Transformer:
    return model_of(query_vector=True, visibility="bidirectional", **POSITIONS[name])


def words_of(lengths: list[int], seed: int = 0, share: float = 0.6) -> Rows:
    rng = np.random.default_rng(seed)
    rows = Rows.of([rng.integers(5, WORDS, n) for n in lengths], range(seed, seed + len(lengths)))
    word = rng.random(len(rows.tokens)) < share
    word[rows.start[:-1][rows.lengths > 0]] = True
    return replace(rows, word=word)


def torch_stream(examples: Examples, **more: Any) -> Stream:
    """One example as a row of torch tensors."""
    assert len(examples.stream.start) == 2
    return replace(examples.stream.map(lambda a: torch.from_numpy(a)[None]), start=None, **more)


# ---------------------------------------------------------------- which tokens


@pytest.mark.parametrize("objective", [Permutation(), Permutation.xlnet(), Permutation(max_span=1)], ids=str)
@pytest.mark.parametrize("n", [100, 47])
def test_one_in_six_whatever_the_place(objective: Permutation, n: int) -> None:
    rows = words_of([n] * 1500)
    asked = objective.asked(rows).reshape(-1, n)
    assert (asked.sum(1) == round(n / 6)).all()
    mean = asked.sum() / (asked & ~np.pad(asked, ((0, 0), (1, 0)))[:, :-1]).sum()  # tokens of a run hang together
    for part in np.array_split(asked, 10, axis=1):
        assert within(int(part.sum() / mean), int(part.size / mean), round(n / 6) / n)
    for edge in (asked[:, 0], asked[:, -1]):
        assert within(int(edge.sum()), len(edge), round(n / 6) / n)


@pytest.mark.parametrize("objective", [Permutation(), Permutation.xlnet()], ids=str)
@pytest.mark.parametrize("n", [6, 20, 100])
def test_a_words_first_token_is_a_target_as_often_as_its_others(objective: Permutation, n: int) -> None:
    """Runs cut to their first tokens were so .178 of the time, and others .104, at n = 20."""
    rows, count = words_of([n] * 6000), round(n / 6)
    asked, word = objective.asked(rows), rows.word
    assert word is not None
    size = np.bincount(np.cumsum(word))[np.cumsum(word)]  # of the word that each token stands in
    for some in (word, ~word, size == 1, size > 2):
        each = np.bincount(rows.row, asked & some, 6000) - count / n * np.bincount(rows.row, some, 6000)  # of a text
        assert abs(each.sum()) < 3 * np.sqrt((each**2).sum())
    parts = np.array([part.sum(1) for part in np.array_split(asked.reshape(-1, n), 10, axis=1)])
    width = np.array([[len(part)] for part in np.array_split(np.arange(n), 10)])
    off = parts - count / n * width
    assert (np.abs(off.sum(1)) <= 3 * np.sqrt((off**2).sum(1))).all()


def test_runs_begin_and_end_with_words_all_but_one() -> None:
    rows = words_of([200] * 200)
    asked, word = Permutation().asked(rows), rows.word
    assert word is not None
    first = asked & ~np.append(False, asked[:-1])
    first[rows.start[:-1]] = asked[rows.start[:-1]]
    assert np.bincount(rows.row[first & ~word], minlength=200).max() == 1
    cut = asked[:-1] & ~asked[1:] & ~word[1:] & (rows.row[:-1] == rows.row[1:])
    assert np.bincount(rows.row[:-1][cut], minlength=200).max() == 1


@pytest.mark.parametrize(("law", "weights"), [("uniform", [1, 1, 1, 1, 1]), ("inverse", [60, 30, 20, 15, 12])])
def test_runs_have_one_to_five_words(law: Any, weights: list[int]) -> None:
    """With one token in 30 asked, runs seldom touch, and only the last is cut."""
    rows = words_of([3000] * 100, share=1.0)
    asked = Permutation(span_shares=law, one_in=30).asked(rows)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], asked, [False]])))
    lengths = Counter((edges[1::2] - edges[::2]).tolist())
    total, got = sum(weights), sum(lengths.values())
    wanted = {k + 1: w / total for k, w in enumerate(weights)}
    mean = sum(k * w for k, w in wanted.items())
    assert sum(k * v for k, v in lengths.items()) / got == pytest.approx(mean, rel=0.1)  # cuts shorten, touching adds
    assert all(lengths[k] / got > wanted[k] / 2 for k in wanted)


def test_groups_of_one_size_are_whole_but_for_the_cut_and_the_ends() -> None:
    start, key = np.array([0, 50, 90]), np.array([3, 4], np.uint64)
    found = choose_groups(start, key, np.array([12, 9]), (0.0, 0.0, 1.0))
    assert found[:50].sum() == 12 and found[50:].sum() == 9
    eligible = np.arange(90) % 4 > 0
    found = choose_groups(start, key, np.array([12, 9]), (0.0, 0.0, 1.0), eligible=eligible)
    assert found[:50].sum() == 12 and found[50:].sum() == 9 and not found[~eligible].any()
    assert not choose_groups(start, key, np.array([0, 0]), (1.0,)).any()
    whole = choose_groups(start, key, np.array([99, 40]), (0.5, 0.5), eligible=eligible)
    assert (whole == eligible).all()


def test_every_order_of_three_targets_is_as_likely() -> None:
    rows = texts([18] * 6000)
    s = Permutation(max_span=1)(rows, toy()).stream
    content = s.tokens != QUERY
    rank = s.reveal[content].reshape(6000, -1)
    assert (np.sort(rank, 1)[:, -3:] == [1, 2, 3]).all()
    orders = Counter(tuple(r[r > 0].tolist()) for r in rank)
    assert len(orders) == 6 and all(within(c, 6000, 1 / 6) for c in orders.values())


def test_an_ordered_context_comes_first_in_an_order_of_its_own() -> None:
    s = Permutation(max_span=1, one_in=4, context="ordered")(texts([8] * 2000, ends=True), toy()).stream
    rank = s.reveal[s.tokens != QUERY].reshape(2000, 10)
    assert (rank[:, [0, -1]] == 0).all() and (np.sort(rank[:, 1:-1], 1) == np.arange(1, 9)).all()
    assert (s.horizon[s.tokens == QUERY].reshape(2000, 2).max(1) == 7).all()
    assert len({tuple(r) for r in rank.tolist()}) > 1800


# ---------------------------------------------------------------- O21


@pytest.mark.parametrize("length", [1, 2, 7, 8, 31])
@pytest.mark.parametrize("name", ["xlnet", "rotary"])
def test_o21_any_length_never_a_special_and_no_logit_knows_its_target(name: str, length: int) -> None:
    """transformers#6812, #7341, #14367: padding and control tokens became targets, odd lengths were refused."""
    objective, rows = Permutation(one_in=3), words_of([length, 5])
    model, shape = network(name), Shape(2 * length + 24)
    e = objective(rows, toy())
    place = pack(objective.sizes(outline(rows)), shape)

    def logits(examples: Examples) -> tuple[torch.Tensor, Any]:
        batch = collate({"x": examples}, {"x": objective.heads()}, place, shape=shape)
        t = batch.targets["x", "lm"]
        moved = batch.map(torch.from_numpy)
        with torch.no_grad():
            states = model(moved)["stream"].flatten(0, 1)[torch.from_numpy(t.index[t.weight > 0])]
        return logits_of(model, states), batch

    before, batch = logits(e)
    t, tokens = batch.targets["x", "lm"], batch.stream.tokens.reshape(-1)
    real = t.index[t.weight > 0]
    assert len(real) == max(round(length / 3), 1) + 2 and (tokens[real] == QUERY).all()
    assert (batch.stream.block.reshape(-1)[real] > 0).all()
    at = np.searchsorted(e.stream.start, e.targets["lm"].index, "right") - 1
    where = e.stream.start[:-1][at] + e.stream.positions[e.targets["lm"].index]  # the content of each target
    assert (e.stream.tokens[where] == e.targets["lm"].value).all()
    last = (rows.lengths + 1)[at]
    assert (e.stream.positions[e.targets["lm"].index] > 0).all()
    assert (e.stream.positions[e.targets["lm"].index] < last).all()
    moved = 0
    for k, w in enumerate(where):
        tokens = e.stream.tokens.copy()
        tokens[w] = 5 + (tokens[w] - 4) % 40
        after, _ = logits(replace(e, stream=replace(e.stream, tokens=tokens)))
        same = (before == after).all(1)
        later = (e.stream.horizon[e.targets["lm"].index] >= e.stream.reveal[w]) & (at == at[k])
        assert same[k] and same[torch.from_numpy(~later)].all()
        moved += int((~same).sum())
        assert not same[torch.from_numpy(later)].any()
    assert length < 7 or moved > 0


def test_fixed_tokens_are_context_even_where_too_few_others_are_left() -> None:
    rows = texts([12, 6, 3], ends=True)
    for fixed in (np.arange(21) % 3 == 0, np.arange(21) > 4, np.ones(21, bool)):
        for objective in (Permutation(one_in=2), Permutation(one_in=1, max_span=1), Permutation(context="ordered")):
            e = objective(replace(rows, fixed=fixed), toy())
            assert np.diff(e.stream.start).tolist() == objective.sizes(outline(rows)).stream.tolist()
            s, text = e.stream, np.flatnonzero(e.stream.tokens != QUERY)
            inner = text[(places(np.array([0, 14, 22, 27])) > 0) & ~np.isin(np.arange(27), [13, 21, 26])]
            assert (s.reveal[inner[fixed]] == 0).all()
            row = np.searchsorted(s.start, e.targets["lm"].index, "right") - 1
            assert np.isin(s.start[row] + s.positions[e.targets["lm"].index], inner[~fixed]).all()


def test_the_refusal_names_the_family_too_where_it_has_no_query_vector() -> None:
    """One sentence, not first the setting and then a refusal of the setting."""
    asked = Permutation()
    for family, also in (("unmask", False), ("xlnet", False), ("modernbert", True), ("bert", True)):
        with pytest.raises(UserError, match=r"set model\.query_vector=true") as said:
            asked.networks(ModelConfig(family=family))
        assert ("and model.family=unmask" in str(said.value)) is also
    held = {name for name, family in FAMILIES.items() if any(row.ours == "query" for row in family.rows)}
    assert held | {"unmask"} == set(HAVE_QUERIES)


def test_a_model_without_a_query_vector_is_refused() -> None:
    with pytest.raises(UserError, match=r"set model\.query_vector=true"):
        Permutation().networks(ModelConfig())
    config = ModelConfig(query_vector=True)
    assert Permutation().networks(config) == {"model": config}


# ---------------------------------------------------------------- one sequence is two streams


def two_streams(model: Transformer, stream: Stream) -> torch.Tensor:
    """Yang et al. 2019, equations 3 and 4: the states of the query stream at every token (1, T, d).

    g ← Attention(Q = g, KV = h of z_<t), h ← Attention(Q = h, KV = h of z_≤t), the same weights.
    """
    content = stream.tokens[0] != QUERY
    text = stream.map(lambda a: a[:, content])
    stack, none = model.stack, (None,) * 4
    h = stack._place(model._embed(text), text)
    g = stack._place(model.query.expand_as(h), text)
    blind = replace(text, horizon=text.horizon - 1)
    contexts = [stack._context(x, s, *none, True, None) for x, s in ((h, text), (g, blind))]
    for depth in stack.depths:
        layer = stack.layers[depth]
        g, h = layer(g, contexts[1], depth, h), layer(h, contexts[0], depth)
    return g if stack.final_norm is None else stack.final_norm(g)


@pytest.mark.parametrize("context", ["visible", "ordered"])
@pytest.mark.parametrize("name", POSITIONS)
def test_one_sequence_equals_explicit_two_stream_attention(name: str, context: Any) -> None:
    model = network(name)
    for n in (13, 18):
        e = Permutation(one_in=3, context=context)(words_of([n], n), toy())
        stream = torch_stream(e)
        want = two_streams(model, stream)[0, e.stream.positions[e.targets["lm"].index]]
        for kernel in (None, True):
            got = model(Batch(stream, {}, {}), explicit=kernel)["stream"][0, e.targets["lm"].index]
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_one_sequence_equals_two_streams_written_out() -> None:
    """The same with none of the model's code: one query, one head at a time."""
    model = network("rotary")
    e = Permutation(one_in=3)(words_of([11]), toy())
    reference, n = Explicit(model), 13
    rank = e.stream.reveal[:n].tolist()
    text = Text.of(e.stream.tokens[:n], lambda i, j: rank[j] <= rank[i])
    blind = replace(text, sees=[[rank[j] < rank[i] for j in range(n)] for i in range(n)])
    h = reference.embed(text, "stack")
    g = reference.w["query"].expand_as(h)
    for i in range(2):
        g, h = (reference.layer(x, i, i, t, "stack", None, keys=k) for x, t, k in ((g, blind, h), (h, text, None)))
    want = reference.norm(g, "stack.final_norm")[e.stream.positions[n:]]
    got = model(Batch(torch_stream(e), {}, {}))["stream"][0, n:]
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_our_record_equals_transformers_two_streams(tmp_path: Path) -> None:
    stock = saved("xlnet", tmp_path)
    model, _ = load_hf(tmp_path)
    n = 15
    e = Permutation.xlnet().model_copy(update={"one_in": 2.5})(words_of([n - 2]), toy())
    rank, at = e.stream.reveal[:n], e.stream.positions[n:]
    asked = rank > 0
    blind = np.where(asked[:, None], rank[None] >= rank[:, None], rank[None] > rank[:, None])
    theirs = stock(
        input_ids=torch.from_numpy(e.stream.tokens[None, :n]).long(),
        perm_mask=torch.from_numpy(blind[None]).float(),
        target_mapping=torch.from_numpy(np.eye(n, dtype=np.float32)[None, at]),
    ).logits[0]
    assert len(at) == 5
    ours = logits_of(model, model(Batch(torch_stream(e), {}, {}))["stream"][0, n:])
    assert close(ours, theirs)


@pytest.mark.parametrize("context", ["visible", "ordered"])
@pytest.mark.parametrize("name", POSITIONS)
def test_the_order_is_that_of_tokens_moved_with_their_positions(name: str, context: Any) -> None:
    """In the order of their ranks, under a causal mask behind what all see; a query stands where its target would."""
    model = network(name)
    e = Permutation(one_in=3, context=context)(words_of([14], 3), toy())
    n = 16
    stream = torch_stream(e)
    states = model(Batch(stream, {}, {}))["stream"][0]
    order = np.argsort(e.stream.reveal[:n], kind="stable")
    seen = int((e.stream.reveal[:n] == 0).sum())

    def moved(tokens: np.ndarray, positions: np.ndarray, query: bool = False) -> torch.Tensor:
        s = record.prefix(tokens, np.array([0, len(tokens)]), np.array([seen]), positions=positions)
        if query:  # the last sees what stands before it, but not itself
            s = replace(s, reveal=np.append(s.reveal[:-1], INFINITY).astype(np.int32))
        s = replace(s.map(lambda a: torch.from_numpy(a)[None]), start=None, contiguous=False)
        return model(Batch(s, {}, {}))["stream"][0]

    tokens, positions = e.stream.tokens[order], e.stream.positions[order]
    torch.testing.assert_close(states[order], moved(tokens, positions), rtol=1e-10, atol=1e-10)
    for q in e.targets["lm"].index.tolist():
        k = order.tolist().index(int(e.stream.positions[q]))
        got = moved(np.append(tokens[:k], QUERY).astype(np.int32), positions[: k + 1], query=True)[-1]
        torch.testing.assert_close(states[q], got, rtol=1e-10, atol=1e-10)


def test_left_to_right_is_one_order() -> None:
    """`ordered` with ranks 1, 2, 3, …: what a plan needs that scores a text by the chain rule."""
    framed = replace(Rows.of([[2, 7, 8, 9, 3]]), fixed=np.array([True, False, False, False, True]))
    e = ordered(framed, np.array([0, 1, 2, 3, 0], np.int32), ~framed.fixed)
    assert e.stream.horizon.tolist() == [0, 1, 2, 3, 0, 0, 1, 2] and e.targets["lm"].value.tolist() == [7, 8, 9]
    assert e.stream.reveal.tolist() == [0, 1, 2, 3, 0, *[INFINITY] * 3]
