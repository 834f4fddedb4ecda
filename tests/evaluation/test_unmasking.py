"""Iterative unmasking against loops by hand, and on a stub whose answers are known."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from unmask.batch import Batch
from unmask.cli import app
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.evaluation.generate import generate, generations, n_best
from unmask.evaluation.sampling import Sampling
from unmask.evaluation.unmasking import Unmasking, unmask
from unmask.lm import LM
from unmask.objectives import Diffusion, Masked

from .helpers import model_of, tokenizer
from .test_lm import written_run

PROMPTS = ["the cat sat", "a", "", "the dog sat on the l"]
ORDERS = ("confidence", "random", "mask_predict")


class Known(nn.Module):
    """Place t of a row says token `says[t]` with a certainty that grows with `sure[t]` and with what is unmasked."""

    def __init__(self, config: ModelConfig, mask: int, says: np.ndarray, sure: np.ndarray, gain: float = 0.0) -> None:
        super().__init__()
        self.config, self.mask, self.gain = config, mask, gain
        self.says, self.sure, self.seen = torch.from_numpy(says), torch.from_numpy(sure), list[list[int]]()
        self.heads = {"lm": self}

    def forward(self, batch: Batch, generator: Any = None, at: Any = None) -> dict[str, Tensor]:
        tokens = batch.stream.tokens
        self.seen += tokens.tolist()
        at = batch.stream.positions.long()
        known = (tokens != self.mask).sum(1, keepdim=True).expand_as(at)
        return {"stream": torch.stack([self.says[at].double(), self.sure[at] + self.gain * known], -1).float()}

    def features(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        return x[:, 0]

    def project(self, x: Tensor) -> Tensor:
        out = torch.zeros(len(x), self.config.vocab_size)
        return out.scatter(1, x[:, :1].long(), x[:, 1:])


def known(length: int = 8, gain: float = 0.0) -> tuple[LM, np.ndarray]:
    """A model of known answers and the order in which it is sure of the places behind [CLS]."""
    words = tokenizer()
    rng = np.random.default_rng(2)
    says = rng.choice(words.encode("abcdefghijklmnopqrstuvwxyz"), 40)
    sure = 1.0 + rng.permutation(40) / 4
    config = ModelConfig(vocab_size=words.vocabulary.size, visibility="bidirectional", max_position=40)
    network: Any = Known(config, words.vocabulary.need("mask"), says, sure, gain)
    return LM(network, 40, words, Diffusion()), np.argsort(-sure[1 : 1 + length])


def by_hand(
    lm: LM, prompt: str, length: int, order: str, steps: int, block: int, asked: Any = None
) -> tuple[Any, float]:
    """Greedy unmasking of one text with Python lists, a place at a time: its tokens and their log-probability.

    asked(lm, text, hidden, place) is the model's (V,) log-probabilities; by default those of a masked model.
    """
    v, ids, asked = lm.vocabulary, lm.tokenizer.encode(prompt).tolist(), asked or masked_by_hand  # type: ignore[union-attr]
    text, first, ordinary = [*ids, *[0] * length], len(ids), v.ordinary.tolist()
    block = block or length
    parts = [range(b, min(b + block, length)) for b in range(0, length, block)]
    sure: dict[int, float] = {}
    for number, part in enumerate(parts):
        mine = steps // len(parts) + (number < steps % len(parts)) if steps else 10 if "mask" in order else len(part)
        masked, later = set(part), set(range(part.stop, length))
        for t in range(1, mine + 1):
            hidden = {first + i for i in masked | later}
            said = {i: asked(lm, text, hidden, first + i) for i in masked}
            for i, log_p in said.items():
                text[first + i] = max(ordinary, key=lambda x, p=log_p: float(p[x]))  # type: ignore[misc]
                sure[i] = float(log_p[text[first + i]])
            if order == "mask_predict":
                masked = set(sorted(part, key=lambda i: sure[i])[: len(part) * (mine - t) // mine])
            else:
                each, more = divmod(len(part), mine)
                stay = max(len(part) - t * each - min(t, more), 0)
                masked = set(sorted(masked, key=lambda i: sure[i])[:stay])
            if not masked:
                break
    return tuple(text[first:]), sum(sure.values())


def masked_by_hand(lm: LM, text: list[int], hidden: set[int], place: int) -> Tensor:
    """What a masked model says of one place: [CLS] text [SEP], [MASK] for all that is hidden."""
    v = lm.vocabulary
    row = [v.need("cls"), *[v.need("mask") if i in hidden else t for i, t in enumerate(text)], v.need("sep")]
    return lm.logits([row])[0, place + 1].double().log_softmax(-1)


# ---------------------------------------------------------------- exact on known conditionals


def test_the_surest_place_is_written_first_and_stays() -> None:
    lm, order = known()
    g = unmask(lm, [""], Unmasking(), 8)[0]
    network: Any = lm.network
    assert list(g.ids) == network.says[1:9].tolist() and g.text == tokenizer().decode(list(g.ids))
    masked = [{i for i in range(8) if row[1 + i] == network.mask} for row in network.seen]
    assert masked == [set(order[k:].tolist()) for k in range(8)]
    p = network.sure[1:9].exp() / (network.sure[1:9].exp() + network.config.vocab_size - 1)
    assert g.logprob == pytest.approx(float(p.log().sum()), rel=1e-5)


def test_places_fall_evenly_and_blocks_go_from_left_to_right() -> None:
    lm, _ = known(gain=0.01)
    network: Any = lm.network
    for rule, expected in (
        (Unmasking(steps=3), [8, 5, 2]),  # 3, 3 and 2 are written
        (Unmasking("random", 3), [8, 5, 2]),
        (Unmasking("mask_predict", 4), [8, 6, 4, 2]),
        (Unmasking(block=4, steps=4), [8, 6, 4, 2]),
        (Unmasking(steps=1), [8]),
    ):
        network.seen.clear()
        unmask(lm, [""], rule, 8)
        assert [row.count(network.mask) for row in network.seen] == expected
        if rule.block:
            assert all(row[5:9] == [network.mask] * 4 for row in network.seen[:2])
            assert network.mask not in network.seen[2][1:5]


def test_mask_predict_masks_what_was_written_again_and_confidence_does_not() -> None:
    """The network grows surer as it sees more: what was written first is the least sure, and is asked again."""
    lm, _ = known(gain=3.0)
    network: Any = lm.network
    again = {}
    for order in ORDERS:
        network.seen.clear()
        unmask(lm, [""], Unmasking(order, 4), 8)
        masked = [{i for i in range(1, 9) if row[i] == network.mask} for row in network.seen]
        again[order] = any(b - a for a, b in itertools.pairwise(masked))
    assert again == {"confidence": False, "random": False, "mask_predict": True}


# ---------------------------------------------------------------- a real network, by hand


@pytest.mark.parametrize(("order", "steps", "block"), [
    ("confidence", 0, 0), ("confidence", 4, 0), ("confidence", 0, 5), ("confidence", 5, 4),
    ("mask_predict", 0, 0), ("mask_predict", 4, 0), ("mask_predict", 6, 5),
])  # fmt: skip
def test_greedy_unmasking_equals_a_loop_by_hand(order: Any, steps: int, block: int) -> None:
    lm = model_of("masked")
    found = unmask(lm, PROMPTS, Unmasking(order, steps, block), 11)
    for prompt, g in zip(PROMPTS, found, strict=True):
        ids, logprob = by_hand(lm, prompt, 11, order, steps, block)
        assert g.ids == ids and g.logprob == pytest.approx(logprob, rel=1e-4) and g.stopped == "tokens"


def test_as_many_steps_as_tokens_are_the_default() -> None:
    lm = model_of("masked")
    for order in ("confidence", "random"):
        assert unmask(lm, PROMPTS, Unmasking(order), 9) == unmask(lm, PROMPTS, Unmasking(order, 9), 9)
        assert unmask(lm, PROMPTS, Unmasking(order, 50), 9) == unmask(lm, PROMPTS, Unmasking(order, 9), 9)
    assert generations(lm, PROMPTS, 9) == unmask(lm, PROMPTS, Unmasking(), 9)


# ---------------------------------------------------------------- draws


@pytest.mark.parametrize("order", ORDERS)
def test_a_text_depends_on_the_seed_and_on_no_batch(order: Any) -> None:
    lm, prompts = model_of("masked"), PROMPTS * 2
    rule = Unmasking(order, 4, 6, Sampling(temperature=1.0, top_k=40, seed=5))
    texts = [[g.ids for g in unmask(lm, prompts, rule, 10, batch_size=b)] for b in (1, 3, 8)]
    assert texts[0] == texts[1] == texts[2]
    other = unmask(lm, prompts, replace(rule, sampling=replace(rule.sampling, seed=6)), 10)
    assert all(a != g.ids for a, g in zip(texts[0], other, strict=True))
    assert all(a != b for a, b in zip(texts[0][:4], texts[0][4:], strict=True))  # the same prompt is another sample


def test_a_random_order_is_even_over_places_and_moves_with_seed_and_sample() -> None:
    lm, _ = known()
    network: Any = lm.network
    for seed in range(3):
        network.seen.clear()
        unmask(lm, [""] * 300, Unmasking("random", 4, sampling=Sampling(seed=seed)), 8, batch_size=300)
        second = np.array(network.seen)[300:600, 1:9] != network.mask
        assert (second.sum(1) == 2).all() and abs(second.mean(0) - 0.25).max() < 3.9 * np.sqrt(0.25 * 0.75 / 300)
        assert len({tuple(row) for row in second.tolist()}) > 20


def test_draws_follow_the_distribution_and_steps_have_draws_of_their_own() -> None:
    lm, _ = known()
    network: Any = lm.network
    network.sure = torch.full((40,), 4.0, dtype=torch.float64)
    rule = Unmasking("mask_predict", 3, sampling=Sampling(temperature=1.0, seed=1))
    ids = np.array([g.ids for g in unmask(lm, [""] * 400, rule, 8, batch_size=400)])
    ordinary = len(lm.vocabulary.ordinary)
    first = [g.ids for g in unmask(lm, [""] * 400, replace(rule, steps=1), 8, batch_size=400)]
    p = np.exp(4) / (np.exp(4) + ordinary - 1)
    hits = (np.array(first) == network.says[1:9].numpy()).mean()
    assert abs(hits - p) < 4 * np.sqrt(p * (1 - p) / 3200)
    assert (ids != np.array(first)).any(1).mean() > 0.9


@pytest.mark.parametrize("order", ORDERS)
def test_control_tokens_and_padded_rows_are_never_written(order: Any) -> None:
    v = tokenizer().vocabulary
    lm = model_of("masked", vocab_size=v.size + 40, head_bias=True)
    head: Any = lm.network.heads["lm"]
    with torch.no_grad():
        head.bias[v.size :] = 30.0
        head.bias[v.specials] = 20.0
    for g in unmask(lm, PROMPTS, Unmasking(order, 5, sampling=Sampling(temperature=1.5)), 12):
        assert len(g.ids) == 12 and max(g.ids) < v.size and not v.is_special[list(g.ids)].any()


# ---------------------------------------------------------------- lengths, stops and what does not fit


def test_a_text_ends_at_its_length_a_stop_string_or_the_trained_length() -> None:
    lm = model_of("masked")
    full = generations(lm, "the cat", 1000)[0]
    assert full.stopped == "positions" and len(full.ids) == 48 - len("the cat") - 2
    both = generations(lm, ["the cat", "a"], 39)
    assert [(len(g.ids), g.stopped) for g in both] == [(39, "tokens"), (39, "tokens")]
    stop = full.text[3:5]
    cut = generations(lm, "the cat", 1000, stop=[stop])[0]
    assert cut.stopped == "stop" and cut.text == full.text[: full.text.find(stop)] and cut.ids == full.ids
    with pytest.raises(UserError, match=r"a prompt of 46 tokens .* goes beyond the 46 that"):
        generate(lm, "x" * 46)


def test_generate_takes_steps_order_block_and_length() -> None:
    lm = model_of("masked")
    assert lm.can("generate") and replace(lm, objective=Diffusion()).can("generate")
    texts = [g.text for g in unmask(lm, PROMPTS, Unmasking("random", 3, 5, Sampling(0.8, seed=4)), 10)]
    given: Any = {"steps": 3, "order": "random", "block": 5, "temperature": 0.8, "seed": 4}
    assert lm.generate(PROMPTS, length=10, **given) == texts == generate(lm, PROMPTS, 10, **given)
    for settings, message in (
        ({"order": "sure"}, "order=sure is not known"),
        ({"steps": -1}, "steps=-1 must be at least 1"),
        ({"block": -2}, "block=-2 must be"),
        ({"length": 0}, "length=0 must be at least 1"),
        ({"min_tokens": 3}, "drop min_tokens"),
        ({"beams": 3}, "a beam search goes from left to right"),
        ({"beams": 3, "steps": 4}, "leave out steps, order, block and length"),
    ):
        with pytest.raises(UserError, match=message):
            lm.generate("a", **settings)  # type: ignore[arg-type]
    for settings in ({"steps": 4}, {"order": "confidence"}, {"block": 2}, {"length": 9}):
        with pytest.raises(UserError, match="writes from left to right: leave out steps, order, block and length"):
            model_of("causal").generate("a", **settings)  # type: ignore[arg-type]
    assert n_best(lm, "a", Unmasking(steps=2), max_tokens=4)[0] == unmask(lm, ["a"], Unmasking(steps=2), 4)


def test_the_command_line_writes_with_a_masked_model(tmp_path: Any) -> None:
    run = written_run(model_of("masked"), tmp_path / "run")
    options = ["--steps", "3", "--order", "mask_predict", "--length", "7", "--json"]
    result = CliRunner().invoke(app, ["generate", str(run), "the cat", *options])
    assert result.exit_code == 0, result.output
    expected = unmask(model_of("masked"), ["the cat"], Unmasking("mask_predict", 3), 7)[0]
    assert json.loads(result.stdout) == {"prompt": "the cat", "text": expected.text, "stopped": "tokens"}


def test_masked_models_fill_and_score_as_diffusion_too() -> None:
    lm = model_of("masked")
    other = replace(lm, objective=Diffusion())
    assert other.fill("the [MASK] sat") == lm.fill("the [MASK] sat") and isinstance(lm.objective, Masked)
