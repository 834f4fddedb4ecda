"""Contrastive parts of mixtures: their terms are those of the part alone, whatever shares the micro-batch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from unmask.batch import Batch, Rows, starts
from unmask.config import ModelConfig
from unmask.data.collate import collate, pack
from unmask.data.loader import Loader
from unmask.data.marks import Bits
from unmask.evaluation.heldout import held_out
from unmask.loss import forward_heads
from unmask.model.transformer import Transformer
from unmask.objectives import Contrastive, Mixture
from unmask.objectives.base import Objective, Shape, Sizes, outline
from unmask.objectives.show import Toy
from unmask.programs import norms_of, program_of
from unmask.tokens.special import Vocabulary
from unmask.train.hooks import Gradients

VOCABULARY = Toy(size=110)
CONFIG = ModelConfig(
    vocab_size=110, hidden_size=32, num_layers=2, num_heads=4, max_position=64, visibility="bidirectional"
)
PARTS: dict[str, Any] = {
    "mlm": {"type": "masked"},
    "pairs": {"type": "contrastive", "factor": 0.5},
    "near": {"type": "contrastive", "pairs": "neighbours", "temperature": 0.2},
}


def mixture(*names: str, **more: Any) -> Mixture:
    return Mixture.model_validate({"parts": {name: PARTS[name] for name in names} | more})


def texts(lengths: list[int], seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    rows = Rows.of([rng.integers(5, 90, n) for n in lengths], key=rng.integers(1 << 60, size=len(lengths)))
    return replace(rows, sentence=(rng.random(len(rows.tokens)) < 0.2) | (rows.place == 0))


def batch_of(m: Mixture, rows: dict[str, Rows]) -> Batch:
    """Texts of every part, packed into rows that hold texts of several."""
    examples = {name: m.parts[name](rows[name], VOCABULARY) for name in m.parts}
    sizes = np.concatenate([m.parts[name].sizes(outline(rows[name])).stream for name in m.parts])
    heads = {name: part.heads() for name, part in m.parts.items()}
    return collate(examples, heads, pack(Sizes(sizes), Shape(64)), shape=Shape(64)).map(torch.from_numpy)


def network_of(m: Objective) -> Transformer:
    return Transformer(CONFIG, m.heads(), seed=0)


LENGTHS = {"mlm": [12, 30, 7, 1, 22], "pairs": [20, 9, 1, 14, 40, 8], "near": [33, 16, 2, 25]}
ROWS = {name: texts(lengths, seed) for seed, (name, lengths) in enumerate(LENGTHS.items())}


def test_terms_of_a_contrastive_part_are_those_of_the_part_alone() -> None:
    whole = mixture("mlm", "pairs", "near")
    network = network_of(whole).double()
    batch = batch_of(whole, ROWS)
    kinds = [set(batch.samples.objective[batch.samples.row == r].tolist()) for r in range(len(batch.stream.tokens))]  # type: ignore[union-attr]
    assert any(len(k) > 1 for k in kinds)
    found = program_of(whole)({"model": network}, batch, None)
    assert set(found) == {("mlm", "lm"), *((p, h) for p in ("pairs", "near") for h in ("query", "passage"))}
    for name in ("mlm", "pairs", "near"):
        part = whole.parts[name]
        lone = {name: part.objective(ROWS[name], VOCABULARY)}
        alone = collate(lone, {name: part.heads()}).map(torch.from_numpy)
        single = Mixture(parts={name: part})
        for key, term in program_of(single)({"model": network}, alone, None).items():
            torch.testing.assert_close(found[key].sum, term.sum, rtol=1e-6, atol=1e-6)
            assert (found[key].norm, found[key].coefficient) == (term.norm, term.coefficient)
            assert norms_of(whole)({"model": network}, batch)[key] == term.norm
    assert [found["pairs", h].coefficient for h in ("query", "passage")] == [0.25, 0.25]
    assert found["pairs", "query"].norm == 5 and found["near", "query"].norm == 4


def test_the_objective_alone_and_as_the_only_part_have_the_same_terms() -> None:
    alone, part = Contrastive(), Mixture.model_validate({"parts": {"contrastive": {"type": "contrastive"}}})
    network = network_of(alone)
    batch = batch_of(part, {"contrastive": ROWS["pairs"]})
    one, two = (program_of(o)({"model": network}, batch, None) for o in (alone, part))
    assert one.keys() == two.keys() and all(torch.equal(one[k].sum, two[k].sum) for k in one)


def test_one_pass_serves_every_part() -> None:
    m, calls = mixture("mlm", "pairs"), []
    network = network_of(m)
    network.register_forward_hook(lambda *_: calls.append(1))
    program_of(m)({"model": network}, batch_of(m, ROWS), None)
    assert len(calls) == 1


def test_a_batch_that_holds_none_of_a_parts_texts_has_terms_of_nothing() -> None:
    m = mixture("mlm", "pairs")
    network = network_of(m)
    for empty in ("mlm", "pairs"):
        batch = batch_of(m, {**ROWS, empty: texts([], 0)})
        found = program_of(m)({"model": network}, batch, None)
        for (part, _), term in found.items():
            assert bool(term.norm) == bool(term.sum) == (part != empty)
        sum(t.sum for t in found.values()).backward()  # type: ignore[union-attr]
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in network.parameters())


def test_mixtures_without_a_contrastive_part_keep_the_default_program() -> None:
    m = mixture("mlm")
    assert m.program == "heads" and program_of(m) is forward_heads
    assert mixture("mlm", "near").program == "contrastive"


def test_cosines_count_the_terms_of_contrastive_parts() -> None:
    """Each part's gradient is that of its own loss, here by autograd on the part's batch alone."""
    m = mixture("mlm", "pairs")
    network = network_of(m)
    batch = batch_of(m, ROWS)
    terms = program_of(m)({"model": network}, batch, None)
    found = Gradients(1)(nn.ModuleDict({"model": network}), {key: terms[key] for key in batch.heads})
    own = {}
    for name, part in m.parts.items():
        alone = collate({name: part.objective(ROWS[name], VOCABULARY)}, {name: part.heads()}).map(torch.from_numpy)
        each = program_of(Mixture(parts={name: part}))({"model": network}, alone, None).values()
        loss = sum((t.sum * (t.coefficient / t.norm) for t in each), torch.zeros(()))
        own[name] = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
    shared = [(a, b) for a, b in zip(own["mlm"], own["pairs"], strict=True) if a is not None and b is not None]
    a, b = (torch.cat([pair[k].flatten() for pair in shared]) for k in (0, 1))
    assert found["cosine"]["mlm pairs"] == pytest.approx(float(a @ b / a.norm() / b.norm()), rel=1e-3)
    for name, grads in own.items():
        norm = float(torch.stack([(g**2).sum() for g in grads if g is not None]).sum().sqrt())
        assert found["norm"][name] == pytest.approx(norm, rel=1e-4)


# ---------------------------------------------------------------- from a text


def corpus(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    edges = starts(rng.integers(4, 60, 80))
    tokens = rng.integers(5, 45, edges[-1]).astype(np.uint16)
    flags = rng.random(len(tokens)) < 0.15
    flags[edges[:-1]] = True
    bits = Bits(np.packbits(flags, bitorder="little"), len(flags))
    return SimpleNamespace(tokens=tokens, documents=edges, word=bits, sentence=bits, spans=None, target=None)


def loader(m: Objective, **more: Any) -> Loader:
    text = corpus()
    return Loader(text, m, VOCABULARY, Shape(64), **{"rows": 16, "seed": 0, "kept": text, **more})


def test_a_masked_and_contrastive_run_learns_both() -> None:
    """As DeCLUTR trains: one model, both losses in every update, over two micro-batches."""
    m = mixture("mlm", "pairs")
    load, network = loader(m, micro=2), network_of(m)
    optimizer, program = torch.optim.AdamW(network.parameters(), lr=2e-3), program_of(m)
    losses: list[dict[str, float]] = []
    for step in range(60):
        micro = [b.map(torch.from_numpy) for b in load(step % 4, 0.0)]
        norms = [norms_of(m)({"model": network}, b) for b in micro]
        total: dict[str, float] = {}
        for batch in micro:
            for key, term in program({"model": network}, batch, None).items():
                value = term.coefficient * term.sum / sum(n[key] for n in norms)
                total[key[0]] = total.get(key[0], 0.0) + float(value.detach())
                value.backward(retain_graph=True)
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    first, last = ({k: np.mean([x[k] for x in some]) for k in losses[0]} for some in (losses[:4], losses[-4:]))
    assert last["mlm"] < 0.85 * first["mlm"] and last["pairs"] < 0.6 * first["pairs"]


def test_held_out_figures_name_every_part() -> None:
    m = mixture("mlm", "pairs", wide={"type": "masked", "mask_rate": 0.4})
    words = Vocabulary.of(
        {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4} | {f"w{i}": i for i in range(5, 110)}, range(5)
    )
    load = loader(m, shuffle=False)
    found = held_out({"model": network_of(m).eval()}, load, words, np.ones(110), program=program_of(m))
    assert set(found.parts) == {"mlm", "wide"}
    assert set(found.terms) == {"mlm.lm", "wide.lm", "pairs.query", "pairs.passage"}
    for part in ("mlm", "wide"):
        assert found.terms[f"{part}.lm"] == pytest.approx(found.parts[part]["loss"], rel=1e-3)
    alone = Contrastive()
    load, program = loader(alone, shuffle=False), program_of(alone)
    lone = held_out({"model": network_of(alone)}, load, words, np.ones(110), program=program)
    assert set(lone.terms) == {"query", "passage"}
