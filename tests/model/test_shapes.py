"""Shapes from the configuration against those that forward hooks see."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
import torch

from unmask.batch import Batch, Head
from unmask.model import latent, layers
from unmask.model.shapes import shapes
from unmask.model.transformer import Transformer

from .helpers import stream_of
from .test_spec import FAMILIES, HEADS, mask_of, tiny


@pytest.mark.parametrize("name", FAMILIES)
def test_steps_are_what_hooks_see(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(**FAMILIES[name])
    two, rows, length, sources = config.num_source_layers > 0, 2, 9, 6
    heads = HEADS if config.table_size == 32 else HEADS[:5]
    model = Transformer(config, heads)
    seen: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for path, module in model.named_modules(remove_duplicate=False):

        def hook(_module: Any, _inputs: Any, out: Any, path: str = path) -> None:
            if not isinstance(out, dict):
                seen[path].add(tuple((out[0] if isinstance(out, tuple) else out).shape))

        module.register_forward_hook(hook)
    for place in (layers, latent):
        attend = place.attend

        def noting(q: Any, k: Any, v: Any, *rest: Any, attend: Any = attend, **more: Any) -> Any:
            seen["[queries]"].add(tuple(q.shape))
            seen["[keys]"].add(tuple(k.shape))
            seen["[values]"].add(tuple(v.shape))
            return attend(q, k, v, *rest, **more)

        monkeypatch.setattr(place, "attend", noting)
    source = stream_of(rows, sources, "full") if two else None
    states = model(Batch(stream_of(rows, length, mask_of(config)), {}, {}, source))["stream"].flatten(0, 1)[:5]
    extra = torch.zeros(5, dtype=torch.long)
    for head, module in model.heads.items():
        read = states[:, None].expand(-1, model.declared[head].arity, -1)
        seen[f"[heads.{head}]"].add(tuple(module.project(module.features(read, extra)).shape))

    steps = shapes(config, heads, rows, length, sources * two, targets=5)
    drawn = {"[tokens]", "[scores]", "[cross scores]", "[router]", "[experts' up]", "[sinusoids]"}
    for step in steps:
        assert step.step in drawn or step.shape in seen[step.step], step
    # and no module's output is left out, but for what lies inside a listed step
    listed = {_any_layer(step.step) for step in steps}
    leaves = {p for p in seen if not p.startswith("[") and not list(model.get_submodule(p).children())}
    leaves -= {p for p in leaves if p.startswith("source.") and ".cross" in p}  # of stacks that share their layers
    missing = {_any_layer(p) for p in leaves} - listed
    assert not {p for p in missing if p.rpartition(".")[0] not in listed and not p.endswith(INSIDE)}


INSIDE = ("kv_a_norm", "q_a_norm", "relation.r", "relation.pos_key", "relation.pos_query", "cross.q_norm")
INSIDE += ("cross.k_norm", "relative.norm", "boundary.dense1")


def _any_layer(path: str) -> str:
    return re.sub(r"layers\.\d+", "layers.N", path)


def test_alike_layers_are_listed_once() -> None:
    steps = shapes(tiny(num_layers=6, attention_pattern="GLL", window=2), (Head("lm"),), 1, 8)
    scores = [step for step in steps if step.step == "[scores]"]
    assert [step.depths for step in scores] == [(0, 3), (1, 2, 4, 5)]
    assert sum(len(step.depths) for step in steps if step.step.endswith(".mlp.up")) == 6
