"""Every objective, in every layout, on every kind of model: it trains two updates, or is refused for a listed reason.

Families stand for shapes: learned, rotary and relative encoders; decoders; models of two stacks; XLNet and GLM with
what their objectives need; and the plain family, which holds every mask.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from unmask.config import ModelConfig
from unmask.data.loader import Loader
from unmask.data.marks import Bits, TargetText
from unmask.errors import UserError
from unmask.loss import announced
from unmask.model.bundle import stock_family
from unmask.model.presets import preset
from unmask.model.transformer import Transformer
from unmask.objectives import REGISTRY
from unmask.objectives.base import Objective
from unmask.programs import program_of
from unmask.recipe import Recipe
from unmask.show import layouts, named
from unmask.show.reading import Words, spans_of
from unmask.tokens.asked import spelt_controls

CONTEXT = 40
ROOT = Path(__file__).resolve().parents[2]

SHAPES = {
    "bert": "bert-base",
    "modernbert": "modernbert-base",
    "deberta": "deberta-v3-base",
    "xlnet": "xlnet-base",
    "gpt2": "gpt2",
    "llama": "llama2-7b",
    "t5": "t5-1.1-base",
    "bart": "bart-base",
}
PLAIN = {
    "unmask": {},
    "unmask, two stacks": {"num_source_layers": 2},
    "unmask, queries": {"query_vector": True},
    "unmask, two axes": {"positions2": CONTEXT + 2, "tied_head": False},
}
MODELS = [*SHAPES, *PLAIN]

REASONS = {
    "stacks": r"in this layout needs a model with (two stacks|one stack)",
    "mask": r"cannot hold this model: visibility=\w+ \(it is \w+\)",
    "queries": r"set model\.query_vector=true",
    "second axis": r"set model\.positions2",
    "token types": r"set model\.token_types=6",
    "own tables": r"set model\.tied_head=false",
}
"""Why a model cannot hold an objective: docs/objectives.md lists the same."""

SETTINGS = {"pairs": {"max_target": 8}}
"""What a default would not leave room for in rows this short."""

COMBINATIONS = [
    (name, kind, model)
    for name, cls in REGISTRY.own_types.items()
    for kind in layouts(cls) or [None]
    for model in MODELS
]


def tiny(model: str, size: int) -> dict[str, Any]:
    """Settings of a model of a few thousand parameters."""
    values = dict(preset(SHAPES[model])) if model in SHAPES else {"family": "unmask", **PLAIN[model]}
    small = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32, "max_position": 64}
    values |= {**small, "vocab_size": size, "dropout": 0.0, "attention_dropout": 0.0}
    for key in ("head_size", "num_kv_heads", "embedding_size", "visibility"):
        if model in SHAPES:
            values.pop(key, None)
    if values.get("num_source_layers"):
        values["num_source_layers"] = 2
    if values.get("window"):
        values["window"] = 8
    return values


@cache
def controls() -> tuple[str, ...]:
    return tuple(sorted({c for name in REGISTRY.own_types for c in spelt_controls(REGISTRY.make(name))}))


@cache
def material() -> tuple[Any, Any]:
    """A synthetic text of 60 documents with words, sentences and spans, and its vocabulary."""
    stub = Words.of(" ".join(f"w{i}" for i in range(60)), controls())
    rng = np.random.default_rng(0)
    n = rng.integers(10, 60, 60)
    documents = np.concatenate([[0], np.cumsum(n)])
    tokens = rng.integers(7, 67, documents[-1]).astype(np.int32)
    word, sentence = rng.random(len(tokens)) < 0.7, rng.random(len(tokens)) < 0.15
    word[documents[:-1]] = sentence[documents[:-1]] = True
    bits = [Bits(np.packbits(f, bitorder="little"), len(f)) for f in (word | sentence, sentence)]
    text = SimpleNamespace(
        tokens=tokens, documents=documents, word=bits[0], sentence=bits[1], spans=spans_of(word | sentence, 1),
        target=TargetText(tokens, documents, np.bincount(tokens, minlength=stub.vocabulary.size)),
    )  # fmt: skip
    return text, stub.vocabulary


def networks_of(objective: Objective, model: str) -> dict[str, ModelConfig]:
    """The networks' settings, or the sentence by which a recipe is refused, as `unmask pretrain` says it."""
    _, vocabulary = material()
    values = {"corpus": "-", "objective": objective, "model": tiny(model, vocabulary.size), "context": CONTEXT}
    try:
        recipe = Recipe.model_validate({**values, "budget": {"steps": 2}})
    except ValidationError as error:
        raise UserError(error.errors()[0]["msg"]) from error
    config = recipe.model.model_copy(update={"visibility": objective.visibility})
    if config.family != "unmask":
        stock_family(config)
    return objective.networks(config)


def train(objective: Objective, networks: dict[str, ModelConfig]) -> tuple[list[float], bool]:
    """The losses of two updates and one look after them, and whether every network has moved."""
    text, vocabulary = material()
    made = nn.ModuleDict(
        {
            name: Transformer(config, [h for h in objective.heads() if h.network == name], seed=0)
            for name, config in networks.items()
        }
    )
    before = {name: [p.clone() for p in net.parameters()] for name, net in made.items()}
    loader = Loader(text, objective, vocabulary, objective.shape(CONTEXT), rows=4, seed=0, kept=text)
    program, optimizer = program_of(objective), torch.optim.AdamW(made.parameters(), lr=1e-3)
    losses = []
    for step in range(2):
        (batch,) = loader(step)
        batch = batch.map(torch.from_numpy)
        terms = program(made, batch, torch.Generator().manual_seed(step))
        norms = announced(made, batch)
        parts = [t.coefficient * t.sum / max(norms.get(key, t.norm), 1e-9) for key, t in terms.items() if t.norm]
        loss = torch.stack(parts).sum()
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = all(
        any((p != q).any() for p, q in zip(net.parameters(), before[n], strict=True)) for n, net in made.items()
    )
    return losses, moved


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "kind", "model"), COMBINATIONS)
def test_an_objective_trains_on_a_model_or_is_refused_for_a_listed_reason(
    name: str, kind: str | None, model: str
) -> None:
    objective = named(name, kind, SETTINGS.get(name))
    try:
        networks = networks_of(objective, model)
    except UserError as refusal:
        assert reason_of(str(refusal)), str(refusal)
        return
    losses, moved = train(objective, networks)
    assert np.isfinite(losses).all() and moved


def reason_of(sentence: str) -> str | None:
    return next((reason for reason, pattern in REASONS.items() if re.search(pattern, sentence)), None)


def test_every_objective_has_a_model_and_every_model_an_objective() -> None:
    held: Counter[tuple[str, str | None]] = Counter()
    models: Counter[str] = Counter()
    for name, kind, model in COMBINATIONS:
        try:
            networks_of(named(name, kind, SETTINGS.get(name)), model)
        except UserError:
            continue
        held[name, kind] += 1
        models[model] += 1
    assert {(name, kind) for name, kind, _ in COMBINATIONS} == set(held)
    assert set(models) == set(MODELS)
