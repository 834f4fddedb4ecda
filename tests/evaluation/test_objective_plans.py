"""What a model of every objective can be asked, and that it is asked as it was trained."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from unmask.batch import Examples, Rows, Stream, visible
from unmask.cli import app
from unmask.config import ModelConfig, TokenizerConfig
from unmask.data.collate import collate
from unmask.errors import UserError
from unmask.evaluation.abilities import PSEUDO, abilities
from unmask.evaluation.base import shape_of, token_logits
from unmask.evaluation.events import label
from unmask.evaluation.generate import generations
from unmask.evaluation.plans import Query, closes, expand, laid, room, source_room
from unmask.evaluation.prompts import continuation
from unmask.lm import LM
from unmask.model.transformer import Transformer
from unmask.objectives import (
    GLM,
    OWN,
    UL2,
    Bart,
    Causal,
    CausallyMasked,
    Contrastive,
    Dials,
    DroppedTokens,
    Ernie,
    FillInTheMiddle,
    FullSentences,
    Masked,
    Mass,
    MultiToken,
    NextSentence,
    Permutation,
    PrefixLM,
    Restoration,
    SalientSpans,
    SentenceOrder,
    ShiftedMasked,
    SpanCorruption,
    Supervised,
    UniLM,
)
from unmask.objectives.base import Objective, Plan
from unmask.objectives.denoise import TextToText
from unmask.objectives.layout import Pairs, Ragged
from unmask.objectives.ul2 import SEVEN
from unmask.tokens.tokenizer import Tokenizer

from .helpers import Stub

UNI = {"mask_rate": 0.01, "mask_share": 1.0, "random_share": 0.0}
KINDS = {"bidirectional": 0, "left_to_right": 1, "right_to_left": 2, "pairs": 3}


def unilm(kind: str, **more: Any) -> UniLM:
    return UniLM(shares=tuple(float(KINDS[kind] == k) for k in range(4)), **{**UNI, **more})  # type: ignore[arg-type]


CASES: dict[str, Objective] = {
    "causal": Causal(),
    "fim": FillInTheMiddle(),
    "fim-sentinel": FillInTheMiddle(end="sentinel"),
    "fim-always": FillInTheMiddle(rate=1),
    "cm3": CausallyMasked(max_spans=4),
    "incoder": CausallyMasked(max_spans=4, end_of_span=True),
    "multi-token": MultiToken(kind="shared"),
    "masked": Masked(),
    "shifted": ShiftedMasked.mntp(),
    "hybrid": ShiftedMasked.gpt_bert(),
    "shifted-causal": ShiftedMasked(causal_share=1),
    "ernie": Ernie(),
    "salient": SalientSpans(),
    "prefix-lm": PrefixLM(),
    "prefix-lm-encdec": PrefixLM(layout="encdec"),
    "spans": SpanCorruption(),
    "spans-causal": SpanCorruption(layout="causal", final_sentinel=False),
    "mass": Mass(),
    "mass-released": Mass(opening="token"),
    "mass-prefix": Mass(layout={"kind": "prefix"}),
    "dropped": DroppedTokens(),
    "dropped-prefix": DroppedTokens(layout="prefix"),
    "restoration": Restoration.bert_style(),
    "deshuffling": Restoration.deshuffling(),
    "bart": Bart(),
    "bart-masks": Bart.token_masking(),
    "bart-deletion": Bart.token_deletion(),
    "bart-prefix": Bart(layout="prefix"),
    "ul2": UL2(),
    "ul2-prefix": UL2(layout="prefix"),
    "ul2-none": UL2.without_modes(),
    "pairs": Supervised(max_target=40),
    "pairs-prefix": Supervised(layout="prefix", max_target=20),
    "nsp": NextSentence(),
    "sop": SentenceOrder(),
    "full-sentences": FullSentences(),
    "contrastive": Contrastive(),
    "nxt_uni": Dials.nxt_uni(),
    "nxt_pre": Dials.nxt_pre(),
    "msk_uni": Dials.msk_uni(),
    "msk_bi": Dials.msk_bi(),
    "hyb_uni": Dials.hyb_uni(),
    "hyb_pre": Dials.hyb_pre(),
    "glm": GLM(),
    "permutation": Permutation(),
    "xlnet": Permutation.xlnet(),
    "permutation-ordered": Permutation(context="ordered"),
    "unilm": UniLM(),
    "unilm-next": UniLM(next_token=True),
    "unilm-l2r": unilm("left_to_right"),
    "unilm-r2l": unilm("right_to_left"),
    "unilm-pairs": unilm("pairs"),
}
TEXTS = ["the cat sat", "a", "", "the dog on the log"]
PLANS = [(n, p) for n, o in CASES.items() for p in abilities(o).plans if p != "bound"]


@cache
def words() -> Tokenizer:
    config = TokenizerConfig(type="byte", vocab_size=256 + 6 + 8 + 3, sentinels=8, extra=("[NLU]", "[S2S]", "[NLG]"))
    return Tokenizer.train(config, ["the cat sat on the mat"])


def config_of(objective: Objective, size: int, **more: Any) -> ModelConfig:
    two = isinstance(objective, TextToText) and objective.layout.kind == "encdec"
    values = {
        "vocab_size": size,
        "hidden_size": 32,
        "num_layers": 2,
        "num_source_layers": 2 if two else 0,
        "num_heads": 4,
        "max_position": 64,
        "visibility": objective.visibility,
        "query_vector": isinstance(objective, Permutation),
        "positions2": 64 if isinstance(objective, GLM) else 0,
        "token_types": 6 if isinstance(objective, UniLM) else 0,
    }
    return ModelConfig(**{**values, **more})


def stub_of(objective: Objective) -> tuple[LM, np.ndarray]:
    size = words().vocabulary.size
    logits = torch.randn(size, generator=torch.Generator().manual_seed(1))
    network: Any = Stub(logits, config_of(objective, size))
    return LM(network, 48, words(), objective), logits.double().log_softmax(-1).numpy()


@cache
def model_of(name: str) -> LM:
    objective = CASES[name]
    network = Transformer(config_of(objective, words().vocabulary.size), objective.heads())
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.15 * torch.randn(p.shape, generator=generator))
    return LM(network.eval(), 48, words(), objective)


def refusal(ask: Any) -> str:
    with pytest.raises(UserError) as caught:
        ask()
    said = str(caught.value)
    assert "\n" not in said and ". " not in said
    return said


def test_every_objective_has_a_case() -> None:
    """But those with tests of their own: masked diffusion, two networks, mixtures."""
    known = {o.model_fields["type"].default for o in OWN} - {o.type for o in CASES.values()}
    assert known <= {"diffusion", "replaced", "mixture"}


# ---------------------------------------------------------------- scores


@pytest.mark.parametrize("name", CASES)
def test_a_score_is_the_exact_sum_or_refused(name: str) -> None:
    lm, log_p = stub_of(CASES[name])
    plans = [p for n, p in PLANS if n == name]
    assert lm.can("score") == bool(plans)
    if not plans:
        assert f"a model of {CASES[name].type} " in refusal(lambda: lm.score("the cat"))
    for plan in plans:
        long = ["ab" * 60]
        pairs = isinstance(CASES[name], Supervised)  # whose texts have no probability without a source
        for context in ("so ",) if pairs else ("", "so "):
            for text, s in zip(TEXTS + long, lm.score(TEXTS + long, context, plan), strict=True):
                assert s.logprob == pytest.approx(log_p[words().encode(text)].sum(), rel=1e-6), (plan, text)
                assert s.tokens == len(words().encode(text)) and s.plan == plan
        if pairs:
            assert "a source" in refusal(lambda: lm.score("the cat"))
            continue
        part = lm.score("the cat sat", plan=plan, only=[(4, 7)])[0]
        assert part.logprob == pytest.approx(log_p[words().encode("cat")].sum(), rel=1e-6), plan
    others: tuple[Plan, ...] = ("left_to_right", "pseudo", "infill", "decoder")
    for other in set(others) - set(plans):
        refusal(lambda other=other: lm.score("the cat", plan=other))


@pytest.mark.parametrize(("name", "plan"), [c for c in PLANS if c[1] in ("left_to_right", "decoder")])
def test_ends_are_scored_where_training_asked_for_them(name: str, plan: Plan) -> None:
    lm, log_p = stub_of(CASES[name])
    ids = words().encode("the cat")
    v = words().vocabulary
    if isinstance(CASES[name], Permutation) or (isinstance(CASES[name], UniLM) and name != "unilm-next"):
        assert "no probability to the end" in refusal(lambda: lm.score("the cat", plan=plan, end=True))
        return
    final = getattr(CASES[name], "final_sentinel", False) and plan == "decoder"
    last = v.need("sep") if name == "unilm-next" else int(v.sentinels[1]) if final else v.need("eos")
    for text, tokens in (("the cat", ids), ("", ids[:0])):
        s = lm.score(text, "so" if isinstance(CASES[name], Supervised) else None, plan, end=True)[0]
        assert s.logprob == pytest.approx(log_p[tokens].sum() + log_p[last], rel=1e-6)
        assert words().token(last) in s.event


EVENTS = {
    ("shifted", "pseudo"): "all other tokens, between [CLS] and [SEP]",
    ("hybrid", "left_to_right"): "log p(text | [BOS])",
    ("permutation", "left_to_right"): "log p(text | its length), between [CLS] and [SEP]: every token from those",
    ("xlnet", "pseudo"): "all other tokens, before [SEP] [CLS]",
    ("msk_uni", "pseudo"): "all other tokens, after [BOS]",
    ("nxt_pre", "left_to_right"): "log p(text | visible prefix [BOS])",
    ("glm", "infill"): "all other tokens, [MASK] in its place",
    ("glm", "decoder"): "log p(text | [CLS] [MASK] [SEP], [BOS])",
    ("ul2", "infill"): "<extra_id_0> in its place, after [NLU]",
    ("ul2", "decoder"): "log p(text | source [S2S] <extra_id_0> [EOS], [BOS] <extra_id_0>)",
    ("dropped", "infill"): "nothing in its place",
    ("bart", "infill"): "[MASK] in its place of the source, what precedes it written already",
    ("mass", "infill"): "[MASK] in its place",
    ("pairs", "left_to_right"): "log p(text | source context [EOS], [BOS])",
    ("unilm-next", "left_to_right"): "log p(text | [CLS])",
    ("unilm", "left_to_right"): "log p(text | [CLS]), each token as [MASK] behind those before it",
    ("nsp", "pseudo"): "between [CLS] and [SEP]",
    ("fim", "left_to_right"): "log p(text | [BOS])",
}


@pytest.mark.parametrize(("name", "plan"), EVENTS)
def test_the_event_says_what_was_given(name: str, plan: Plan) -> None:
    lm, _ = stub_of(CASES[name])
    source = "so" if isinstance(CASES[name], Supervised) else None
    assert EVENTS[name, plan] in lm.score("the cat", source, plan=plan)[0].event


def test_the_event_of_a_permuted_text_names_its_context_beside_its_length() -> None:
    lm, _ = stub_of(CASES["permutation"])
    event = lm.score(" sat", context="the cat", plan="left_to_right")[0].event
    assert event.startswith("log p(text | the context and its length), between [CLS] and [SEP]: every token from those")


@pytest.mark.parametrize(
    ("name", "plan", "said"),
    [
        ("permutation", "left_to_right", "bits per byte given each piece's length (which causal models must predict"),
        ("unilm", "left_to_right", "bits per byte without the ends of texts (which causal models must predict"),
        ("unilm-next", "left_to_right", "bits per byte"),
        ("fim", "left_to_right", "bits per byte"),
        ("glm", "decoder", "bits per byte"),
        ("glm", "infill", "pseudo bits per byte"),
        ("nsp", "bound", "bits per byte (an upper bound)"),
    ],
)
def test_bits_that_are_no_likelihood_of_the_whole_text_say_so(name: str, plan: Plan, said: str) -> None:
    lm, _ = stub_of(CASES[name])
    found = label(lm, plan)
    assert found.startswith(said) and (found == said or "must predict" in said)


# ---------------------------------------------------------------- records


def seen(examples: Examples, at: int) -> set[int]:
    """The tokens that the position `at` of the flat stream reads, and those of its source."""
    s = examples.stream
    assert s.start is not None
    row = int(np.searchsorted(s.start, at, "right")) - 1
    part = slice(s.start[row], s.start[row + 1])
    who = visible(s.block[part], s.horizon[part], s.block[part], s.reveal[part])[at - s.start[row]]
    found = set(s.tokens[part][who].tolist()) | {int(s.tokens[at])}
    if examples.source is not None:
        assert examples.source.start is not None
        found |= set(examples.source.tokens[examples.source.start[row] : examples.source.start[row + 1]].tolist())
    return found


@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_no_answer_is_seen_and_its_context_is(name: str, plan: Plan) -> None:
    objective, v = CASES[name], words().vocabulary
    text = v.ordinary[:9]  # all different
    rows = Rows.of([text, text[:1]], ends=np.zeros(2, bool), word=np.arange(10) % 3 == 0)
    query = Query.of(rows)
    slots = []
    for part in expand(objective, query, v, 64, plan):
        targets = part.examples.targets["lm"]
        assert np.all(part.examples.stream.horizon <= part.examples.stream.reveal)
        assert targets.index is not None and len(targets.index) == len(part.slot)
        for at, value, slot in zip(targets.index, targets.value, part.slot, strict=True):
            assert value == rows.tokens[slot]
            found, place = seen(part.examples, int(at)), int(rows.place[slot])
            mine = text if slot < 9 else text[:1]
            assert value not in found
            assert set(mine[:place].tolist()) <= found
            behind = set(mine[place + 1 :].tolist())
            if plan in ("left_to_right", "decoder"):
                assert not behind & found
            elif plan == "pseudo_words":
                hidden = {mine[i] for i in range(place + 1, len(mine)) if i // 3 == place // 3}
                assert behind - hidden <= found and not hidden & found
            else:
                assert behind <= found
            slots.append(int(slot))
    assert sorted(slots) == list(range(10))


@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_what_there_is_room_for_fits_into_the_trained_length(name: str, plan: Plan) -> None:
    objective, v = CASES[name], words().vocabulary
    shape = stub_of(objective)[0]
    trained = objective.shape(shape.context)
    most = room(objective, trained, plan)
    given, context = source_room(trained, plan, objective) or 0, 0
    if given and plan in ("left_to_right", "decoder"):
        context = given
    ids = np.resize(v.ordinary, context + most)
    rows = Rows.of([ids], ends=np.array([closes(objective, plan)]), word=np.ones(len(ids), bool))
    longest = np.zeros(2, np.int64)
    for part in expand(objective, Query.of(rows, np.array([context])), v, 1 << 12, plan):
        source = part.sizes.source
        longest = np.maximum(longest, [part.sizes.stream.max(), 0 if source is None else source.max()])
    assert longest[0] <= trained.stream and longest[1] <= trained.source


ONE = {"mask_share": 1.0, "random_share": 0.0}
TRAINED: dict[str, tuple[Objective, Plan]] = {
    "masked": (Masked(mask_rate=0.01, **ONE), "pseudo"),  # type: ignore[arg-type]
    "shifted": (ShiftedMasked(mask_rate=0.01, **ONE), "pseudo"),  # type: ignore[arg-type]
    "permutation": (Permutation(one_in=100), "pseudo"),
    "xlnet": (Permutation(one_in=100, cls="last"), "pseudo"),
    "msk_uni": (Dials(mask_rate=0.01, selection="exact", predict="masked"), "pseudo"),
    "unilm": (unilm("bidirectional"), "pseudo"),
    "glm": (GLM(noise_density=0.01), "infill"),
    "spans": (SpanCorruption(noise_density=0.01), "infill"),
    "ul2": (UL2(denoisers=({"mode": "R", "mean_span": 3, "noise_density": 0.01},)), "infill"),
    "dropped": (DroppedTokens(noise_density=0.01), "infill"),
    "mass": (Mass(fragment_tokens=1, **ONE), "infill"),  # type: ignore[arg-type]
    "mass-released": (Mass(fragment_tokens=1, opening="token", **ONE), "infill"),  # type: ignore[arg-type]
    "mass-prefix": (Mass(fragment_tokens=1, layout={"kind": "prefix"}, **ONE), "infill"),  # type: ignore[arg-type]
}


def index_of(examples: Examples) -> np.ndarray:
    index = examples.targets["lm"].index
    assert index is not None
    return np.asarray(index)


def same(ours: Stream, trained: Stream, upto: int | None = None) -> None:
    for field in ("tokens", "positions", "reveal", "horizon", "token_type", "positions2"):
        a, b = getattr(ours, field), getattr(trained, field)
        zero = np.zeros_like(trained.tokens)
        a, b = zero[: len(ours.tokens)] if a is None else a, zero if b is None else b
        assert a.tolist() == b[: len(a)].tolist() if upto is None else a[:upto].tolist() == b[:upto].tolist(), field


@pytest.mark.parametrize("name", TRAINED)
def test_a_token_is_asked_as_training_asked_for_it(name: str) -> None:
    """The record of a score is the record of training whose only noise is that token."""
    objective, plan = TRAINED[name]
    v = words().vocabulary
    text = v.ordinary[:9]
    places = set()
    for key in range(12):
        rows = Rows.of([text], [key], ends=np.zeros(1, bool), word=np.ones(9, bool))
        e = objective(rows, v)
        values = [t for t in e.targets["lm"].value.tolist() if t in text]
        assert len(values) == 1
        place = text.tolist().index(values[0])
        places.add(place)
        query = Query(rows, np.zeros(1, np.int64), np.arange(9) == place)
        (part,) = expand(objective, query, v, 1 << 12, plan)
        ours = part.examples
        same(ours.stream, e.stream)
        assert (ours.source is None) == (e.source is None)
        if ours.source is not None and e.source is not None:
            same(ours.source, e.source)
        asked = e.targets["lm"].value == values[0]
        assert index_of(ours).tolist() == index_of(e)[asked].tolist()
    assert len(places) > 3


@pytest.mark.parametrize("name", ["unilm-l2r", "unilm-next", "s", "glm"])
def test_a_text_is_asked_from_left_to_right_as_training_did(name: str) -> None:
    v = words().vocabulary
    text = v.ordinary[:9]
    rows = Rows.of([text], [5])
    if name == "unilm-l2r":  # one masked token: what stands behind it is not seen and left out
        e = unilm("left_to_right")(rows, v)
        place = int(index_of(e)[0]) - 1
        query = Query(Rows.of([text], ends=np.zeros(1, bool)), np.zeros(1, np.int64), np.arange(9) == place)
        (part,) = expand(unilm("left_to_right"), query, v, 99, "left_to_right")
        same(part.examples.stream, e.stream)
        assert len(part.examples.stream.tokens) == place + 2
    elif name == "unilm-next":
        objective: Objective = unilm("left_to_right", next_token=True)
        e = objective(rows, v)
        (part,) = expand(objective, Query.of(rows), v, 99, "left_to_right")
        same(part.examples.stream, e.stream)
        assert index_of(part.examples).tolist() == index_of(e).tolist()
        assert part.examples.targets["lm"].value.tolist() == e.targets["lm"].value.tolist()
    elif name == "s":
        objective = UL2(denoisers=(SEVEN[2],))
        e = objective(rows, v)
        assert e.source is not None
        given = len(e.source.tokens) - 3
        (part,) = expand(objective, Query.of(rows, np.array([given])), v, 99, "decoder")
        assert part.examples.source is not None
        same(part.examples.source, e.source)
        same(part.examples.stream, e.stream)
    else:
        objective = GLM(spans="document", place="end")
        e = objective(rows, v)
        given = int(np.flatnonzero(e.stream.tokens == v.mask)[0]) - 1
        (part,) = expand(objective, Query.of(rows, np.array([given])), v, 99, "decoder")
        same(part.examples.stream, e.stream)
        assert part.examples.targets["lm"].value.tolist() == e.targets["lm"].value.tolist()


# ---------------------------------------------------------------- filling and writing


@pytest.mark.parametrize("name", CASES)
def test_gaps_are_filled_or_refused(name: str) -> None:
    lm = model_of(name)
    if not lm.can("fill"):
        assert f"a model of {CASES[name].type} " in refusal(lambda: lm.fill("a [MASK] c"))
        return
    filled = lm.fill("a [MASK] c")
    assert filled.text.startswith("a ") and filled.text.endswith(" c")
    assert len(filled.masks) == 1 and all(0 <= c.probability <= 1 for c in filled.masks[0])
    if name.startswith("fim"):
        assert "2 masks are too many" in refusal(lambda: lm.fill("[MASK] a [MASK]"))
    else:
        assert len(lm.fill("[MASK] a [MASK] b").masks) == 2


PSEUDO_FILLS = [n for n, o in CASES.items() if not abilities(o).fill and set(abilities(o).plans) & set(PSEUDO)]


@pytest.mark.parametrize("name", [*PSEUDO_FILLS, "mass", "mass-prefix", "restoration", "bart", "bart-prefix"])
def test_the_probability_of_an_answer_is_its_score(name: str) -> None:
    lm = model_of(name)
    plan: Plan = "pseudo" if name in PSEUDO_FILLS else "infill"
    tried = 0
    for c in lm.fill("cat [MASK]s", top_k=60).masks[0]:
        if len(c.token) == 1 and c.token.isascii() and c.token.isprintable():
            s = lm.score(f"cat {c.token}s", plan=plan, only=[(4, 5)])[0]
            assert np.exp(s.logprob) == pytest.approx(c.probability, rel=1e-4)
            tried += 1
    assert tried > 3


@pytest.mark.parametrize("name", CASES)
def test_texts_are_continued_or_refused(name: str) -> None:
    lm = model_of(name)
    if not lm.can("generate"):
        assert f"a model of {CASES[name].type} " in refusal(lambda: lm.generate("the cat"))
        return
    together = lm.generate(["the cat", "", "a dog"], max_tokens=5)
    assert together == [lm.generate(p, max_tokens=5)[0] for p in ("the cat", "", "a dog")]
    most = generations(lm, "the cat", 99)[0]
    assert len(most.ids) <= 48 and most.stopped in ("end", "positions")


WRITES = [n for n, o in CASES.items() if not abilities(o).generate and abilities(o).unmasks != "only"]


@pytest.mark.parametrize("name", WRITES)
def test_step_by_step_is_the_record_as_a_whole(name: str) -> None:
    """What is written with a cache has the log-probability that the layout of the whole pair gives it."""
    lm, objective, v = model_of(name), CASES[name], words().vocabulary
    written = generations(lm, "the cat", 6, min_tokens=6)[0]
    start = continuation(objective, words().encode("the cat"), 0, v)
    if isinstance(objective, UniLM) and not objective.next_token:
        pieces = [(np.append(start.target, [*written.ids[:k], v.mask, 0]), 1) for k in range(6)]
    else:
        pieces = [(np.append(start.target, written.ids), 6)]
    total = 0.0
    module: Any = lm.network.heads["lm"]
    for k, (target, number) in enumerate(pieces):
        tokens = target.astype(np.int32)
        pairs = Pairs(
            Ragged(start.source.astype(np.int32), np.array([0, len(start.source)])),
            Ragged(tokens, np.array([0, len(tokens)])),
        )
        head = objective.heads()[0]
        batch = collate({"x": laid(objective, pairs, start.plan, v)}, {"x": (head,)})
        batch = batch.map(torch.from_numpy)
        with torch.no_grad():
            states = lm.network(batch)["stream"]
            n = len(tokens)
            asked = batch.targets["x", "lm"].map(lambda a, n=n: a[:n])  # type: ignore[misc]
            logits = [x for _, x, _ in token_logits(head, module, states, batch.stream, asked)]
        log_p = torch.cat(logits).log_softmax(-1)[-number:]
        value = written.ids if number == 6 else written.ids[k : k + 1]
        total += float(log_p.gather(1, torch.tensor(value)[:, None]).sum())
    assert total == pytest.approx(written.logprob, rel=1e-4)


# ---------------------------------------------------------------- modes


@pytest.mark.parametrize("name", ["ul2", "ul2-prefix"])
def test_modes_are_told_and_change_the_answer(name: str) -> None:
    lm = model_of(name)
    by = {mode: lm.score("the cat", mode=mode)[0] for mode in "RSX"}
    assert len({s.logprob for s in by.values()}) == 3
    assert [m for m, s in by.items() if "after [NLU]" in s.event] == ["R"]
    assert lm.score("the cat")[0] == by["R"] and lm.fill("a [MASK]") == lm.fill("a [MASK]", mode="R")
    whole = {mode: lm.score("the cat", plan="decoder", mode=mode)[0].logprob for mode in "RSX"}
    assert lm.score("the cat", plan="decoder")[0].logprob == whole["S"] != whole["R"]
    assert lm.generate("the", 8) == lm.generate("the", 8, mode="S")
    long = "ab" * 30  # the room is what training gave, whatever the mode
    assert "at most" in lm.score(long, mode="R")[0].event
    told = lm.told("R")
    assert shape_of(told) == shape_of(lm)


def test_the_command_line_takes_a_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.loading.load", lambda run, **given: model_of("ul2"))
    for verb, asked in (("fill", "a [MASK] c"), ("generate", "the cat"), ("score", "the cat")):
        told = [CliRunner().invoke(app, [verb, "r", asked, "--json", "--mode", m]) for m in "RSX"]
        assert all(r.exit_code == 0 for r in told), told
        plain = CliRunner().invoke(app, [verb, "r", asked, "--json"]).output
        assert len({r.output for r in told}) > 1
        assert plain == told["RS".index("S" if verb == "generate" else "R")].output


def test_modes_that_are_not_there_are_refused() -> None:
    assert "trained without mode tokens" in refusal(lambda: model_of("ul2-none").fill("a [MASK]", mode="R"))
    assert "trained without mode tokens" in refusal(lambda: model_of("masked").score("a", mode="R"))
    assert "mode 'Q' is none of this model's (R, S, X)" in refusal(lambda: model_of("ul2").generate("a", mode="Q"))


def test_contrastive_models_are_for_embeddings() -> None:
    lm = model_of("contrastive")
    assert "lm.embed" in refusal(lambda: lm.score("a"))
    assert lm.embed(["a cat", "a dog"]).shape == (2, 32)
