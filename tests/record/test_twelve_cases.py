"""Twelve worked examples that the record must be able to say, written by hand in integers.

Objectives of later issues appear here as hand-filled Examples: what is shown is that the record, collation,
the visibility rule and the terms can hold them. docs/architecture.md walks through these cases.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from unmask.batch import (
    INFINITY,
    QUERY,
    Batch,
    Examples,
    Head,
    Rows,
    Stream,
    Targets,
    causal,
    full,
    right_to_left,
    same_block,
    visible,
)
from unmask.data.collate import collate, pack
from unmask.loss import Term, forward_heads
from unmask.objectives import Causal
from unmask.objectives.base import LM, Shape, Sizes
from unmask.objectives.layout import Layout, Pairs, Ragged
from unmask.objectives.show import toy

CLS, SEP, MASK, BOS, EOS = 2, 3, 4, 2, 3


def one(*lengths: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def sees(stream: Stream, row: int = 0) -> list[str]:
    """The visibility matrix of a row as strings, one line a query: 'x' = sees."""
    v = visible(stream.block, stream.horizon, stream.block, stream.reveal)[row]
    return ["".join("x" if k else "." for k in q) for q in v]


def torched(batch: Batch) -> Batch:
    return batch.map(torch.from_numpy)


class Stub(torch.nn.Module):
    """A network whose state at each token is a row of a table, and whose heads are linear maps of it."""

    def __init__(self, table: torch.Tensor, **weights: torch.Tensor) -> None:
        super().__init__()
        self.table = table
        self.heads = {k: StubHead(w) for k, w in weights.items()}

    def forward(self, batch: Batch, generator: object = None, at: object = None) -> dict[str, torch.Tensor]:
        states = {"stream": self.table[batch.stream.tokens.long()]}
        if batch.source is not None:
            states["source"] = self.table[batch.source.tokens.long()]
        return states


class StubHead(SimpleNamespace):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(weight=weight)

    def features(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> torch.Tensor:
        flat = x.reshape(len(x), -1)
        return flat if extra is None else flat + extra[:, None]

    def project(self, f: torch.Tensor) -> torch.Tensor:
        return f @ self.weight.t()

    def projection(self) -> tuple[torch.Tensor, None, float, None]:
        return self.weight, None, 1.0, None


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


RNG = np.random.default_rng(0)
D = 3
TABLE = RNG.normal(size=(40, D))
WEIGHT = RNG.normal(size=(40, D))


def stub(**more: np.ndarray) -> Stub:
    t = {k: torch.tensor(v) for k, v in {"lm": WEIGHT, **more}.items()}
    return Stub(torch.tensor(TABLE), **t)


def test_01_span_boundary_reads_two_positions_and_an_offset() -> None:
    # SpanBERT (Joshi et al. 2020, eq. 1): y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1}); span "21 22" at 3..4.
    tokens = np.array([CLS, 11, 12, MASK, MASK, 15, SEP])
    head = Head("sbo", arity=2, extra=10)
    targets = Targets.at(np.array([[2, 5], [2, 5]]), np.array([21, 22]), extra=np.array([1, 2]))
    batch = collate({"span": Examples(full(tokens, one(7)), {"sbo": targets})}, {"span": [head]})
    t = batch.targets["span", "sbo"]
    assert t.index[:2].tolist() == [[2, 5], [2, 5]] and t.extra[:2].tolist() == [1, 2]
    assert t.weight.sum() == 2 == t.norm
    weight = RNG.normal(size=(40, 2 * D))
    term = forward_heads({"model": stub(sbo=weight)}, torched(batch))["span", "sbo"]
    x = np.concatenate([TABLE[12], TABLE[15]])
    hand = -sum(log_softmax(weight @ (x + k))[v] for k, v in ((1, 21), (2, 22)))
    assert term.sum.item() == pytest.approx(hand, abs=1e-9)


def test_02_two_packed_sentence_pairs_with_next_sentence_and_order_labels() -> None:
    # Each pair is a block; both labels are read at its [CLS], by two heads of the same stack.
    tokens = np.array([CLS, 11, SEP, 12, SEP, CLS, 13, 14, SEP, 15, SEP])
    types = np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1])
    heads = [Head("next", "classes", size=2), Head("order", "classes", size=2)]
    cls = np.array([0, 5])
    e = Examples(
        full(tokens, one(5, 6), token_type=types),
        {"next": Targets.at(cls, np.array([0, 1])), "order": Targets.at(cls, np.array([1, 0]))},
    )
    batch = collate({"pair": e}, {"pair": heads}, pack(Sizes(np.array([5, 6])), Shape(12)), shape=Shape(12))
    # Best fit, longest first: the pair of 6 opens the row, the pair of 5 follows, one place is padding.
    assert batch.stream.tokens.tolist() == [[CLS, 13, 14, SEP, 15, SEP, CLS, 11, SEP, 12, SEP, 0]]
    assert batch.stream.block.tolist() == [[1] * 6 + [2] * 5 + [0]]
    assert batch.stream.positions.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0]]
    assert batch.stream.token_type.tolist() == [[0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0]]
    assert sees(batch.stream) == ["xxxxxx......"] * 6 + ["......xxxxx."] * 5 + ["...........x"]
    assert batch.targets["pair", "next"].index[:2].tolist() == [6, 0]
    assert batch.targets["pair", "next"].value[:2].tolist() == [0, 1]
    assert batch.targets["pair", "order"].value[:2].tolist() == [1, 0]


def test_03_electra_through_a_stub_generator_with_lambda_as_coefficient() -> None:
    # Clark et al. 2020: generator fills the masks, the discriminator tells replaced from original, λ = 50.
    tokens = np.array([CLS, 11, MASK, 13, MASK, SEP])
    heads = [Head("lm", network="generator"), Head("detect", "binary", network="discriminator", coefficient=50.0)]
    e = Examples(
        full(tokens, one(6)),
        {
            "lm": Targets.at(np.array([2, 4]), np.array([12, 14]), draw=np.array([0.0, 0.9])),
            "detect": Targets(None, np.zeros(6), np.array([0, 1, 1, 1, 1, 0], np.float32)),
        },
    )
    batch = torched(collate({"electra": e}, {"electra": heads}))
    sampled = torch.tensor([12, 19])  # the stub generator: once the original, once not

    def replaced(batch: Batch) -> Batch:
        """ELECTRA's step between its two forward passes: two scatters on the batch."""
        at = batch.targets["electra", "lm"]
        real = at.weight > 0
        flat = batch.stream.tokens.reshape(-1).clone()
        flat[at.index[real]] = sampled.to(flat.dtype)
        label = torch.zeros(flat.numel())
        label[at.index[real]] = (sampled != at.value[real]).float()
        old = batch.targets["electra", "detect"]
        targets = {**batch.targets, ("electra", "detect"): Targets(None, label, old.weight, old.norm)}
        stream = replace(batch.stream, tokens=flat.view_as(batch.stream.tokens))
        return replace(batch, stream=stream, targets=targets)

    def program(networks: dict[str, Stub], batch: Batch) -> dict[tuple[str, str], Term]:
        only = lambda b, k: Batch(b.stream, {k: b.targets[k]}, {k: b.heads[k]})
        generator = forward_heads(networks, only(batch, ("electra", "lm")))
        return {**generator, **forward_heads(networks, only(replaced(batch), ("electra", "detect")))}

    after = replaced(batch)
    assert after.stream.tokens.tolist() == [[CLS, 11, 12, 13, 19, SEP]]
    assert after.targets["electra", "detect"].value.tolist() == [0, 0, 0, 0, 1, 0]  # a sampled original is "original"
    detect = RNG.normal(size=(1, D))
    terms = program({"generator": stub(), "discriminator": stub(detect=detect)}, batch)
    lm, rtd = terms["electra", "lm"], terms["electra", "detect"]
    hand_lm = -sum(log_softmax(WEIGHT @ TABLE[MASK])[v] for v in (12, 14))
    logit = (TABLE @ detect[0])[[11, 12, 13, 19]]
    hand_rtd = np.log1p(np.exp(logit)).sum() - logit[3]
    assert (lm.norm, lm.coefficient, rtd.norm, rtd.coefficient) == (2, 1, 4, 50)
    loss = sum(t.coefficient * t.sum.item() / t.norm for t in terms.values())
    assert loss == pytest.approx(hand_lm / 2 + 50 * hand_rtd / 4, rel=1e-6)
    draws = batch.targets["electra", "lm"].draw
    assert draws[:2].tolist() == [0.0, 0.9]  # the uniforms travel in the batch


def test_04_all_token_mlm_predicts_at_every_position() -> None:
    # ELECTRA's ablation (section 3.4): every real token is a target, specials have weight 0.
    tokens, text = np.array([CLS, 11, MASK, SEP]), np.array([CLS, 11, 12, SEP])
    e = Examples(full(tokens, one(4)), {"lm": Targets(None, text, np.array([0, 1, 1, 0], np.float32))})
    batch = collate({"all": e}, {"all": [LM]}, shape=Shape(6))
    t = batch.targets["all", "lm"]
    assert t.index is None and t.value.tolist() == [CLS, 11, 12, SEP, 0, 0] and t.weight.tolist() == [0, 1, 1, 0, 0, 0]
    term = forward_heads({"model": stub()}, torched(batch))["all", "lm"]
    hand = -log_softmax(WEIGHT @ TABLE[11])[11] - log_softmax(WEIGHT @ TABLE[MASK])[12]
    assert term.norm == 2 and term.sum.item() == pytest.approx(hand, abs=1e-6)


def test_05_xlnet_with_a_query_that_sees_nothing() -> None:
    # Yang et al. 2019: order 2, 0, 1 over the tokens 11 12 13: ranks 1, 2, 0. The queries of positions 2 and 1
    # are appended; the first in the order sees no content at all, and no key sees a query.
    rank = np.array([1, 2, 0])
    reveal = np.concatenate([rank, [INFINITY, INFINITY]])
    horizon = np.concatenate([rank, rank[[2, 1]] - 1])
    stream = Stream(
        tokens=np.array([11, 12, 13, QUERY, QUERY]),
        positions=np.array([0, 1, 2, 2, 1]),
        block=np.ones(5, np.int32),
        reveal=reveal,
        horizon=horizon,
        start=one(5),
        pattern="order",
    )
    e = Examples(stream, {"lm": Targets.at(np.array([3, 4]), np.array([13, 12]))})
    batch = collate({"xlnet": e}, {"xlnet": [LM]})
    assert sees(batch.stream) == ["x.x..", "xxx..", "..x..", ".....", "x.x.."]
    assert (horizon <= reveal).all() and not batch.stream.contiguous
    # A query that sees nothing outputs 0: softmax over nothing is defined, not NaN.
    v = visible(batch.stream.block, batch.stream.horizon, batch.stream.block, batch.stream.reveal)[0]
    weights = np.where(v, 1.0, 0.0)
    out = weights / np.maximum(weights.sum(1, keepdims=True), 1) @ TABLE[[11, 12, 13, 0, 0]]
    assert (out[3] == 0).all() and np.isfinite(out).all()


def test_06_a_mixture_of_glm_and_mlm_rows_in_one_batch() -> None:
    # GLM (Du et al. 2022): text 11 12 13 14 15, span 12 13 blanked: [MASK]'s position is shared by the span,
    # the second channel counts inside it. MLM rows have no second channel: it is 0 there.
    glm = Stream(
        tokens=np.array([11, MASK, 14, 15, BOS, 12, 13]),
        positions=np.array([0, 1, 2, 3, 1, 1, 1]),
        positions2=np.array([0, 0, 0, 0, 1, 2, 3]),
        block=np.ones(7, np.int32),
        reveal=np.array([0, 0, 0, 0, 1, 2, 3]),
        horizon=np.array([0, 0, 0, 0, 1, 2, 3]),
        start=one(7),
        pattern="order",
    )
    parts = {
        "glm": Examples(glm, {"lm": Targets.at(np.array([4, 5, 6]), np.array([12, 13, EOS]))}),
        "masked": Examples(
            full(np.array([CLS, 16, MASK, SEP]), one(4)), {"lm": Targets.at(np.array([2]), np.array([17]))}
        ),
    }
    batch = collate(parts, {"glm": [LM], "masked": [LM]}, shape=Shape(7), index=np.array([100, 101]))
    assert batch.stream.positions2.tolist() == [[0, 0, 0, 0, 1, 2, 3], [0] * 7]
    assert sees(batch.stream, 0) == ["xxxx..."] * 4 + ["xxxxx..", "xxxxxx.", "xxxxxxx"]
    assert sees(batch.stream, 1)[:4] == ["xxxx..."] * 4
    assert batch.targets["masked", "lm"].index[0] == 7 + 2 and batch.stream.pattern == "order"
    # Each objective has its own norm: 3 dense targets do not drown 1 sparse one.
    assert batch.norms() == {("glm", "lm"): 3, ("masked", "lm"): 1}
    assert batch.samples.objective.tolist() == [0, 1] and batch.samples.index.tolist() == [100, 101]


def test_07_a_packed_encoder_decoder() -> None:
    # seqio's EncDecFeatureConverter, packed: inputs [7 8 5 1] [8 4 9 3 1], targets [3 9 1] [4 1].
    pairs = Pairs(
        Ragged(np.array([7, 8, 5, 1, 8, 4, 9, 3, 1]), one(4, 5)),
        Ragged(np.array([3, 9, 1, 4, 1]), one(3, 2)),
    )
    e = Layout(kind="encdec")(pairs, toy())
    place = pack(Sizes(np.array([3, 2]), np.array([4, 5])), Shape(7, 10))
    batch = collate({"t5": e}, {"t5": [LM]}, place, shape=Shape(7, 10))
    assert place.row.tolist() == [0, 0] and place.rows == 1
    assert batch.source.tokens.tolist() == [[7, 8, 5, 1, 8, 4, 9, 3, 1, 0]]
    assert batch.source.block.tolist() == [[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]]
    assert batch.source.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]]
    assert batch.stream.tokens.tolist() == [[BOS, 3, 9, BOS, 4, 0, 0]]
    assert batch.stream.block.tolist() == [[1, 1, 1, 2, 2, 0, 0]]
    t = batch.targets["t5", "lm"]
    assert t.index[:5].tolist() == [0, 1, 2, 3, 4] and t.value[:5].tolist() == [3, 9, 1, 4, 1]
    assert sees(batch.stream)[:5] == ["x......", "xx.....", "xxx....", "...x...", "...xx.."]
    cross = same_block(batch.stream.block, batch.source.block)[0]
    assert cross[0].nonzero()[0].tolist() == [0, 1, 2, 3] and cross[4].nonzero()[0].tolist() == [4, 5, 6, 7, 8]


def test_08_right_to_left_cloze() -> None:
    # UniLM (Dong et al. 2019): a masked token is predicted from itself and what stands to its right.
    e = Examples(right_to_left(np.array([11, MASK, 13, 14]), one(4)), {"lm": Targets.at(np.array([1]), np.array([12]))})
    batch = collate({"r2l": e}, {"r2l": [LM]})
    assert batch.stream.reveal.tolist() == [[4, 3, 2, 1]]
    assert sees(batch.stream) == ["xxxx", ".xxx", "..xx", "...x"]


def test_09_masked_diffusion_divides_by_all_positions_and_weighs_by_one_over_p() -> None:
    # LLaDA (Nie et al. 2025, eq. 3): Σ over masked of CE / p, divided by the length, not by the masked count.
    tokens = np.array([MASK, 12, MASK, 14, 15, MASK])
    p = np.array([0.5, 0.5, 0.25])  # two texts of 4 and 2 tokens with their own mask rates
    e = Examples(
        full(tokens, one(4, 2)),
        {"lm": Targets(np.array([0, 2, 5]), np.array([11, 13, 16]), (1 / p).astype(np.float32), norm=np.array([4, 2]))},
    )
    batch = collate({"diffusion": e}, {"diffusion": [LM]})
    term = forward_heads({"model": stub()}, torched(batch))["diffusion", "lm"]
    ce = -log_softmax(WEIGHT @ TABLE[MASK])[[11, 13, 16]]
    assert term.norm == 6
    assert term.sum.item() / term.norm == pytest.approx((2 * ce[0] + 2 * ce[1] + 4 * ce[2]) / 6, abs=1e-6)


def test_10_multi_token_prediction_weights() -> None:
    # Three heads of one module look 1, 2 and 3 tokens ahead with coefficients 1, .5, .25; each keeps its norm,
    # so a coefficient cannot cancel between a weight and the sum of weights.
    tokens = np.array([BOS, 11, 12, 13])
    after = np.array([11, 12, 13, EOS])
    heads = [Head(f"ahead{k + 1}", coefficient=c, module="lm") for k, c in enumerate((1.0, 0.5, 0.25))]
    targets = {f"ahead{k + 1}": Targets.at(np.arange(4 - k), after[k:]) for k in range(3)}
    batch = collate({"mtp": Examples(causal(tokens, one(4)), targets)}, {"mtp": heads})
    assert batch.norms() == {("mtp", "ahead1"): 4, ("mtp", "ahead2"): 3, ("mtp", "ahead3"): 2}
    terms = forward_heads({"model": stub()}, torched(batch))
    assert [t.coefficient for t in terms.values()] == [1, 0.5, 0.25]
    hand = [-np.mean([log_softmax(WEIGHT @ TABLE[tokens[i]])[after[i + k]] for i in range(4 - k)]) for k in range(3)]
    loss = sum(t.coefficient * t.sum.item() / t.norm for t in terms.values())
    assert loss == pytest.approx(hand[0] + 0.5 * hand[1] + 0.25 * hand[2], abs=1e-6)


def test_11_distillation_targets_are_distributions_as_values() -> None:
    # Hinton et al. 2015: the teacher's distribution over 40 tokens at each masked position.
    teacher = RNG.dirichlet(np.ones(40), size=2).astype(np.float32)
    e = Examples(full(np.array([CLS, MASK, 12, MASK, SEP]), one(5)), {"lm": Targets.at(np.array([1, 3]), teacher)})
    batch = collate({"distill": e}, {"distill": [LM]})
    t = batch.targets["distill", "lm"]
    assert t.value.shape == (16, 40) and t.value.dtype == np.float32
    term = forward_heads({"model": stub()}, torched(batch))["distill", "lm"]
    hand = -(teacher * log_softmax(WEIGHT @ TABLE[MASK])).sum()
    assert term.norm == 2 and term.sum.item() == pytest.approx(hand, rel=1e-5)


def test_12_multiple_choice_by_group() -> None:
    # Two questions with three and two choices, each choice a text of its own: one softmax a question.
    texts = [[CLS, 11, 21], [CLS, 11, 22], [CLS, 11, 23, 24], [CLS, 12, 25], [CLS, 12, 26]]
    rows = Rows.of(texts)
    t = Targets(
        rows.start[:-1],
        np.array([0, 1, 0, 1, 0]),
        np.ones(5, np.float32),
        group=np.array([7, 7, 7, 9, 9]),
        norm=np.array([1, 0, 0, 1, 0]),
    )
    head = Head("choose", "group", pool="mean")
    batch = collate({"choice": Examples(full(rows.tokens, rows.start), {"choose": t})}, {"choice": [head]})
    w = RNG.normal(size=(1, D))
    term = forward_heads({"model": stub(choose=w)}, torched(batch))["choice", "choose"]
    score = np.array([(TABLE[x] @ w[0]).mean() for x in texts])
    hand = -log_softmax(score[:3])[1] - log_softmax(score[3:])[0]
    assert term.norm == 2 and term.sum.item() == pytest.approx(hand, abs=1e-6)


def test_the_same_record_comes_from_a_real_objective() -> None:
    e = Causal()(Rows.of([[11, 12], [13]]), toy())
    batch = collate({"causal": e}, {"causal": [LM]}, pack(Sizes(np.array([3, 2])), Shape(5)), shape=Shape(5))
    assert (
        batch.stream.tokens.tolist() == [[BOS, 11, 12, BOS, 13]]
        and not batch.stream.isolated
        and batch.stream.contiguous
    )
    assert batch.targets["causal", "lm"].value[:5].tolist() == [11, 12, EOS, 13, EOS]
