"""Mixtures that are asked as one of their parts: the question is the training example of that part without noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unmask import keyed, load
from unmask.batch import Examples, Rows
from unmask.config import TokenizerConfig
from unmask.data.collate import collate
from unmask.errors import UserError
from unmask.evaluation.abilities import abilities, modes_of, spoken, told
from unmask.evaluation.base import objective_of, shape_of
from unmask.evaluation.generate import generations, n_best, rule_of
from unmask.evaluation.harness import register
from unmask.evaluation.inputs import frame_size, framed
from unmask.evaluation.plans import Query, expand, laid, room, source_room
from unmask.evaluation.shown import cloze
from unmask.lm import LM
from unmask.model.transformer import Transformer
from unmask.objectives import (
    UL2,
    Causal,
    Dials,
    Masked,
    Mixture,
    PrefixLM,
    ShiftedMasked,
    SpanCorruption,
    UniLM,
)
from unmask.objectives.base import Objective
from unmask.objectives.dealing import picked
from unmask.objectives.layout import Pairs, Ragged
from unmask.objectives.mixture import Part
from unmask.run import evaluate
from unmask.tokens.tokenizer import Tokenizer

from .test_objective_plans import config_of

MODES = ("[CLM]", "[MLM]", "[NLU]", "[S2S]", "[NLG]")
ALL_MASK = {"mask_share": 1.0, "random_share": 0.0}
FIELDS = ("tokens", "positions", "block", "reveal", "horizon", "token_type")
WORDS = Tokenizer.train(TokenizerConfig(type="byte", vocab_size=256 + 7 + 8 + 5, sentinels=8, extra=MODES), ["a cat"])
V = WORDS.vocabulary


def mixture(**parts: Any) -> Mixture:
    return Mixture.model_validate({"parts": parts})


BOTH = mixture(clm={"type": "causal", "mode": "[CLM]"}, mlm={"type": "masked", "mode": "[MLM]", **ALL_MASK})
BARE = mixture(clm={"type": "causal"}, mlm={"type": "masked"})
TEXT_TO_TEXT = mixture(
    prefix={"type": "prefix_lm", "layout": "encdec", "mode": "[CLM]"},
    spans={"type": "span_corruption", "mode": "[MLM]"},
    many={"type": "ul2", "mode": "[CLM]"},
)


def model_of(objective: Objective, context: int = 48) -> LM:
    layers = 2 if objective.shape(context).source else 0
    network = Transformer(config_of(objective, V.size, num_source_layers=layers), objective.heads())
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.15 * torch.randn(p.shape, generator=generator))
    return LM(network.eval(), context, WORDS, objective)


def texts(lengths: list[int], index: int = 0, ends: bool = True) -> Rows:
    rng = np.random.default_rng(0)
    keys = keyed.row_keys(0, 0, np.arange(len(lengths)))
    rows = Rows.of([rng.choice(V.ordinary, n) for n in lengths], keys, index=index + np.arange(len(lengths)))
    return replace(rows, ends=np.full(len(lengths), ends))


def refusal(ask: Any) -> str:
    with pytest.raises(UserError) as caught:
        ask()
    said = str(caught.value)
    assert "\n" not in said and ". " not in said
    return said


# ---------------------------------------------------------------- questions are training examples


def each(e: Examples) -> list[dict[str, Any]]:
    """Each text's tokens, positions and who sees whom in both stacks, and what is asked for at which place."""
    found: list[dict[str, Any]] = []
    assert e.stream.start is not None
    t = e.targets["lm"]
    for r in range(len(e.stream.start) - 1):
        one = {}
        for name, stack in (("stream", e.stream), ("source", e.source)):
            if stack is not None and stack.start is not None:
                here = slice(*stack.start[r : r + 2])
                fields = {k: getattr(stack, k) for k in FIELDS if getattr(stack, k) is not None}
                one |= {f"{name}.{k}": x[here].tolist() for k, x in fields.items()}
        first, end = e.stream.start[r : r + 2]
        mine = (t.index >= first) & (t.index < end)
        found.append({**one, "asked": list(zip((t.index[mine] - first).tolist(), t.value[mine].tolist(), strict=True))})
    return found


def same(asked: Examples, trained: Examples) -> None:
    """The questions are the training examples, but for a last token that nothing is predicted from."""
    for a, b in zip(each(asked), each(trained), strict=True):
        n = len(a["stream.tokens"])
        assert a.keys() == b.keys() and 0 <= len(b["stream.tokens"]) - n <= 2
        for name, value in a.items():
            assert value == (b[name][:n] if name.startswith("stream") else b[name]), name


def part_of(objective: Objective, mode: str | None = "[MLM]") -> tuple[Part, Objective]:
    """A part that is not the first, and its objective as a question finds it by the part's name."""
    part = Part(objective=objective, mode=mode)
    other = Causal() if not objective.shape(9).source else PrefixLM(layout="encdec")
    whole = Mixture(parts={"other": Part(objective=other, mode="[CLM]"), "mine": part})
    found = told(whole, "mine")
    assert isinstance(found, Mixture)
    return part, found.first


def asked_of(objective: Objective, query: Query, plan: Any) -> list[Examples]:
    return [e.examples for e in expand(objective, query, V, 1 << 20, plan)]


@pytest.mark.parametrize("mode", [None, "[MLM]"])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(
    "objective",
    [
        Causal(),
        ShiftedMasked(causal_share=1.0),
        UniLM(shares=(0.0, 1.0, 0.0, 0.0), next_token=True),
    ],
    ids=["causal", "shifted", "unilm"],
)
def test_left_to_right_is_the_training_example(objective: Objective, ends: bool, mode: str | None) -> None:
    part, mine = part_of(objective, mode)
    rows = texts([9, 9, 9], ends=ends)
    (asked,) = asked_of(mine, Query.of(rows), "left_to_right")
    same(asked, part(rows, V))


def test_a_hybrids_causal_texts_are_told_as_those_of_a_causal_batch() -> None:
    """[CLS] must not see the mode token in one batch and not see it in another."""
    part, mine = part_of(ShiftedMasked(causal_share=0.5, **ALL_MASK))
    rows = texts([9] * 8)
    trained, seen = part(rows, V), 0
    assert isinstance(part.objective, ShiftedMasked) and trained.stream.pattern == "order"
    for r in np.flatnonzero(part.objective.is_causal(rows.index)).tolist():
        alone = picked(rows, np.array([r]))
        assert each(part(alone, V)) == [each(trained)[r]]
        (asked,) = asked_of(mine, Query.of(alone), "left_to_right")
        same(asked, part(alone, V))
        seen += 1
    assert 0 < seen < 8


@pytest.mark.parametrize("mode", [None, "[MLM]"])
@pytest.mark.parametrize(
    "objective",
    [Masked(**ALL_MASK), ShiftedMasked(causal_share=0.0, **ALL_MASK), Dials.msk_bi()],  # type: ignore[arg-type]
    ids=["masked", "shifted", "dials"],
)
def test_both_sides_is_the_training_example(objective: Objective, mode: str | None) -> None:
    part, mine = part_of(objective, mode)
    rows = texts([20, 11, 1, 30], ends=False)
    trained = part(rows, V)
    hidden = np.zeros(len(rows.tokens), bool)
    frame = np.repeat(np.arange(4) * (2 + (mode is not None)) + 1 + (mode is not None), rows.lengths)
    hidden[:] = trained.stream.tokens[frame + np.arange(len(rows.tokens))] == V.mask
    assert 3 < hidden.sum() < len(hidden)
    same(cloze(mine, rows, hidden, np.flatnonzero(hidden), V), trained)
    if mode is not None:
        assert trained.stream.tokens[:2].tolist() == [V.need("cls"), V.need(mode)]


@pytest.mark.parametrize("layout", ["encdec", "prefix", "causal"])
def test_pairs_are_the_training_example(layout: str) -> None:
    part, mine = part_of(PrefixLM(layout=layout))
    rows = texts([20, 11, 3, 30])
    rows = picked(rows, np.argsort(-rows.lengths, kind="stable"))  # as `expand` brings them
    given = rows.lengths + 1 - np.array([len(one["asked"]) for one in each(part(rows, V))])  # [EOS] is asked, too
    (asked,) = asked_of(mine, Query.of(rows, given), "left_to_right")
    same(asked, part(rows, V))


@pytest.mark.parametrize("layout", ["encdec", "prefix", "causal"])
@pytest.mark.parametrize("kind", ["spans", "ul2"])
def test_one_missing_token_is_the_training_example(kind: str, layout: str) -> None:
    """Texts of ten tokens of which the noise takes one: its source, its target, both mode tokens of a UL2 part."""
    noise: Any = {"noise_density": 0.1, "mean_span": 1}
    denoisers: Any = ({"mode": "R", **noise},)
    both = {"spans": SpanCorruption(layout=layout, **noise), "ul2": UL2(layout=layout, denoisers=denoisers)}
    objective = both[kind]
    part, mine = part_of(objective)
    rows = texts([10])
    trained = part(rows, V)
    said = trained.targets["lm"].value
    assert said[0] == V.sentinels[0] and said[2] == V.sentinels[1]
    place = int(np.flatnonzero(_shown(trained) == V.sentinels[0])[0]) - _before(trained)
    asked = np.zeros(10, bool)
    asked[place] = True
    (question,) = asked_of(mine, replace(Query.of(rows), asked=asked), "infill")
    assert question.targets["lm"].value.tolist() == [said[1]] == [rows.tokens[place]]
    # The question's target holds no more than its answer's neighbours: compare what both have.
    n = min(len(question.stream.tokens), len(trained.stream.tokens))
    assert n >= len(_shown(trained)) or trained.source is not None
    for name in FIELDS[:-1]:
        assert getattr(question.stream, name)[:n].tolist() == getattr(trained.stream, name)[:n].tolist()
        if trained.source is not None and question.source is not None:
            assert getattr(question.source, name).tolist() == getattr(trained.source, name).tolist()
    expected = [V.need(m) for m in (["[MLM]", "[NLU]"] if kind == "ul2" else ["[MLM]"])]
    first = _shown(trained)[: _before(trained)].tolist()
    assert first == ([V.need("bos")] if trained.source is None else []) + expected


def _shown(e: Examples) -> np.ndarray:
    return e.stream.tokens if e.source is None else e.source.tokens


def _before(e: Examples) -> int:
    """How many control tokens stand before the text."""
    controls = {V.need("bos"), *(V.need(m) for m in MODES)}
    return next(i for i, t in enumerate(_shown(e).tolist()) if t not in controls)


def test_the_mode_stands_behind_cls_though_the_tokenizer_has_a_bos_of_its_own() -> None:
    assert V.need("cls") != V.need("bos")
    e = Part(objective=Masked(), mode="[MLM]")(texts([5]), V)
    assert e.stream.tokens[:2].tolist() == [V.need("cls"), V.need("[MLM]")]


# ---------------------------------------------------------------- which part is asked


def test_modes_are_the_parts_by_name_or_token() -> None:
    assert modes_of(BOTH) == ("clm", "mlm") == modes_of(BARE)
    assert modes_of(TEXT_TO_TEXT) == ("prefix", "spans", "many", "many.R", "many.S", "many.X")
    for spelling in ("mlm", "[MLM]", "MLM"):
        asked = told(BOTH, spelling)
        assert isinstance(asked, Mixture) and asked.first == BOTH.parts["mlm"].asked
        assert spoken(asked.first, "pseudo") == ("[MLM]",) and list(asked.parts) == ["mlm", "clm"]
    assert told(TEXT_TO_TEXT, "CLM") == told(TEXT_TO_TEXT, "prefix")  # the first of the parts with that token
    nested = told(TEXT_TO_TEXT, "many.X")
    assert isinstance(nested, Mixture) and spoken(nested.first, "infill") == ("[CLM]", "[NLG]")
    assert told(UL2(), "S2S") == told(UL2(), "[S2S]") == told(UL2(), "S")
    named = mixture(a={"type": "causal", "mode": "[b]"}, b={"type": "masked"})
    assert told(named, "b") == named.led_by("b") and told(named, "[b]") == named.led_by("a")
    assert "mode 'mlmm' is none of this model's (clm, mlm)" in refusal(lambda: told(BOTH, "mlmm"))
    assert "is no mixture of parts: leave mode out" in refusal(lambda: told(Causal(), "x"))


def test_the_mask_of_the_export_and_the_room_are_those_of_the_whole() -> None:
    for m in (BOTH, BARE):
        lm = model_of(m)
        for name in m.parts:
            asked = lm.told(name)
            assert shape_of(asked) == shape_of(lm) and asked.objective is not None
            assert asked.objective.visibility == m.visibility == "causal"
    lm = model_of(TEXT_TO_TEXT)
    assert {shape_of(lm.told(name)) for name in modes_of(TEXT_TO_TEXT)} == {shape_of(lm)}


def test_a_part_is_asked_as_its_objective_would_be_alone() -> None:
    """Without mode tokens the name of a part says it all: plans, gaps, texts, beams."""
    lm = model_of(BARE)
    clm, mlm = (replace(lm, objective=p.objective) for p in BARE.parts.values())
    assert lm.score("the cat") == lm.score("the cat", mode="clm") == clm.score("the cat")
    assert lm.score("the cat", mode="mlm") == mlm.score("the cat")
    assert lm.score("the cat", mode="mlm")[0].plan == "pseudo"
    assert lm.score("the cat", plan="bound", mode="mlm") == mlm.score("the cat", plan="bound")
    assert lm.fill("a [MASK]", mode="mlm") == mlm.fill("a [MASK]")
    assert "fills no gaps" in refusal(lambda: lm.fill("a [MASK]"))
    assert lm.generate("the", 6) == clm.generate("the", 6)
    assert lm.generate("the", 6, beams=3, mode="clm") == clm.generate("the", 6, beams=3)
    assert lm.generate("the", length=6, mode="mlm") == mlm.generate("the", length=6)
    assert (lm.can("fill"), lm.told("mlm").can("fill"), lm.told("mlm").can("generate")) == (False, True, True)
    assert "plan pseudo does not fit a model of causal" in refusal(lambda: lm.score("a", plan="pseudo"))


def test_a_part_without_token_answers_says_so_and_the_others_can_be_asked() -> None:
    lm = model_of(mixture(pairs={"type": "contrastive"}, mlm={"type": "masked"}))
    assert "lm.embed" in refusal(lambda: lm.score("a cat")) and not lm.can("score")
    alone = replace(lm, objective=Masked())
    assert lm.score("a cat", mode="mlm") == alone.score("a cat")
    assert torch.equal(lm.embed(["a cat"]), alone.embed(["a cat"]))


# ---------------------------------------------------------------- with the mode token


def test_the_token_reaches_every_question_and_its_event() -> None:
    lm = model_of(BOTH)
    without = replace(lm, objective=BARE)
    for ask, mode in (
        (lambda m, mode: m.score("the cat", mode=mode)[0], "clm"),
        (lambda m, mode: m.score("the cat", mode=mode)[0], "mlm"),
        (lambda m, mode: m.fill("a [MASK]", mode=mode), "mlm"),
        (lambda m, mode: m.generate("the", 12, temperature=1.0, mode=mode), "clm"),
        (lambda m, mode: m.generate("the", length=12, mode=mode), "mlm"),
    ):  # fmt: skip
        assert ask(lm, mode) != ask(without, mode)
    assert lm.score("the cat") == lm.score("the cat", mode="clm")
    assert lm.score("a")[0].event == "log p(text | [BOS] [CLM])"
    assert lm.score("a", context="b")[0].event == "log p(text | [BOS] [CLM] context)"
    assert "between [CLS] [MLM] and [SEP]" in lm.score("a", mode="mlm")[0].event
    two = model_of(TEXT_TO_TEXT)
    assert "source [CLM] context, [BOS]" in two.score("a", context="b")[0].event
    assert "source empty, [BOS]" in two.score("a")[0].event  # such a source has none in training either
    assert "in its place, after [MLM]" in two.score("a", mode="spans")[0].event
    assert "after [CLM] [NLG]" in two.score("a", mode="many.X")[0].event
    assert "source [CLM] [S2S] context <extra_id_0>" in two.score("a", "b", plan="decoder", mode="many")[0].event


@pytest.mark.parametrize("mode", ["clm", "pre", "halves"])
def test_what_is_written_has_the_probability_that_scoring_gives_it(mode: str) -> None:
    """Cached steps and beams behind the mode token, against one pass over the whole text."""
    m = mixture(
        clm={"type": "causal", "mode": "[CLM]"},
        pre={"type": "prefix_lm", "layout": "prefix", "mode": "[MLM]"},
        halves={"type": "span_corruption", "layout": "causal", "mode": "[CLM]"},
    )
    lm = model_of(m).told(mode)
    plan: Any = "decoder" if mode == "halves" else "left_to_right"
    objective = objective_of(lm)
    for beams in (1, 3):
        (found,) = n_best(lm, ["the cat"], rule_of(beams=beams), 1, 6, min_tokens=6)
        ids = np.array(found[0].ids, np.int32)
        start = WORDS.encode("the cat")
        rows = Rows.of([[*start, *ids]], ends=np.zeros(1, bool))
        (asked,) = asked_of(objective, Query.of(rows, np.array([len(start)])), plan)
        assert _total(lm, asked) == pytest.approx(found[0].logprob, rel=1e-4)


def _total(lm: LM, examples: Examples) -> float:
    """Σ log p of the values of one text's targets."""
    batch = collate({"x": examples}, {"x": (lm.network.declared["lm"],)}).map(torch.from_numpy)
    n = len(examples.targets["lm"].value)
    head: Any = lm.network.heads["lm"]
    with torch.no_grad():
        states = lm.network(batch)["stream"].flatten(0, 1)
        t = batch.targets["x", "lm"]
        log_p = head.project(head.features(states[t.index[:n]][:, None])).float().log_softmax(-1)
    return float(log_p.gather(1, t.value[:n, None]).sum())


@pytest.mark.parametrize("mode", ["spans", "many", "many.X"])
def test_gaps_are_written_behind_the_mode_tokens(mode: str) -> None:
    lm = model_of(TEXT_TO_TEXT).told(mode)
    filled = lm.fill("a [MASK] b")
    objective, zero = objective_of(lm), V.sentinels[:1]
    source = np.concatenate([WORDS.encode("a "), zero, WORDS.encode(" b"), [V.need("eos")]]).astype(np.int32)
    target = np.concatenate([zero, [0]]).astype(np.int32)
    pairs = Pairs(Ragged(source, np.array([0, len(source)])), Ragged(target, np.array([0, 2])))
    examples = laid(objective, pairs, "infill", V)
    assert examples.source is not None
    controls = [V.need(m) for m in spoken(objective, "infill")]
    assert examples.source.tokens.tolist() == [*controls, *source.tolist()]
    first = filled.masks[0][0]
    assert first.probability <= np.exp(_total(lm, _only(examples, 1, _first_id(lm, first.token)))) + 1e-6


def _first_id(lm: LM, text: str) -> int:
    ids = WORDS.encode(text)
    return int(ids[0]) if len(ids) else V.need("eos")


def _only(examples: Examples, at: int, value: int) -> Examples:
    t = examples.targets["lm"]
    return replace(
        examples, targets={"lm": replace(t, index=t.index[at : at + 1], value=np.array([value]), weight=t.weight[:1])}
    )


def test_unmasking_one_token_is_filling_one_gap() -> None:
    lm = model_of(BOTH).told("mlm")
    best = int(np.argmax([c.probability for c in lm.fill("the cat[MASK]", top_k=3).masks[0]]))
    written = generations(lm, "the cat", 1)[0]
    assert best == 0 and lm.fill("the cat[MASK]").text == "the cat" + written.text
    assert np.exp(written.logprob) == pytest.approx(lm.fill("the cat[MASK]").masks[0][0].probability, rel=1e-4)


@pytest.mark.parametrize("whole", [BOTH, TEXT_TO_TEXT], ids=["one stack", "two stacks"])
def test_texts_of_the_room_fit_with_their_mode_tokens(whole: Mixture) -> None:
    lm = model_of(whole, 24)
    shape = shape_of(lm)
    for name in modes_of(whole):
        objective = objective_of(lm.told(name))
        for plan in abilities(objective).plans:
            n = room(objective, shape, plan)
            source = source_room(shape, plan, objective)
            given = min(n - 1, 3) if source is None else source if plan in ("decoder", "left_to_right") else 0
            size = n if source is None or plan not in ("decoder", "left_to_right") else n + given
            rows = replace(texts([size], ends=False), ends=np.zeros(1, bool))
            query = replace(Query.of(rows, np.array([given])))
            if plan == "pseudo_words":
                query = replace(query, rows=replace(rows, word=np.ones(size, bool)))
            for part in expand(objective, query, V, 1 << 20, plan):
                assert part.sizes.stream.max() <= shape.stream, (name, plan)
                assert part.sizes.source is None or part.sizes.source.max() <= shape.source, (name, plan)
        assert np.isfinite(lm.told(name).score("ab" * 40)[0].logprob)


def test_states_and_embeddings_read_a_text_as_its_part_did() -> None:
    for visibility, start in (("causal", ["bos", "[CLM]"]), ("bidirectional", ["cls", "[MLM]"])):
        config = config_of(BOTH, V.size).model_copy(update={"visibility": visibility})
        e = framed(texts([4]), config, V, BOTH)
        assert e.stream.tokens[:2].tolist() == [V.need(r) for r in start]
        assert len(e.stream.tokens) == 4 + frame_size(config, BOTH)


def test_an_export_is_asked_as_the_run_is(tmp_path: Any) -> None:
    lm = model_of(BOTH)
    lm.export(tmp_path / "hf")
    again = load(tmp_path / "hf", device="cpu")
    assert again.objective == BOTH
    for mode in (None, "clm", "mlm"):
        assert again.score("the cat", mode=mode)[0].logprob == pytest.approx(lm.score("the cat", mode=mode)[0].logprob)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "`[CLM]`" in card and "`[MLM]`" in card


def test_suites_and_lm_eval_ask_a_part(tmp_path: Any) -> None:
    lm, text = model_of(BOTH), tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 4)
    found = {mode: evaluate(lm, "bpb", text, mode=mode) for mode in ("clm", "mlm")}
    assert (found["clm"]["plan"], found["mlm"]["plan"]) == ("left_to_right", "pseudo")
    assert "[BOS] [CLM]" in found["clm"]["event"] and "[CLS] [MLM]" in found["mlm"]["event"]
    assert found["clm"] == evaluate(lm, "bpb", text)
    pytest.importorskip("lm_eval")
    from lm_eval.api.registry import get_model

    lm.export(tmp_path / "hf")
    register(load)
    asked = get_model("unmask").create_from_arg_string(f"path={tmp_path / 'hf'},mode=mlm")
    assert asked.plan == "pseudo" and asked.get_model_info()["unmask_objective"] == "masked"


# ---------------------------------------------------------------- what the part that is asked cannot do


def test_a_refusal_names_the_parts_that_can() -> None:
    lm = model_of(BARE)
    can = "; its part mlm can be asked this: mode='mlm' (--mode mlm)"
    assert refusal(lambda: lm.fill("a [MASK]")).endswith(can)
    assert refusal(lambda: lm.score("a", plan="pseudo")).endswith(can)
    assert refusal(lambda: lm.generate("a", steps=3)).endswith(can)
    assert refusal(lambda: evaluate(lm, "bpb", None, plan="bound")).endswith(can)
    assert "part" not in refusal(lambda: lm.score("a", plan="decoder"))
    two = model_of(mixture(pairs={"type": "contrastive"}, clm={"type": "causal"}, mlm={"type": "masked"}))
    both = "; each of its parts clm, mlm can be asked this: mode='clm' (--mode clm)"
    assert refusal(lambda: two.score("a")).endswith(both) and refusal(lambda: two.generate("a")).endswith(both)
    assert refusal(lambda: two.fill("a [MASK]")).endswith("its part mlm can be asked this: mode='mlm' (--mode mlm)")


def test_a_plan_that_does_not_exist_is_told_from_one_that_does_not_fit() -> None:
    said = refusal(lambda: model_of(BARE).score("a", plan="psuedo"))  # type: ignore[arg-type]
    assert said.startswith("there is no plan 'psuedo' (known: left_to_right, pseudo, ")
    assert said.endswith("of a model of causal: left_to_right); did you mean 'pseudo'?")
