"""Values published in the unit tests of T5 and seqio (Apache-2.0), read from the shared data folder.

Not expressible: one sentinel for all spans, of which the parts that our pairs share are compared; and a loss on the
inputs of a prefix LM (seqio's `loss_on_targets_only: false`), which shows what it asks for: ours is causal there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.batch import Batch, Rows, visible
from unmask.data.collate import Placement, collate, one_per_row
from unmask.objectives import SpanCorruption
from unmask.objectives.base import LM, Shape, Sizes
from unmask.objectives.denoise import corrupt
from unmask.objectives.layout import Layout, Pairs, Ragged
from unmask.objectives.spans import place_spans
from unmask.objectives.study import dropped, masks

pytestmark = pytest.mark.shared

EOS = 1


@dataclass(frozen=True)
class T5:
    """T5's ids: 0 pads and starts the decoder, 1 ends a text, sentinels count down from the last id."""

    size: int
    sentinels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    ordinary: np.ndarray = field(default_factory=lambda: np.arange(2, 20, dtype=np.int32))

    def need(self, role: str) -> int:
        return {"pad": 0, "bos": 0, "eos": EOS, "mask": self.size - 1}[role]

    @staticmethod
    def of(size: int, sentinels: int = 10) -> T5:
        return T5(size, np.arange(size - 1, size - 1 - sentinels, -1, dtype=np.int32))


@pytest.fixture(scope="module")
def t5(shared_data: Path) -> dict[str, Any]:
    return json.loads((shared_data / "conformance" / "t5_objectives.json").read_text())


@pytest.fixture(scope="module")
def seqio(shared_data: Path) -> dict[str, Any]:
    return json.loads((shared_data / "conformance" / "seqio_packing.json").read_text())


def corrupted(tokens: list[int], noise: list[int], vocabulary: T5, final: bool = False) -> tuple[list[int], list[int]]:
    """Source and target for a given mask, without their end tokens."""
    pair = corrupt(Rows.of([tokens]), np.array(noise, bool), final, vocabulary)
    assert pair.source.tokens[-1] == pair.target.tokens[-1] == EOS
    return pair.source.tokens[:-1].tolist(), pair.target.tokens[:-1].tolist()


# ---------------------------------------------------------------- T5's noise


def test_lengths_of_the_random_spans_helper(t5: dict[str, Any]) -> None:
    args = t5["random_spans_helper"]["args"]
    for case in t5["random_spans_helper"]["cases"]:
        objective = SpanCorruption(
            noise_density=args["noise_density"],
            mean_span=case["mean_noise_span_length"],
            final_sentinel=False,
            edges="official",
        )
        shape = objective.shape(args["inputs_length"])
        assert [objective.room(shape), shape.stream] == case["expect"]


def test_sentinels_for_a_given_mask(t5: dict[str, Any]) -> None:
    given = t5["deterministic"]
    vocabulary, tokens, noise = T5.of(given["vocab_size"]), given["tokens"], given["noise_mask"]
    cases = given["cases"]
    source, target = corrupted(tokens, noise, vocabulary)
    rest, _ = corrupted(tokens, [1 - x for x in noise], vocabulary)
    assert source == cases["noise_span_to_unique_sentinel"]
    assert rest == cases["nonnoise_span_to_unique_sentinel(derived)"]
    sentinels = set(vocabulary.sentinels.tolist())
    assert [x for x in source if x not in sentinels] == cases["drop_noise_tokens"]
    assert [x for x in target if x not in sentinels] == cases["drop_nonnoise_tokens"]
    kept = dropped(Rows.of([tokens]), np.array(noise, bool), vocabulary)
    assert kept.source.tokens.tolist() == [*cases["drop_noise_tokens"], EOS]
    assert kept.target.tokens.tolist() == [*cases["drop_nonnoise_tokens"], EOS]
    at = np.flatnonzero(noise)
    one = np.array(tokens)
    one[at] = masks(np.array([0, len(tokens)]), np.zeros(1, np.uint64), at, 0.0, vocabulary)
    assert one.tolist() == cases["noise_token_to_sentinel"]
    assert [999 if x in sentinels else x for x in source] == cases["noise_span_to_sentinel"]
    assert [999 if x in sentinels else x for x in rest] == cases["nonnoise_span_to_sentinel"]


def test_denoise(t5: dict[str, Any]) -> None:
    case = t5["denoise"]
    vocabulary = T5.of(case["first_sentinel"] + 1)
    assert corrupted(case["tokens"], case["mask_implied"], vocabulary) == (case["inputs"], case["targets"])
    clean = case["no_corruption"]
    nothing = [0] * len(case["tokens"])
    # T5 spells out the one stretch of kept text as one sentinel, which is the paper's final sentinel.
    assert corrupted(case["tokens"], nothing, vocabulary, final=True) == (clean["inputs"], clean["targets"])


def test_counts_and_edges_of_the_random_spans_noise_mask(t5: dict[str, Any]) -> None:
    some, none = t5["random_spans_noise_mask"]["properties"]
    objective = SpanCorruption(noise_density=some["noise_density"], mean_span=some["mean_noise_span_length"])
    length = np.full(500, some["length"])
    noise, spans = objective.counts(length)
    assert set(noise) == {some["noise_tokens"]} and set(spans) == {some["noise_spans"]}
    key = np.arange(500).astype(np.uint64)
    mask = place_spans(length, noise, spans, key, "official").reshape(500, -1)
    assert not mask[:, 0].any() and mask[:, -1].all() and (mask.sum(1) == some["noise_tokens"]).all()
    zero = np.zeros_like(length)
    assert none["noise_tokens"] == 0 == place_spans(length, zero, zero, key, "official").sum()


def test_the_seeded_upstream_mask_has_our_counts(t5: dict[str, Any]) -> None:
    note = t5["random_spans_noise_mask"]["note"]
    mask = np.array(json.loads(note[note.index("[") :]), bool)
    noise, spans = SpanCorruption(noise_density=0.25, mean_span=2).counts(np.array([len(mask)]))
    assert mask.sum() == noise[0] and (mask & ~np.append(False, mask[:-1])).sum() == spans[0]


def test_average_density(t5: dict[str, Any]) -> None:
    want = t5["random_spans_noise_mask"]["density_avg"]
    lengths = np.arange(50, 550)
    noise, _ = SpanCorruption(noise_density=want["noise_density"]).counts(lengths)
    assert noise.sum() / lengths.sum() == pytest.approx(want["noise_density"], abs=want["atol"])


# ---------------------------------------------------------------- seqio's layouts and packing


def batch_of(pairs: list[tuple[list[int], list[int]]], kind: str, shape: Shape, packed: bool = True) -> Batch:
    """The pairs in one row, in the given order, or one a row."""
    source, target = (Rows.of([p[k] for p in pairs]) for k in (0, 1))
    e = Layout(kind=kind)(Pairs(Ragged(source.tokens, source.start), Ragged(target.tokens, target.start)), T5.of(100))
    sizes = Layout(kind=kind).sizes(source.lengths, target.lengths)
    return collate({"x": e}, {"x": [LM]}, in_one_row(sizes) if packed else one_per_row(sizes), shape=shape)


def in_one_row(sizes: Sizes) -> Placement:
    zero = np.zeros(len(sizes.stream), np.int64)
    before = lambda n: zero if n is None else np.cumsum(n) - n
    return Placement(zero, before(sizes.stream), before(sizes.source), 1)


def scattered(batch: Batch, what: str) -> list[int]:
    """Target values or weights over the positions of the first row."""
    t, out = batch.targets["x", "lm"], np.zeros(batch.stream.tokens.shape[1], int)
    real = t.weight > 0
    out[t.index[real]] = getattr(t, what)[real]
    return out.tolist()


def prefix_of(batch: Batch) -> list[int]:
    """1 at the keys that a position before them sees too, or that open a text: seqio's `decoder_causal_attention`."""
    s = batch.stream
    v = visible(s.block, s.horizon, s.block, s.reveal)[0]
    first = (s.positions[0] == 0) & (s.block[0] > 0)
    return [int(s.block[0, k] > 0 and (first[k] or v[:k, k].any())) for k in range(v.shape[0])]


def test_encoder_decoder_packed(seqio: dict[str, Any]) -> None:
    case, want = seqio["encdec_packed"], seqio["encdec_packed"]["expect"]
    shape = Shape(case["lengths"]["targets"], case["lengths"]["inputs"])
    batch = batch_of([(e["inputs"], e["targets"]) for e in case["examples"]], "encdec", shape)
    assert batch.source.tokens[0].tolist() == want["encoder_input_tokens"]
    assert batch.source.block[0].tolist() == want["encoder_segment_ids"]
    assert batch.source.positions[0].tolist() == want["encoder_positions"]
    assert batch.stream.tokens[0].tolist() == want["decoder_input_tokens"]
    assert batch.stream.block[0].tolist() == want["decoder_segment_ids"]
    assert batch.stream.positions[0].tolist() == want["decoder_positions"]
    assert scattered(batch, "value") == want["decoder_target_tokens"]
    assert scattered(batch, "weight") == want["decoder_loss_weights"]


@pytest.mark.parametrize("number", [0, 1])
def test_prefix_lm_unpacked(seqio: dict[str, Any], number: int) -> None:
    case = seqio["prefix_lm_unpacked"][number]
    want, inputs, targets = case["expect"], case["inputs"], case["targets"]
    shape = Shape(case["lengths"]["inputs"] + case["lengths"]["targets"])
    batch = batch_of([(inputs, targets)], "prefix", shape)
    # seqio feeds the last token too, where nothing is asked of it; ours stops before.
    real = len(inputs) + len(targets)
    assert batch.stream.tokens[0, :real].tolist() == want["decoder_input_tokens"][:real]
    assert (batch.stream.block[0] > 0).sum() == real
    assert scattered(batch, "weight") == want["decoder_loss_weights"]
    asked = [v * w for v, w in zip(want["decoder_target_tokens"], want["decoder_loss_weights"], strict=True)]
    assert scattered(batch, "value") == asked
    assert prefix_of(batch)[:real] == want["decoder_causal_attention"][:real]


def test_loss_on_the_inputs_too(seqio: dict[str, Any]) -> None:
    case = next(c for c in seqio["prefix_lm_unpacked"] if not c.get("loss_on_targets_only", True))
    layout = Layout(kind="causal", loss="all")
    source, target = Rows.of([case["inputs"]]), Rows.of([case["targets"]])
    e = layout(Pairs(Ragged(source.tokens, source.start), Ragged(target.tokens, target.start)), T5.of(100))
    place = one_per_row(layout.sizes(source.lengths, target.lengths))
    shape = Shape(sum(case["lengths"].values()))
    batch = collate({"x": e}, {"x": [LM]}, place, shape=shape)
    assert scattered(batch, "weight") == case["expect"]["decoder_loss_weights"]
    with pytest.raises(ValueError, match="what shows it"):
        Layout(kind="prefix", loss="all")


def test_prefix_lm_packed(seqio: dict[str, Any]) -> None:
    case, want = seqio["prefix_lm_packed"], seqio["prefix_lm_packed"]["expect"]
    shape = Shape(case["lengths"]["inputs"] + case["lengths"]["targets"])
    batch = batch_of([(e["inputs"], e["targets"]) for e in case["examples"]], "prefix", shape)
    assert batch.stream.tokens[0].tolist() == want["decoder_input_tokens"]
    assert batch.stream.block[0].tolist() == want["decoder_segment_ids"]
    assert batch.stream.positions[0].tolist() == want["decoder_positions"]
    assert scattered(batch, "weight") == want["decoder_loss_weights"]
    asked = [v * w for v, w in zip(want["decoder_target_tokens"], want["decoder_loss_weights"], strict=True)]
    assert scattered(batch, "value") == asked
    assert prefix_of(batch) == want["decoder_causal_attention"]


def test_pack_prefix_lm_encoder_decoder(t5: dict[str, Any]) -> None:
    full, padded = t5["pack_prefix_lm_encoder_decoder"]
    want = full["expect"]
    split = list(zip(full["examples"], full["split_points"], strict=True))
    batch = batch_of([(x[:k], x[k:]) for x, k in split], "encdec", Shape(8, 8))
    assert batch.source.tokens[0].tolist() == want["encoder_input_tokens"]
    assert batch.source.block[0].tolist() == want["encoder_segment_ids"]
    assert batch.source.positions[0].tolist() == want["encoder_positions"]
    assert batch.stream.tokens[0].tolist() == want["decoder_input_tokens"]
    assert batch.stream.block[0].tolist() == want["decoder_segment_ids"]
    assert batch.stream.positions[0].tolist() == want["decoder_positions"]
    assert scattered(batch, "value") == want["decoder_target_tokens"]
    assert scattered(batch, "weight") == want["decoder_loss_weights"]

    # Texts that came with padding (id 0): ours has none inside an example, so what is asked is compared alone.
    want = padded["expect"]
    pairs = [
        ([t for t in x[:k] if t], [t for t in x[k:] if t]) for x, k in zip(padded["examples"], [3, 5], strict=True)
    ]
    batch = batch_of(pairs, "encdec", Shape(8, 8))
    asked = np.array(want["decoder_loss_weights"], bool)
    t = batch.targets["x", "lm"]
    real = t.weight > 0
    assert batch.source.tokens[0].tolist() == want["encoder_input_tokens"]
    assert t.value[real].tolist() == np.array(want["decoder_target_tokens"])[asked].tolist()
    assert batch.stream.tokens.ravel()[t.index[real]].tolist() == np.array(want["decoder_input_tokens"])[asked].tolist()


def test_pack_prefix_lm_decoder_only(t5: dict[str, Any]) -> None:
    for case in t5["pack_prefix_lm_decoder_only"]:
        k, tokens = case["split"], [x for x in case["tokens"] if x]
        batch = batch_of([(tokens[:k], tokens[k:])], "prefix", Shape(len(case["tokens"])))
        real = len(tokens)
        assert batch.stream.tokens[0, :real].tolist() == case["decoder_input_tokens"][:real]
        assert scattered(batch, "weight") == case["decoder_loss_weights"]
        assert prefix_of(batch) == case["decoder_causal_attention"]
