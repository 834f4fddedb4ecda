from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from unmask.batch import Batch, starts
from unmask.cli import app
from unmask.data.collate import collate
from unmask.errors import UserError
from unmask.evaluation.generate import continues, generate, generations
from unmask.evaluation.plans import layout_of
from unmask.evaluation.sampling import Sampling, choose
from unmask.lm import LM
from unmask.objectives.layout import Pairs, Ragged
from unmask.train.devices import to_device

from .helpers import model_of, tokenizer

PROMPTS = ["the cat sat", "a", "the dog sat on the l"]
WRITERS = ("causal", "prefix", "prefix-encdec", "spans", "spans-prefix")


def greedy_without_cache(lm: LM, prompt: str, steps: int) -> tuple[int, ...]:
    """Every step runs the whole pair through the objective's layout, as training does."""
    assert lm.objective is not None
    v, ids = lm.vocabulary, lm.tokenizer.encode(prompt)  # type: ignore[union-attr]
    spans = lm.objective.plan == "infill"
    source = np.array([*ids, v.sentinels[0], v.eos] if spans else ids)
    target = [int(v.sentinels[0])] if spans else []
    ends = {int(v.eos or 0), *([int(v.sentinels[1])] if spans else [])}
    allowed = [*v.ordinary.tolist(), *ends]
    written: list[int] = []
    for _ in range(steps):
        whole = np.array([*target, *written, 0])
        pair = Pairs(Ragged(source, starts([len(source)])), Ragged(whole, starts([len(whole)])))
        batch: Batch = to_device(collate({"x": layout_of(lm.objective)(pair, v)}, {"x": ()}), torch.device("cpu"))
        with torch.no_grad():
            state = lm.network(batch)["stream"][:, -1:]
            logits = lm.network.heads["lm"].project(lm.network.heads["lm"].features(state))[0]  # type: ignore
        best = allowed[int(logits[allowed].argmax())]
        if best in ends:
            break
        written.append(best)
    return tuple(written)


@pytest.mark.parametrize("positions", ["learned", "rotary", "t5", "sinusoidal"])
@pytest.mark.parametrize("name", WRITERS)
def test_f13_cached_decoding_equals_full_decoding(name: str, positions: str) -> None:
    lm = model_of(name, positions=positions)
    together = generations(lm, PROMPTS, 12)
    for prompt, g in zip(PROMPTS, together, strict=True):
        assert g.ids == greedy_without_cache(lm, prompt, 12)


@pytest.mark.parametrize("name", WRITERS)
def test_a_sample_depends_on_no_batch(name: str) -> None:
    lm, prompts = model_of(name), PROMPTS * 2
    texts = [generate(lm, prompts, 10, temperature=1.0, top_k=40, seed=5, batch_size=b) for b in (1, 2, 6)]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0] != generate(lm, prompts, 10, temperature=1.0, top_k=40, seed=6)
    assert texts[0][:3] != texts[0][3:]  # the same prompt again is another sample


def test_d18_padded_rows_and_control_tokens_are_never_written() -> None:
    v = tokenizer().vocabulary
    lm = model_of("causal", vocab_size=v.size + 40, head_bias=True, max_position=200)
    head: Any = lm.network.heads["lm"]
    with torch.no_grad():
        head.bias[v.size :] = 30.0
        head.bias[v.specials] = 20.0
        head.bias[v.need("eos")] = -30.0
    for g in generations(lm, PROMPTS, 40, Sampling(temperature=1.5)):
        assert len(g.ids) == 40 and not v.is_special[list(g.ids)].any() and g.stopped == "tokens"


def test_a_text_stops_at_its_end_at_a_stop_string_and_at_the_last_position() -> None:
    lm = model_of("causal", head_bias=True)
    head: Any = lm.network.heads["lm"]
    full = generations(lm, "the cat", 1000)[0]
    assert full.stopped == "positions" and len(full.ids) == 48 - len("[the cat") + 1
    stop = full.text[3:5]
    assert generate(lm, "the cat", 1000, stop=stop) == [full.text[: full.text.find(stop)]]
    assert generations(lm, "the cat", 1000, stop=[stop])[0].stopped == "stop"
    with torch.no_grad():
        head.bias[lm.vocabulary.need("eos")] = 100.0
    ended = generations(lm, "the cat", 1000)[0]
    assert (ended.text, ended.ids, ended.stopped) == ("", (), "end") and ended.logprob > -1e-3


def test_rows_that_end_leave_the_batch_and_the_others_go_on() -> None:
    lm = model_of("causal")
    alone = [generations(lm, p, 60)[0] for p in PROMPTS]
    together = generations(lm, PROMPTS, 60)
    assert [g.ids for g in together] == [g.ids for g in alone]
    assert len({len(g.ids) for g in together}) == 3  # unequal prompts reach the last position at different steps


def test_spans_start_with_sentinel_0_and_stop_at_sentinel_1() -> None:
    lm = model_of("spans", head_bias=True)
    head: Any = lm.network.heads["lm"]
    with torch.no_grad():
        head.bias[lm.vocabulary.sentinels[1].item()] = 100.0
    g = generations(lm, "the cat", 20)[0]
    assert g.ids == () and g.stopped == "end"


def test_choosing_follows_temperature_top_k_and_top_p() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf]]).expand(4000, -1)
    p = logits[0].double().softmax(-1).numpy()
    every = np.arange(4000)

    def shares(**sampling: Any) -> np.ndarray:
        tokens = choose(logits, Sampling(**sampling), every, 0).numpy()
        return np.bincount(tokens, minlength=5) / 4000

    np.testing.assert_allclose(shares(temperature=1.0), p, atol=0.03)
    np.testing.assert_allclose(shares(temperature=1.0, top_k=2)[:2], p[:2] / p[:2].sum(), atol=0.03)
    assert shares(temperature=1.0, top_k=2)[2:].sum() == 0
    assert shares(temperature=1.0, top_p=p[0] + 0.01)[2:].sum() == 0  # the second is needed to reach p
    assert shares(temperature=1.0, top_p=p[0] - 0.01)[0] == 1
    assert shares(temperature=0.0)[0] == 1 and shares(temperature=0.01)[0] == 1
    hot = np.exp(np.array([2.0, 1.0, 0.0, -1.0]) / 3)
    np.testing.assert_allclose(shares(temperature=3.0)[:4], hot / hot.sum(), atol=0.03)


def test_what_cannot_be_written_is_said() -> None:
    lm = model_of("causal")
    for settings, message in (
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
    ):
        with pytest.raises(UserError, match=message):
            generate(lm, "a", **settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a prompt of 61 tokens"):
        generate(lm, "x" * 60)
    with pytest.raises(UserError, match="no tokenizer"):
        generate(replace(lm, tokenizer=None), "a")


# ---------------------------------------------------------------- the command line


def typed(monkeypatch: pytest.MonkeyPatch, lm: LM, *words: str) -> Result:
    monkeypatch.setattr("unmask.loading.load", lambda run, **given: lm)
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize(
    ("name", "apart"),
    [("spans", True), ("spans-prefix", True), ("causal", False), ("masked", False), ("prefix-encdec", False)],
)
def test_an_answer_stands_on_a_line_of_its_own(name: str, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What continues no text of the prompt's (two stacks, a separator) is not glued to it; JSON stays as it is."""
    lm = model_of(name)
    (text,) = lm.generate("the cat", 6)
    plain = typed(monkeypatch, lm, "generate", "r", "the cat", "--max-tokens", "6")
    assert plain.stdout == ("the cat\n" if apart else "the cat") + text + "\n" and continues(lm) is not apart
    one = json.loads(typed(monkeypatch, lm, "generate", "r", "the cat", "--max-tokens", "6", "--json").stdout)
    assert (one["prompt"], one["text"]) == ("the cat", text)


def test_numbers_below_one_and_long_texts_are_named_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_of("masked")
    for option in ("--length", "--steps", "--block", "--max-tokens"):
        refused = typed(monkeypatch, lm, "generate", "r", "the cat", option, "0")
        assert refused.exit_code == 2 and option in refused.output and "1" in refused.output
    long = typed(monkeypatch, lm, "generate", "r", "the cat", "--length", "400")
    assert long.exit_code == 0 and "before length=400" in long.stderr and "max_tokens" not in long.stderr
    assert "before max_tokens=400" in typed(monkeypatch, lm, "generate", "r", "the cat", "--max-tokens", "400").stderr
    with pytest.raises(UserError, match="length=0 must be at least 1"):
        lm.generate("the cat", length=0)


def test_an_empty_text_is_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_of("causal")
    refused = typed(monkeypatch, lm, "score", "r", "the cat", "")
    assert isinstance(refused.exception, UserError) and "an empty text has no token to score" in str(refused.exception)
    assert typed(monkeypatch, lm, "score", "r", "", "--end").exit_code == 0
