"""Each kind of head: shapes, tying, transforms, pooling over blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unmask.batch import Batch, Head
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.model.heads import read
from unmask.model.transformer import Transformer

from .helpers import laid, model_of, one_text, stream_of, tokens_of


def test_a_tied_table_is_one_parameter_and_gathers_both_gradients() -> None:
    model = model_of()
    assert model.heads["lm"].projection().weight is model.embedding.weight
    assert sum("embedding" in n or n.startswith("heads") for n, _ in model.named_parameters()) == 1


def test_projection_says_what_project_does() -> None:
    model = model_of(head_scale=0.3, head_bias=True, logit_softcap=2.0, head_transform=True, tied_head=False)
    head = model.heads["lm"]
    features = head.features(torch.randn(5, 1, 32, dtype=torch.float64))
    weight, bias, scale, cap = head.projection()
    assert bias is not None and cap is not None
    assert torch.allclose(head.project(features), cap * torch.tanh((scale * features @ weight.T + bias) / cap))


@pytest.mark.parametrize(
    ("head", "answers"),
    [
        (Head("x", over="classes", size=7), 7),
        (Head("x", over="binary"), 1),
        (Head("x", over="score"), 1),
        (Head("x", over="group"), 1),
        (Head("x", over="positions"), 1),
        (Head("x", arity=2, extra=5), 50),
        (Head("x", arity=2), 50),
    ],
)
def test_shapes(head: Head, answers: int) -> None:
    model = model_of(heads=[head], pooler=True)
    module, states = model.heads["x"], torch.randn(6, head.arity, 32, dtype=torch.float64)
    extra = torch.arange(6) % 5 if head.extra else None
    logits = module.project(module.features(states, extra))
    assert logits.shape == (6, answers)
    logits.sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_two_heads_may_share_a_module() -> None:
    model = model_of(heads=[Head("lm"), Head("next", module="lm")])
    assert list(model.heads) == ["lm"]


def test_unknown_shapes_are_refused() -> None:
    with pytest.raises(UserError, match="needs a size"):
        model_of(heads=[Head("x", over="classes")])
    with pytest.raises(UserError, match="reads 3 positions"):
        model_of(heads=[Head("x", arity=3)])
    module = model_of(heads=[Head("x", arity=2, extra=4)]).heads["x"]
    with pytest.raises(UserError, match=r"needs Targets\.extra"):
        module.features(torch.zeros(1, 2, 32, dtype=torch.float64))


def test_pooling_stays_inside_the_block_of_its_index() -> None:
    texts = [one_text(t[:n], "full") for t, n in zip(tokens_of(2, 5), (3, 5), strict=True)]
    stream = laid(texts, [[0, 1]], 10)
    states = torch.arange(10.0)[None, :, None].expand(1, 10, 2)
    index = torch.tensor([0, 4])
    assert read(states, stream, Head("x", pool="mean"), index)[:, 0, 0].tolist() == [1.0, 5.0]
    assert read(states, stream, Head("x", pool="max"), index)[:, 0, 0].tolist() == [2.0, 7.0]
    assert read(states, stream, Head("x"), index)[:, 0, 0].tolist() == [0.0, 4.0]
    assert read(states, stream, Head("x", arity=2), torch.tensor([[0, 3]])).shape == (1, 2, 2)
    assert read(states, stream, Head("x"), None).shape == (10, 1, 2)


def test_values_outside_the_tables_are_clear_errors() -> None:
    model = model_of(token_types=2)
    stream = stream_of(length=40)
    model(Batch(stream, {}, {}))
    for change, message in [
        ({"tokens": stream.tokens + 45}, r"token id \d+ lies outside the vocabulary of 50"),
        ({"tokens": stream.tokens * 0 - 1}, "appended queries need model.query_vector=true"),
        ({"tokens": stream.tokens * 0 - 2}, "ids start at 0"),
        ({"positions": stream.positions + 1}, "position 40 lies beyond the model's 40 positions"),
        ({"token_type": stream.tokens * 0 + 2}, "token type 2 lies outside the table of 2"),
    ]:
        with pytest.raises(UserError, match=message):
            model(Batch(replace(stream, **change), {}, {}))
    with pytest.raises(UserError, match="has a source but the model has one stack"):
        model(Batch(stream, {}, {}, stream))
    with pytest.raises(UserError, match="reads a source"):
        model_of(num_source_layers=1).decode(stream)


def test_appended_queries_start_from_the_query_vector() -> None:
    model = model_of(query_vector=True)
    stream = stream_of()
    queries = replace(stream, tokens=torch.full_like(stream.tokens, -1))
    embedded = model._embed(queries)
    assert torch.equal(embedded, model.query.expand_as(embedded))
    assert torch.equal(model._embed(stream), model.embedding(stream.tokens))


def test_initialisation_is_keyed_by_seed_and_name() -> None:
    """Neither the global generator nor other parameters matter; a deeper model starts alike where names agree."""

    def built(layers: int, seed: int) -> dict[str, torch.Tensor]:
        config = ModelConfig(vocab_size=50, hidden_size=32, num_layers=layers)
        return Transformer(config, [Head("lm")], seed).state_dict()

    before = torch.get_rng_state()
    a, b, c, deep = built(2, 0), built(2, 0), built(2, 1), built(3, 0)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a[k], b[k]) for k in a)
    qkv = "stack.layers.1.attention.qkv.weight"
    assert torch.equal(a[qkv], deep[qkv]) and not torch.equal(a[qkv], c[qkv])
    assert abs(float(a[qkv].std()) - 0.02) < 1e-3
    assert abs(float(a["stack.layers.0.mlp.down.weight"].std()) - 0.01) < 1e-3  # 0.02 / sqrt(2 · 2)
    zero = ModelConfig(vocab_size=50, hidden_size=32, zero_init_projections=True)
    assert not Transformer(zero, [Head("lm")]).stack.layers[0].attention.out.weight.any()
