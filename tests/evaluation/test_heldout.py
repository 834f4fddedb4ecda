from __future__ import annotations

import resource
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from unmask.batch import starts
from unmask.config import ModelConfig
from unmask.data.loader import Loader
from unmask.data.marks import Bits
from unmask.errors import UserError
from unmask.evaluation.heldout import content_tokens, held_out, unigram_losses
from unmask.evaluation.items import Options
from unmask.evaluation.suites import encode, evaluate
from unmask.loss import forward_heads
from unmask.networks import networks_of
from unmask.objectives import Masked, Mixture, MultiToken, NextSentence
from unmask.objectives.base import Objective, Shape
from unmask.programs import program_of
from unmask.train.devices import to_device

from .helpers import OBJECTIVES, model_of, stub_of, tokenizer

TEXTS = ["the cat sat", "a dog", "the log, the mat and the cat", "on", "a", "sat on the mat", "the dog", "cat", "log"]


@dataclass(frozen=True)
class Text:
    tokens: np.ndarray
    documents: np.ndarray


def text_of(texts: list[str]) -> Text:
    ids = tokenizer().encode_batch(texts)
    return Text(np.concatenate(ids), starts([len(i) for i in ids]))


def loader_of(name: str, rows: int = 4, texts: list[str] = TEXTS) -> Loader:
    objective = OBJECTIVES[name]
    shape = objective.shape(24, 24)
    return Loader(text_of(texts), objective, tokenizer().vocabulary, shape, rows=rows, seed=0, shuffle=False)


COUNTS = np.bincount(text_of(TEXTS).tokens, minlength=tokenizer().vocabulary.size)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_t20_batch_size_changes_nothing(name: str) -> None:
    lm = model_of(name)
    results = [held_out({"model": lm.network}, loader_of(name, rows), lm.vocabulary, COUNTS) for rows in (1, 4, 64)]
    for r in results[1:]:
        assert r.loss == pytest.approx(results[0].loss, rel=1e-6)
        assert (r.structural_loss or 0.0) == pytest.approx(results[0].structural_loss or 0.0, rel=1e-6)
        assert r.interval == pytest.approx(results[0].interval, rel=1e-6)
        assert (r.content_targets, r.structural_targets) == (results[0].content_targets, results[0].structural_targets)
        assert r.unigram_floor == pytest.approx(results[0].unigram_floor, rel=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_content_and_structural_losses_make_up_the_training_loss(name: str) -> None:
    lm, loader = model_of(name), loader_of(name)
    networks = {"model": lm.network}
    sums = norms = 0.0
    for batch in loader.once():
        with torch.no_grad():
            for term in forward_heads(networks, to_device(batch, torch.device("cpu"))).values():
                sums, norms = sums + float(term.sum), norms + term.norm
    r = held_out(networks, loader, lm.vocabulary, COUNTS)
    structural = (r.structural_loss or 0.0) * r.structural_targets
    assert r.content_targets + r.structural_targets == norms
    assert r.loss * r.content_targets + structural == pytest.approx(sums, rel=1e-5)
    if name == "masked":
        assert r.structural_targets == 0 and r.structural_loss is None
    if name == "causal":  # an end token a document
        assert r.structural_targets == len(TEXTS) and r.content_targets == len(text_of(TEXTS).tokens)


def test_the_numbers_of_a_stub_are_known() -> None:
    lm, log_p = stub_of("causal")
    tokens, v = text_of(TEXTS).tokens, lm.vocabulary
    r = held_out({"model": lm.network}, loader_of("causal"), v, COUNTS)
    assert r.loss == pytest.approx(-log_p[tokens].mean(), rel=1e-6)
    assert r.structural_loss == pytest.approx(-log_p[v.need("eos")], rel=1e-6)
    p = (COUNTS[v.ordinary] + 1) / (COUNTS[v.ordinary].sum() + len(v.ordinary))
    assert p.sum() == pytest.approx(1)
    number = {int(t): k for k, t in enumerate(v.ordinary)}
    assert r.unigram_floor == pytest.approx(-np.log([p[number[int(t)]] for t in tokens]).mean(), rel=1e-9)
    assert r.accuracy == pytest.approx((tokens == log_p.argmax()).mean())
    assert r.interval is not None and r.interval[0] < r.loss < r.interval[1]
    assert r.pieces == len(loader_of("causal").pieces)
    assert set(r.figures()) == {"loss", "accuracy", "unigram_floor", "structural_loss"}
    assert unigram_losses(COUNTS, v)[v.specials].sum() == 0


def test_an_unknown_token_is_content_and_has_its_place_in_the_floor() -> None:
    """WordPiece knows no 漢: [UNK] stands there for text. A byte-level vocabulary has no [UNK]: nothing changes."""
    lm, log_p = stub_of("causal", "wordpiece")
    v, ids = lm.vocabulary, tokenizer("wordpiece").encode_batch(["the 漢 sat", "a 漢字 dog"])
    tokens = np.concatenate(ids)
    unknown = int((tokens == v.need("unk")).sum())
    assert unknown >= 2 and v.is_special[v.need("unk")]
    counts = np.bincount(tokens, minlength=v.size)
    loader = Loader(
        Text(tokens, starts([len(i) for i in ids])), OBJECTIVES["causal"], v, Shape(24), rows=2, seed=0, shuffle=False
    )
    r = held_out({"model": lm.network}, loader, v, counts)
    assert (r.content_targets, r.structural_targets) == (len(tokens), 2)  # two documents end
    assert r.loss == pytest.approx(-log_p[tokens].mean(), rel=1e-6)
    p = (counts + 1) / (len(tokens) + len(v.ordinary) + 1)
    assert r.unigram_floor == pytest.approx(-np.log(p[tokens]).mean(), rel=1e-9)
    assert np.exp(-unigram_losses(counts, v)[content_tokens(v)]).sum() == pytest.approx(1)
    bits = evaluate(lm, "bpb", encode(lm, ["the 漢 sat", "a 漢字 dog"]), Options(counts=counts))
    assert bits["loss"] == pytest.approx(r.loss) and bits["unigram_floor"] == pytest.approx(r.unigram_floor)
    assert bits["lossy"]

    plain = tokenizer().vocabulary
    assert plain.unk is None and np.array_equal(content_tokens(plain), ~plain.is_special)
    shared = replace(v, unk=v.eos)  # GPT-2's unknown token is also its end
    assert not content_tokens(shared)[v.need("eos")]


def test_modes_and_random_numbers_stay_as_they_were() -> None:
    lm = model_of("masked")
    lm.network.train()
    lm.network.stack.layers[0].eval()
    modes = [m.training for m in lm.network.modules()]
    state = torch.get_rng_state()
    first = held_out({"model": lm.network}, loader_of("masked"), lm.vocabulary, COUNTS)
    assert held_out({"model": lm.network}, loader_of("masked"), lm.vocabulary, COUNTS) == first
    assert [m.training for m in lm.network.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in lm.network.parameters())


def test_a_limit_reads_the_first_pieces_and_nothing_to_measure_is_said() -> None:
    lm = model_of("causal")
    r = held_out({"model": lm.network}, loader_of("causal"), lm.vocabulary, COUNTS, limit=2)
    assert r.pieces == 2 and r.content_targets == len("the cat sat") + len("a dog")
    counts_of_specials = Text(np.full(4, lm.vocabulary.need("eos")), np.array([0, 4]))
    loader = Loader(counts_of_specials, OBJECTIVES["causal"], lm.vocabulary, Shape(24), rows=2, seed=0)
    with pytest.raises(UserError, match="no content target"):
        held_out({"model": lm.network}, loader, lm.vocabulary, COUNTS)


def test_t19_logits_are_never_kept() -> None:
    """2,304 masked tokens over 30,000 entries: all logits take 276 MB, those that are alive at once 17."""
    size = 30_000
    lm, _ = stub_of("masked", max_position=512)
    network: Any = lm.network
    network.heads["lm"].logits = torch.zeros(size)
    text = Text(np.tile(np.arange(7, 263, dtype=np.int32), 60), np.array([0, 60 * 256]))
    loader = Loader(text, OBJECTIVES["masked"], lm.vocabulary, Shape(512), rows=32, seed=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    r = held_out({"model": network}, loader, lm.vocabulary, COUNTS)
    assert r.loss == pytest.approx(np.log(size), rel=1e-6)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000  # kB


# ---------------------------------------------------------------- several heads, several parts


def measured(objective: Objective, limit: int | None = None) -> Any:
    """Held-out figures of a random model, and what one batch of everything comes to under the program."""
    texts = [" ".join(TEXTS[i:] + TEXTS[:i]) for i in range(len(TEXTS))]
    text, words = text_of(texts), tokenizer().vocabulary
    shape = objective.shape(24, 24)
    bits = Bits(np.packbits(np.arange(len(text.tokens)) % 3 == 0, bitorder="little"), len(text.tokens))
    whole = SimpleNamespace(
        tokens=text.tokens, documents=text.documents, sentence=bits, word=bits, spans=None, target=None
    )
    config = ModelConfig(
        vocab_size=words.size, hidden_size=16, num_layers=1, num_heads=2, token_types=2, tied_head=False
    )
    networks = networks_of(objective, config.model_copy(update={"visibility": objective.visibility}), 1)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for p in networks.parameters():
            p += 0.2 * torch.randn(p.shape, generator=generator)

    def loader(rows: int) -> Loader:
        return Loader(whole, objective, words, shape, rows=rows, seed=0, shuffle=False, kept=whole)  # type: ignore[arg-type]

    program = program_of(objective)
    found = held_out(dict(networks.items()), loader(4), words, COUNTS, limit, program)
    (batch,) = loader(1000).once(limit)
    with torch.no_grad():
        terms = program(networks, to_device(batch, torch.device("cpu")), None)
    return found, batch, terms, networks


def test_every_head_has_its_term() -> None:
    for objective in (MultiToken(), Masked.spanbert(), NextSentence()):
        found, _, terms, _ = measured(objective)
        names = {head.name for head in objective.heads()}
        assert names == {name for _, name in terms} and names <= set(found.terms) and len(names) > 1
        for (_, name), term in terms.items():
            assert found.terms[name] == pytest.approx(float(term.sum) / term.norm, rel=1e-4), name
        assert {f"term_{name}" for name in names} <= set(found.figures()) and set(
            found.summary()["held_out_terms"]
        ) >= names


def test_accuracy_of_classes_stands_beside_the_commonest() -> None:
    found, batch, _, networks = measured(NextSentence())
    assert found.terms.keys() == {"lm", "nsp", "nsp_accuracy", "nsp_majority"}
    targets = batch.targets["next_sentence", "nsp"]
    head, network = batch.heads["next_sentence", "nsp"], networks["model"]
    with torch.no_grad():
        states = network(to_device(batch, torch.device("cpu")), None)["stream"].flatten(0, 1)
        module = network.heads["nsp"]
        likeliest = module.project(module.features(states[targets.index][:, None])).argmax(-1).numpy()
    asked = targets.weight > 0
    share = np.bincount(targets.value[asked], minlength=head.size) / asked.sum()
    assert 0.5 <= share.max() < 1 and asked.sum() > 8
    assert found.terms["nsp_accuracy"] == pytest.approx((likeliest == targets.value)[asked].mean())
    assert found.terms["nsp_majority"] == pytest.approx(share.max())


def test_a_mixture_s_loss_is_the_mean_of_its_parts_as_training_weighs_them() -> None:
    """The dense part has many times the sparse one's targets, and its factor alone says what it counts."""
    parts = {"clm": {"type": "causal"}, "mlm": {"type": "masked", "factor": 3.0, "weight": 2}}
    found, *_ = measured(Mixture.model_validate({"parts": parts}))
    clm, mlm = found.parts["clm"], found.parts["mlm"]
    assert clm["content_targets"] > 2 * mlm["content_targets"] and not found.terms
    for name in ("loss", "accuracy", "unigram_floor"):
        assert getattr(found, name) == pytest.approx((clm[name] + 3 * mlm[name]) / 4, rel=1e-9)
    low, high = found.interval
    assert low < found.loss < high
    assert 2.5 < (high - low) / found.standard_error < 5
    only, *_ = measured(Mixture.model_validate({"parts": {**parts, "clm": {"type": "causal", "factor": 0.0}}}))
    assert only.loss == pytest.approx(only.parts["mlm"]["loss"], rel=1e-14)  # a weight of 3 in a mean of one
    assert only.parts["mlm"]["loss"] == pytest.approx(mlm["loss"])
