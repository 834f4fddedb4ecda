"""Beam search equals that of `transformers`, and one without a cache that is written out here."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from unmask.batch import Batch, starts
from unmask.cli import app
from unmask.data.collate import collate
from unmask.errors import UserError
from unmask.evaluation.beam import Beams, Search, likeliest
from unmask.evaluation.generate import generate, generations, n_best
from unmask.evaluation.plans import layout_of
from unmask.evaluation.sampling import Generation
from unmask.lm import LM
from unmask.model.interop import load_hf
from unmask.objectives import Causal, PrefixLM, SpanCorruption
from unmask.objectives.layout import Pairs, Ragged
from unmask.train.devices import to_device

from .helpers import model_of, tokenizer
from .test_generate import PROMPTS, WRITERS
from .test_lm import written_run

SIZE = tokenizer().vocabulary.size + 3  # padded rows
STOCK: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "llama": (
        "LlamaForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 56},
    ),
    "t5": ("T5ForConditionalGeneration", {"d_model": 32, "d_kv": 12, "d_ff": 56, "num_layers": 2, "num_heads": 4}),
}  # fmt: skip
OBJECTIVES = {"gpt2": Causal(), "llama": Causal(), "t5": PrefixLM(layout="encdec"), "t5-spans": SpanCorruption()}
SETTINGS = [
    (2, 1.0, False, 0),
    (4, 1.0, True, 0),
    (4, 1.0, "never", 3),
    (3, 0.0, False, 0),
    (3, 0.0, "never", 0),
    (5, 2.0, False, 4),
    (4, 2.0, "never", 0),
    (4, -1.0, False, 0),
    (2, -0.5, "never", 0),
    (3, 0.6, True, 2),
]
TOKENS = 10


def pair(name: str, path: Path, seed: int) -> tuple[Any, LM]:
    """The stock model and ours, in double precision; every tensor is random, and the end tokens stand out."""
    transformers = pytest.importorskip("transformers")
    v, stock = tokenizer().vocabulary, name.removesuffix("-spans")
    kind, settings = STOCK[stock]
    model_class = getattr(transformers, kind)
    untied = {} if stock == "gpt2" else {"tie_word_embeddings": False}
    config = model_class.config_class(**settings, **untied, vocab_size=SIZE, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # the stock class draws from the global generator
        stock_model = model_class(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in stock_model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        head = stock_model.get_output_embeddings().weight
        if stock == "t5":
            head *= 0.5
        for end in (v.need("eos"), int(v.sentinels[1])):
            head[end] *= 2.5
    stock_model.save_pretrained(path)
    network = load_hf(path)[0].double().eval()
    return stock_model, LM(network, 64, tokenizer(), OBJECTIVES[name], target_context=64)


def theirs(stock: Any, name: str, prompts: list[str], settings: tuple[Any, ...], tokens: int = TOKENS) -> list[Any]:
    """`transformers.generate` for prompts of equal length: for each its texts (ids, with the end token) and scores."""
    count, penalty, early, least = settings
    v = tokenizer().vocabulary
    ids = torch.from_numpy(np.stack([tokenizer().encode(p) for p in prompts])).long()
    ends = [v.need("eos")]
    given: dict[str, Any] = {"decoder_start_token_id": v.need("bos")}
    if name in ("gpt2", "llama"):
        ids = torch.cat([torch.full((len(ids), 1), v.need("bos")), ids], 1)
        given = {}
    elif name == "t5-spans":
        rest = torch.tensor([[int(v.sentinels[0]), v.need("eos")]]).expand(len(ids), -1)
        ids, ends = torch.cat([ids, rest], 1), [*ends, int(v.sentinels[1])]
        given["decoder_input_ids"] = torch.tensor([[v.need("bos"), int(v.sentinels[0])]]).expand(len(ids), -1)
    allowed = {*v.ordinary.tolist(), *ends}
    out = stock.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=count,
        num_return_sequences=count,
        length_penalty=penalty,
        early_stopping=early,
        max_new_tokens=tokens,
        min_new_tokens=least,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=v.need("pad"),
        suppress_tokens=[i for i in range(SIZE) if i not in allowed],
        output_scores=True,
        return_dict_in_generate=True,
        **given,
    )
    before = (given["decoder_input_ids"].shape[1] if "decoder_input_ids" in given else 1) if given else ids.shape[1]
    texts = []
    for row in out.sequences[:, before:].tolist():
        at = next((i for i, t in enumerate(row) if t in ends), len(row) - 1)
        texts.append(tuple(row[: at + 1]))
    found = list(zip(texts, out.sequences_scores.tolist(), strict=True))
    return [found[i : i + count] for i in range(0, len(found), count)]


def same(ours: list[Generation], expected: list[Any], ends: set[int], rtol: float = 1e-6) -> None:
    """Ids, whether an end token came, and scores; the stock classes norm and add up in single precision."""
    assert [g.ids for g in ours] == [tuple(t for t in ids if t not in ends) for ids, _ in expected]
    assert [g.stopped == "end" for g in ours] == [ids[-1] in ends for ids, _ in expected]
    np.testing.assert_allclose([g.score for g in ours], [score for _, score in expected], rtol=rtol)


@pytest.mark.parametrize("seed", [2, 5])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_equals_transformers_token_for_token(name: str, seed: int, tmp_path: Path) -> None:
    """All k texts with their scores, under every rule of stopping; prompts of other lengths share our batch."""
    stock, lm = pair(name, tmp_path, seed + (name == "gpt2"))
    v = lm.vocabulary
    ends = {v.need("eos"), int(v.sentinels[1])}
    prompts = ["the cat sat", "the dog sat", "a log", "on the mat on the mat", "a"]
    stopped = []
    for settings in SETTINGS:
        count, penalty, early, least = settings
        ours = n_best(lm, prompts, Beams(count, penalty, early), count, TOKENS, min_tokens=least)
        together = theirs(stock, name, prompts[:2], settings)  # they, too, decode what has one length in a batch
        for i, prompt in enumerate(prompts):
            same(ours[i], together[i] if i < 2 else theirs(stock, name, [prompt], settings)[0], ends, 1e-4)
        stopped += [g.stopped for texts in ours for g in texts]
        assert all(len(g.ids) >= least for texts in ours for g in texts)
    assert 0.1 < np.mean([s == "end" for s in stopped]) < 0.95  # both ways to finish are seen


def test_the_last_position_is_a_limit_of_each_prompt(tmp_path: Path) -> None:
    """With early_stopping=never, the greatest length that is hoped for is the prompt's own room."""
    stock, lm = pair("gpt2", tmp_path, 4)
    lm = replace(lm, context=18)
    prompts = ["the cat sat", "a"]
    for penalty in (1.0, 2.0):
        ours = n_best(lm, prompts, Beams(3, penalty, "never"), 3, 40)
        for prompt, texts in zip(prompts, ours, strict=True):
            room = 18 - len(prompt)  # [BOS] is read, and the last token is not
            expected = theirs(stock, "gpt2", [prompt], (3, penalty, "never", 0), room)[0]
            same(texts, expected, {lm.vocabulary.need("eos")}, 1e-4)
            assert {g.stopped for g in texts} <= {"end", "positions"}
            assert all(len(g.ids) == room for g in texts if g.stopped == "positions")


# ---------------------------------------------------------------- without transformers


def next_log_p(lm: LM, prompt: str, written: list[tuple[int, ...]]) -> np.ndarray:
    """(n, V) log-probabilities after each of the texts of one length, without a cache; −inf for what is forbidden."""
    assert lm.objective is not None and lm.tokenizer is not None
    v, ids = lm.vocabulary, lm.tokenizer.encode(prompt)
    spans = lm.objective.plan == "infill"
    source = np.array([*ids, v.sentinels[0], v.need("eos")] if spans else ids)
    targets = [np.array([*([v.sentinels[0]] if spans else []), *w, 0]) for w in written]
    pairs = Pairs(
        Ragged(np.concatenate([source] * len(written)), starts([len(source)] * len(written))),
        Ragged(np.concatenate(targets), starts([len(t) for t in targets])),
    )
    batch: Batch = to_device(collate({"x": layout_of(lm.objective)(pairs, v)}, {"x": ()}), torch.device("cpu"))
    head: Any = lm.network.heads["lm"]
    with torch.no_grad():
        logits = head.project(head.features(lm.network(batch)["stream"][:, -1:])).float()
    log_p = np.full(logits.shape, -np.inf)
    allowed = [*v.ordinary.tolist(), v.need("eos"), *([int(v.sentinels[1])] if spans else [])]
    log_p[:, allowed] = logits.log_softmax(-1).double().numpy()[:, allowed]
    return log_p


def slow_beams(lm: LM, prompt: str, count: int, penalty: float, limit: int, stop: str = "") -> list[Any]:
    """The k best (score, ids with the end token); after each step, every beam runs through the whole model again."""
    v, words = lm.vocabulary, tokenizer()
    ends = {v.need("eos"), int(v.sentinels[1])}
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, limit + 1):
        log_p = next_log_p(lm, prompt, [ids for _, ids in live])
        every = [(s + log_p[b, t], (*ids, t)) for b, (s, ids) in enumerate(live) for t in range(log_p.shape[1])]
        every.sort(key=lambda x: -x[0])
        ranked = every[: 3 * count]
        over = [ids[-1] in ends or length == limit or (bool(stop) and stop in words.decode(ids)) for _, ids in ranked]
        done += [(s / length**penalty, ids) for (s, ids), o in list(zip(ranked, over, strict=True))[:count] if o]
        done = sorted(done, key=lambda x: -x[0])[:count]
        live = [x for x, o in zip(ranked, over, strict=True) if not o][:count]
        if not live or (len(done) == count and live[0][0] / length**penalty <= done[-1][0]):
            break
    return done


def ending(lm: LM, bias: float = 2.0) -> LM:
    """The model with likelier end tokens, in double precision."""
    lm.network.double()
    head: Any = lm.network.heads["lm"]
    with torch.no_grad():
        head.bias[lm.vocabulary.need("eos")] = bias
        head.bias[int(lm.vocabulary.sentinels[1])] = bias
    return lm


@pytest.mark.parametrize("positions", ["learned", "rotary", "t5"])
@pytest.mark.parametrize("name", WRITERS)
def test_f13_equals_a_search_without_cache_alone_and_in_any_batch(name: str, positions: str) -> None:
    lm = ending(model_of(name, positions=positions, head_bias=True))
    for count, penalty in ((3, 1.0), (4, 0.0), (2, 1.7)):
        texts = [n_best(lm, PROMPTS, Beams(count, penalty), count, 8, batch_size=b) for b in (1, 2 * count, 99)]
        for i, prompt in enumerate(PROMPTS):
            expected = slow_beams(lm, prompt, count, penalty, 8)
            same(texts[0][i], [(ids, score) for score, ids in expected], {0, *lm.vocabulary.specials.tolist()})
        for other in texts[1:]:
            assert [[g.ids for g in t] for t in other] == [[g.ids for g in t] for t in texts[0]]
            a, b = ([g.score for t in x for g in t] for x in (other, texts[0]))
            np.testing.assert_allclose(np.array(a, float), np.array(b, float), rtol=1e-6)


@pytest.mark.parametrize("name", ["causal", "prefix", "spans"])
def test_beams_as_wide_as_the_vocabulary_find_the_best_texts_of_all(name: str) -> None:
    """Every text of at most two tokens is written out and ranked."""
    lm = ending(model_of(name, head_bias=True), 3.0)
    first = next_log_p(lm, "the c", [()])[0]
    ends = {lm.vocabulary.need("eos"), int(lm.vocabulary.sentinels[1])}
    begin = [(i,) for i in np.flatnonzero(first > -np.inf).tolist() if i not in ends]
    second = next_log_p(lm, "the c", begin)
    for penalty in (0.0, 1.5):
        every = [(float(first[e]), (e,)) for e in ends if first[e] > -np.inf]
        every += [
            (float(first[i] + second[b, t]) / 2**penalty, (i, t))
            for b, (i,) in enumerate(begin)
            for t in np.flatnonzero(second[b] > -np.inf).tolist()
        ]
        best = sorted(every, key=lambda x: -x[0])[:40]
        found = n_best(lm, "the c", Beams(300, penalty), 40, 2, batch_size=600)[0]
        same(found, [(ids, score) for score, ids in best], ends)


def test_a_stop_string_finishes_a_text_and_its_score_counts_up_to_there() -> None:
    lm = ending(model_of("causal", head_bias=True), 0.0)
    plain = n_best(lm, PROMPTS, Beams(3), 3, 8)
    for prompt, texts in zip(PROMPTS, plain, strict=True):
        stop = tokenizer().decode(texts[0].ids[2:3])
        found = n_best(lm, prompt, Beams(3), 3, 8, stop=stop)[0]
        expected = slow_beams(lm, prompt, 3, 1.0, 8, stop)
        same(found, [(ids, score) for score, ids in expected], {lm.vocabulary.need("eos")})
        assert "stop" in {g.stopped for g in found} and all(stop not in g.text for g in found)
        for g in found:
            whole = tokenizer().decode(g.ids)
            assert g.text == (whole[: whole.find(stop)] if g.stopped == "stop" else whole)


@pytest.mark.parametrize("name", ["causal", "prefix", "spans"])
def test_one_beam_that_stops_at_once_is_greedy(name: str) -> None:
    lm = ending(model_of(name, head_bias=True), 3.0)
    beams = Beams(1, early_stopping=True)
    for greedy, (found,) in zip(generations(lm, PROMPTS, 12), n_best(lm, PROMPTS, beams, 1, 12), strict=True):
        assert (found.ids, found.text, found.stopped) == (greedy.ids, greedy.text, greedy.stopped)
        length = len(greedy.ids) + (greedy.stopped == "end")
        assert found.logprob == pytest.approx(greedy.logprob) and found.score == pytest.approx(greedy.logprob / length)


def test_min_tokens_hold_for_greedy_texts_and_samples_too() -> None:
    lm = ending(model_of("causal", head_bias=True), 60.0)
    assert generations(lm, "the cat", 9)[0].ids == ()
    g = generations(lm, "the cat", 9, min_tokens=4)[0]
    assert len(g.ids) == 4 and g.stopped == "end"
    assert len(n_best(lm, "the cat", Beams(2), 1, 9, min_tokens=4)[0][0].ids) == 4


# ---------------------------------------------------------------- the search alone


def test_equal_candidates_keep_the_order_of_ids() -> None:
    log_p = torch.tensor(
        [[0.0, 2.0, 1.0, 2.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0, 3.0, 3.0], [5.0, 4.0, 4.5, 1.0, 2.0, 3.0]]
    )
    values, at = likeliest(log_p, 4)
    assert at.tolist() == [[1, 3, 2, 4], [0, 1, 2, 3], [0, 2, 1, 5]]
    assert values.tolist() == [[2.0, 2.0, 1.0, 1.0], [3.0] * 4, [5.0, 4.5, 4.0, 3.0]]
    values, at = likeliest(log_p, 99)
    assert at.shape == (3, 6) and at[0].tolist() == [1, 3, 2, 4, 5, 0]
    flat = torch.zeros(2, 5000)
    assert likeliest(flat, 6)[1].tolist() == [list(range(6))] * 2


def test_equal_beams_keep_their_order() -> None:
    search = Search(Beams(3), 3, frozenset({0}))
    for rows in (1, 3):
        search.take(np.full((rows, 4), -1.0), np.tile(np.array([5, 6, 7, 8]), (rows, 1)))
    assert search.ids == [(5, 5), (5, 6), (5, 7)] and search.parents == [0, 0, 0] and search.tokens == [5, 6, 7]
    search.take(np.full((3, 4), -1.0), np.tile(np.array([5, 6, 7, 8]), (3, 1)))
    assert search.done and [f.ids for f in search.found] == [(5, 5, 5), (5, 5, 6), (5, 5, 7)]
    assert [f.score for f in search.found] == [-1.0] * 3 and [f.logprob for f in search.found] == [-3.0] * 3


def test_early_stopping_says_whether_longer_texts_are_hoped_for() -> None:
    """One text ends after a token; the other beam is worse now, and better per token only later."""
    log_p, tokens = np.array([[-1.0, -1.5, -9.0]]), np.array([[0, 5, 6]])
    done = {}
    for early, penalty in itertools.product((False, True, "never"), (1.0, 0.0)):
        search = Search(Beams(1, penalty, early), 4, frozenset({0}))  # type: ignore[arg-type]
        search.take(log_p, tokens)
        done[early, penalty] = search.done
        assert [f.ids for f in search.found] == [(0,)]
    assert done == {(False, 1.0): True, (True, 1.0): True, ("never", 1.0): False} | dict.fromkeys(
        [(False, 0.0), (True, 0.0), ("never", 0.0)], True
    )


def test_where_few_texts_exist_none_comes_twice() -> None:
    search = Search(Beams(4), 2, frozenset({0}))
    forbidden = -np.inf
    search.take(np.array([[-0.5, -1.0, forbidden]]), np.array([[5, 0, 1]]))
    assert [f.ids for f in search.found] == [] or [f.ids for f in search.found] == [(0,)]
    search.take(np.tile([-0.5, -1.0, forbidden], (len(search.ids), 1)), np.tile([5, 0, 1], (len(search.ids), 1)))
    assert search.done and [f.ids for f in search.found] == [(5, 5), (5, 0), (0,)]


# ---------------------------------------------------------------- what users meet


def test_generate_takes_beams_and_says_what_does_not_fit() -> None:
    lm = ending(model_of("causal", head_bias=True))
    found = n_best(lm, PROMPTS, Beams(3, 0.5), 1, 8)
    texts = [t[0].text for t in found]
    assert lm.generate(PROMPTS, 8, beams=3, length_penalty=0.5) == generate(lm, PROMPTS, 8, beams=3, length_penalty=0.5)
    assert lm.generate(PROMPTS, 8, beams=3, length_penalty=0.5) == texts != lm.generate(PROMPTS, 8)
    for settings, message in (
        ({"beams": 4, "temperature": 0.7}, "beams=4 searches and draws nothing"),
        ({"beams": 2, "top_k": 5}, "leave out temperature, top_k, top_p and seed"),
        ({"length_penalty": 0.5}, "give beams=2 or more"),
        ({"early_stopping": True}, "give beams=2 or more"),
        ({"beams": 0}, "beams=0 must be at least 1"),
        ({"beams": 2, "length_penalty": float("nan")}, "length_penalty=nan"),
        ({"beams": 2, "early_stopping": "soon"}, "early_stopping='soon'"),
        ({"min_tokens": 65}, "min_tokens=65 must lie between 0 and max_tokens=64"),
    ):
        with pytest.raises(UserError, match=message):
            generate(lm, "a", **settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="best=3 must lie between 1 and beams=2"):
        n_best(lm, "a", Beams(2), 3)


def test_the_command_prints_the_best_texts_with_their_scores(tmp_path: Path) -> None:
    lm = model_of("causal")
    run = written_run(lm, tmp_path / "run")
    found = n_best(lm, "the cat", Beams(3, 0.5), 2, 6)[0]
    words = ["generate", str(run), "the cat", "--max-tokens", "6", "--beams", "3", "--length-penalty", "0.5"]
    done = CliRunner().invoke(app, [*words, "--best", "2", "--json"], catch_exceptions=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(x["prompt"], x["text"], x["stopped"]) for x in lines] == [("the cat", g.text, g.stopped) for g in found]
    assert [x["score"] for x in lines] == pytest.approx([g.score for g in found])
    assert [x["logprob"] for x in lines] == pytest.approx([g.logprob for g in found])
    plain = CliRunner().invoke(app, words, catch_exceptions=False)
    assert plain.stdout == "the cat" + found[0].text + "\n"
    two = CliRunner().invoke(app, [*words, "--best", "2"], catch_exceptions=False)
    assert two.stdout.startswith(f"{found[0].score:10.3f}  the cat{found[0].text}\n{found[1].score:10.3f}  the cat")
    with pytest.raises(UserError, match="beams=3 searches"):
        CliRunner().invoke(app, [*words, "--temperature", "1"], catch_exceptions=False)
