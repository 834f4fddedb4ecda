from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from unmask.errors import UserError
from unmask.evaluation.base import shape_of
from unmask.evaluation.generate import generations
from unmask.evaluation.items import Options
from unmask.evaluation.plans import room
from unmask.evaluation.suites import encode, evaluate
from unmask.lm import LM
from unmask.loading import import_run, load
from unmask.objectives.base import Shape
from unmask.train import checkpoint

from .helpers import OBJECTIVES, model_of, tokenizer

IDS = [[9, 10, 11, 12, 13, 14], [20, 21, 22, 23, 24, 25]]
BERT = {
    "family": "bert", "token_types": 2, "norm_position": "post", "norm_eps": 1e-12, "embedding_norm": True,
    "final_norm": False, "head_transform": True, "head_bias": True,
}  # fmt: skip
GPT2 = {"family": "gpt2", "activation": "gelu_tanh"}
T5 = {
    "family": "t5", "positions": "t5", "norm": "rms", "norm_eps": 1e-6, "activation": "geglu_tanh",
    "attention_bias": False, "mlp_bias": False, "attention_scale": 1.0, "tied_head": False,
}  # fmt: skip
FAMILIES = {"masked": BERT, "causal": GPT2, "prefix": GPT2, "spans": T5}


def written_run(lm: LM, place: Path, steps: tuple[int, ...] = (3,)) -> Path:
    """A run directory as `run.pretrain` leaves it, as far as loading goes."""
    place.mkdir()
    assert lm.tokenizer is not None and lm.objective is not None
    values = {
        "model": lm.config.model_dump(mode="json"),
        "objective": lm.objective.model_dump(mode="json"),
        "context": lm.context,
        "target_context": lm.target_context,
    }
    (place / "recipe.yaml").write_text(yaml.safe_dump(values))
    lm.tokenizer.save(place / "tokenizer.json")
    for step in steps:
        state = {"step": step, "best_step": steps[0]}
        checkpoint.write(place / "checkpoints", step, nn.ModuleDict({"model": lm.network}), {}, state)
    return place


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_run_loads_with_the_same_scores(name: str, tmp_path: Path) -> None:
    lm = model_of(name)
    again = load(written_run(lm, tmp_path / "run"), device="cpu")
    assert again.objective == lm.objective and again.config == lm.config and again.context == lm.context
    assert again.score(["the cat", "a"]) == lm.score(["the cat", "a"])


@pytest.mark.parametrize("name", FAMILIES)
def test_exports_load_again_and_equal_transformers(name: str, tmp_path: Path) -> None:
    lm = model_of(name, **FAMILIES[name])  # type: ignore[arg-type]
    report = lm.export(tmp_path / "hf")
    assert report["difference"] < 1e-4 and report["left_out"] == []
    again = load(tmp_path / "hf", device="cpu")
    assert again.objective == lm.objective and again.config.visibility == lm.config.visibility
    for a, b in zip(again.score(["the cat sat", "a"]), lm.score(["the cat sat", "a"]), strict=True):
        assert a.each == pytest.approx(b.each, rel=1e-4) and a.event == b.event
    with pytest.raises(UserError, match="already holds files"):
        lm.export(tmp_path / "hf")
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.encode("the cat", add_special_tokens=False) == tokenizer().encode("the cat").tolist()


def test_a_hugging_face_directory_becomes_a_run(tmp_path: Path) -> None:
    lm = model_of("spans", **T5)  # type: ignore[arg-type]
    lm.export(tmp_path / "hf")
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**settings, "decoder_start_token_id": 0}))
    hf = load(tmp_path / "hf", device="cpu")
    assert hf.vocabulary.bos == 0 and "[PAD]" not in hf.score("a")[0].event
    run = load(import_run(tmp_path / "hf", tmp_path / "run"), device="cpu")
    assert run.vocabulary.bos == 0 and run.objective == lm.objective
    assert run.score("the cat")[0].each == pytest.approx(hf.score("the cat")[0].each, rel=1e-6)
    assert run.score("the cat")[0].each != pytest.approx(lm.score("the cat")[0].each, rel=1e-3)  # another start token
    with pytest.raises(UserError, match="already exists"):
        import_run(tmp_path / "hf", tmp_path / "run")


def test_checkpoints_are_chosen_and_damaged_ones_passed_over(tmp_path: Path) -> None:
    lm = model_of("causal")
    place = written_run(lm, tmp_path / "run", steps=(4, 8))
    with torch.no_grad():
        lm.network.embedding.weight += 1
    state = {"step": 9, "best_step": 4}
    checkpoint.write(place / "checkpoints", 9, nn.ModuleDict({"model": lm.network}), {}, state)
    last, best, four = load(place), load(place, "best"), load(place, 4)
    assert torch.equal(best.network.embedding.weight, four.network.embedding.weight)
    assert not torch.equal(last.network.embedding.weight, four.network.embedding.weight)
    with pytest.raises(UserError, match="no checkpoint '5': its whole checkpoints are at steps 4, 8, 9"):
        load(place, 5)
    (place / "checkpoints" / "step-9" / "model.safetensors").write_bytes(b"half")
    assert torch.equal(load(place).network.embedding.weight, four.network.embedding.weight)


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "is no model"), (tmp_path / "absent", "does not exist")):
        with pytest.raises(UserError, match=message):
            load(path)
    run = tmp_path / "run"
    run.mkdir()
    for content, fault in (
        ("objective: {type: causal}\ncontext: 8", "model: Field required"),
        ("model: {hidden_size: 3.5}\nobjective: {type: causal}\ncontext: 8", "model.hidden_size: "),
        ("model: {}\nobjective: {type: causal}", "context: Field required"),
        ("- a", "valid dictionary"),
        ("{", ""),
    ):
        (run / "recipe.yaml").write_text(content)
        with pytest.raises(UserError, match=f"does not describe a run's model, objective and context: .*{fault}"):
            load(run)
    lm = model_of("causal")
    place = written_run(lm, tmp_path / "small", steps=())
    with pytest.raises(UserError, match="without a whole checkpoint"):
        load(place)


def test_d18_a_tokenizer_larger_than_the_table_is_refused(tmp_path: Path) -> None:
    size = tokenizer().vocabulary.size
    place = written_run(model_of("causal", vocab_size=size - 3), tmp_path / "run")
    with pytest.raises(UserError, match=f"{size} entries but the model's table {size - 3} rows"):
        load(place)
    assert load(written_run(model_of("causal", vocab_size=size + 21), tmp_path / "padded")).config.vocab_size > size


@pytest.mark.parametrize("positions", ["learned", "rotary", "t5"])
@pytest.mark.parametrize("name", ["masked", "causal", "prefix", "spans"])
def test_f12_logits_do_not_depend_on_padding(name: str, positions: str) -> None:
    lm = model_of(name, positions=positions)
    more = {"decoder_input_ids": [[2, 30, 31]]} if name == "spans" else {}
    short = lm.logits([IDS[0][:3]], **more)[0]
    both = {k: [*v, [2, 40, 41]] for k, v in more.items()}
    right = lm.logits([[*IDS[0][:3], 0, 0, 0], IDS[1]], [[1, 1, 1, 0, 0, 0], [1] * 6], **both)[0]
    left = lm.logits([[0, 0, 0, *IDS[0][:3]], IDS[1]], [[0, 0, 0, 1, 1, 1], [1] * 6], **both)[0]
    real = slice(0, 3)
    torch.testing.assert_close(right[real], short, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(left[slice(0, 3) if more else slice(3, 6)], short, rtol=1e-4, atol=1e-5)


def test_f10_a_batch_needs_no_pad_token() -> None:
    """A causal model without a tokenizer, hence without a pad token: any filler under the mask gives the same."""
    lm = LM(model_of("causal").network, 32)
    texts = [list(range(5, 5 + n)) for n in (3, 9, 1, 6, 12, 2, 7, 4)]
    for filler in (0, 9, 41):
        ids = [[*t, *[filler] * (12 - len(t))] for t in texts]
        together = lm.logits(ids, [[1] * len(t) + [0] * (12 - len(t)) for t in texts])
        for row, text in zip(together, texts, strict=True):
            torch.testing.assert_close(row[: len(text)], lm.logits([text])[0], rtol=1e-4, atol=1e-5)


def test_f11_a_pad_id_without_a_mask_is_a_token() -> None:
    lm = model_of("masked")
    pad = lm.vocabulary.need("pad")
    seen = lm.logits([[9, 10, pad]])[0, 0]
    hidden = lm.logits([[9, 10, pad]], [[1, 1, 0]])[0, 0]
    assert not torch.allclose(seen, hidden, atol=1e-3)
    torch.testing.assert_close(hidden, lm.logits([[9, 10]])[0, 0], rtol=1e-4, atol=1e-5)


def test_logits_take_lists_arrays_and_tensors_and_name_what_is_wrong() -> None:
    lm = model_of("causal")
    a = lm.logits(IDS)
    assert a.shape == (2, 6, lm.config.vocab_size)
    assert torch.equal(a, lm.logits(np.array(IDS))) and torch.equal(a, lm.logits(torch.tensor(IDS)))
    torch.testing.assert_close(lm.logits(IDS[0]), a[:1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lm.logits([IDS[0][:4]])[0], a[0, :4], rtol=1e-4, atol=1e-5)  # causal
    prefix = model_of("prefix")
    whole, part = prefix.logits(IDS, prefix_length=6), prefix.logits(IDS, prefix_length=[2, 6])
    assert not torch.allclose(whole[0, 0], part[0, 0], atol=1e-3)
    torch.testing.assert_close(whole[1], part[1], rtol=1e-4, atol=1e-5)
    alone = prefix.logits(IDS)  # without a length, nothing sees what it must predict
    torch.testing.assert_close(alone, prefix.logits(IDS, prefix_length=1))
    torch.testing.assert_close(prefix.logits([IDS[0][:3]])[0], alone[0, :3], rtol=1e-4, atol=1e-5)
    for arguments, message in (
        (([[1, 2], [3]],), "rows of equal length"),
        (([[0.5]],), "whole numbers"),
        ((IDS, [[1, 1]]), r"attention_mask is \(1, 2\)"),
        ((IDS, None, None, IDS), "drop decoder_input_ids"),
        (([[10**6]],), "outside the vocabulary"),
        (([[9] * 60],), "beyond the model's 48 positions"),
    ):
        with pytest.raises(UserError, match=message):
            lm.logits(*arguments)
    with pytest.raises(UserError, match="give decoder_input_ids"):
        model_of("spans").logits(IDS)


@pytest.mark.parametrize("name", ["masked", "causal", "prefix", "spans"])
def test_hidden_states_by_layer(name: str) -> None:
    lm = model_of(name)
    text = "the cat"
    every = lm.hidden(text, layers=range(3))
    tokens = len(text) + (2 if name == "masked" else 1)
    assert every.shape == (3, tokens, 32)
    assert torch.equal(lm.hidden(text), every[2]) and torch.equal(lm.hidden(text, 0), every[0])
    if name != "spans":
        v, ids = lm.vocabulary, tokenizer().encode(text)
        framed = [v.cls, *ids, v.sep] if name == "masked" else [v.bos, *ids]
        head = lm.network.heads["lm"]
        with torch.no_grad():
            logits = head.project(head.features(every[2][:, None]))  # type: ignore[operator, attr-defined]
        expected = lm.logits([framed], prefix_length=len(framed))[0]  # a prefix model reads it all both ways
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="layer 3 does not exist"):
        lm.hidden(text, 3)
    with pytest.raises(UserError, match="the text has 80 tokens"):
        lm.hidden("x" * 80)
    with pytest.raises(UserError, match="hidden takes one text at a time, not a list"):
        lm.hidden([text, text])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["masked", "causal", "prefix", "spans"])
def test_embeddings_are_means_and_depend_on_no_batch(name: str) -> None:
    lm = model_of(name)
    texts = ["the cat sat", "", "a", "x" * 100]
    vectors = lm.embed(texts)
    assert vectors.shape == (4, 32) and bool(vectors.isfinite().all())
    torch.testing.assert_close(vectors[0], lm.hidden("the cat sat").mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lm.embed(texts, batch_size=1), vectors, rtol=1e-4, atol=1e-5)


def test_what_a_model_can() -> None:
    assert all(model_of("masked").can(w) for w in ("score", "fill", "generate"))  # type: ignore[arg-type]
    assert [w for w in ("score", "fill", "generate") if model_of("causal").can(w)] == ["score", "generate"]  # type: ignore
    assert model_of("spans").can("fill") and model_of("spans").can("generate")
    assert not replace(model_of("causal"), tokenizer=None).can("score")


def stock(name: str) -> tuple[type, dict[str, int]]:
    """A class of transformers and settings that make it tiny."""
    import transformers as t

    small = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {
        "bert": (t.BertForMaskedLM, {**small, "intermediate_size": 48}),
        "gpt2": (t.GPT2LMHeadModel, {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4}),
        "llama": (t.LlamaForCausalLM, {**small, "intermediate_size": 48, "num_key_value_heads": 2}),
        "t5": (t.T5ForConditionalGeneration, {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
                                              "num_heads": 4}),
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_logits_of_hugging_face_directories_equal_theirs(name: str, tmp_path: Path) -> None:
    """config.json and weights are all there is: no tokenizer, so text is refused and ids are read."""
    kind, settings = stock(name)
    theirs = kind(kind.config_class(**settings)).eval()  # type: ignore[attr-defined]
    theirs.save_pretrained(tmp_path)
    lm = load(tmp_path, device="cpu")
    mask = [[1] * 6, [1] * 4 + [0] * 2]
    more = {"decoder_input_ids": [[0, 30, 31], [0, 40, 41]]} if name == "t5" else {}
    given = {k: torch.tensor(v) for k, v in {"input_ids": IDS, "attention_mask": mask, **more}.items()}
    with torch.no_grad():
        expected = theirs(**given).logits
    real = torch.ones(2, 3, dtype=torch.bool) if more else torch.tensor(mask, dtype=torch.bool)
    torch.testing.assert_close(lm.logits(IDS, mask, **more)[real], expected[real], rtol=1e-4, atol=1e-5)
    assert lm.objective is not None
    assert lm.objective.plan == {"bert": "pseudo", "t5": "infill"}.get(name, "left_to_right")
    with pytest.raises(UserError, match="no tokenizer"):
        lm.score("a")


# ---------------------------------------------------------------- the trained length


@pytest.mark.parametrize("name", OBJECTIVES)
def test_text_is_cut_at_the_trained_context_and_not_at_the_last_position(name: str, tmp_path: Path) -> None:
    """A run of context 16 in a model of 48 positions: what lies beyond 16 was never trained."""
    trained, positions = model_of(name, context=16), model_of(name)
    lm = load(written_run(trained, tmp_path / "run"), device="cpu")
    assert (lm.context, lm.config.max_position) == (16, 48)
    text = "the cat sat on the mat and on the log"
    longest = room(OBJECTIVES[name], shape_of(lm))
    assert longest < 16
    s = lm.score(text)[0]
    assert f"cut into pieces of at most {longest} tokens" in s.event and s.tokens == len(text)
    pieces = [lm.score(text[i : i + longest])[0].each for i in range(0, len(text), longest)]
    assert s.each == pytest.approx([x for each in pieces for x in each], rel=1e-4)
    assert "cut into" not in positions.score(text)[0].event
    bits = evaluate(lm, "bpb", encode(lm, [text]), Options(limit=10**6))
    assert f"pieces of at most {longest} tokens" in bits["event"]
    with pytest.raises(UserError, match=r"the text has 37 tokens and the model room for 1[45]"):
        lm.hidden(text)
    assert torch.isfinite(lm.embed(text)).all() and not torch.allclose(lm.embed(text), positions.embed(text))
    if lm.can("generate"):
        g = generations(lm, "a", 100)[0]
        assert len(g.ids) <= shape_of(lm).stream and (g.stopped == "positions" or len(g.ids) < 16)
        with pytest.raises(UserError, match=r"a prompt of \d+ tokens .* goes beyond the 1[46] that"):
            lm.generate(text)
    if lm.can("fill"):
        with pytest.raises(UserError, match="the model was trained on 16: shorten it"):
            lm.fill(text + " [MASK]")


def test_two_stacks_take_both_lengths_from_the_objective(tmp_path: Path) -> None:
    lm = model_of("spans", context=40)
    assert shape_of(lm) == Shape(lm.objective.shape(40).stream, 40)  # type: ignore[union-attr]
    assert shape_of(replace(lm, target_context=20)) == Shape(20, 40)
    assert shape_of(replace(lm, target_context=20, objective=None)) == Shape(20, 40)
    longer = load(written_run(replace(lm, target_context=20), tmp_path / "run"), device="cpu")
    assert longer.target_context == 20 and len(generations(longer, "a", 100)[0].ids) <= 19
    pair = model_of("prefix-encdec", context=16)  # source and target have a row of 16 each
    context, text = "the cat sat on t", "he mat, the dog on"
    assert "at most 15 tokens" in pair.score(text, context)[0].event
    assert "cut into" not in pair.score(text[:15], context)[0].event
    beyond, fits = (pair.score(" dog", c)[0] for c in ("x" + context, context))
    assert beyond.each == pytest.approx(fits.each, rel=1e-5)
    assert beyond.event == fits.event + "; the context without its beginning, which does not fit into 16 tokens"


@pytest.mark.parametrize("name", FAMILIES)
def test_exports_remember_the_trained_context(name: str, tmp_path: Path) -> None:
    lm = replace(model_of(name, context=16, **FAMILIES[name]), target_context=12 if name == "spans" else None)  # type: ignore[arg-type]
    lm.export(tmp_path / "hf")
    again = load(tmp_path / "hf", device="cpu")
    assert (again.context, again.target_context) == (16, lm.target_context)
    assert json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())["model_max_length"] == 16
    assert again.score("the cat sat on the mat")[0].event == lm.score("the cat sat on the mat")[0].event
    run = load(import_run(tmp_path / "hf", tmp_path / "run"), device="cpu")
    assert (run.context, run.target_context) == (16, lm.target_context)
    values = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert values["imported"] == str(tmp_path / "hf")
    for notes, message in (("{", "not valid JSON"), ('{"context": 0}', "unmask.json does not say .*context: ")):
        (tmp_path / "hf" / "unmask.json").write_text(notes)
        with pytest.raises(UserError, match=message):
            load(tmp_path / "hf")
    (tmp_path / "hf" / "unmask.json").unlink()
    foreign = load(tmp_path / "hf", device="cpu")
    assert foreign.context == 48 and shape_of(foreign).stream == 48


def test_many_masks_share_the_room_of_a_short_target() -> None:
    """The target of context 48 holds 13 tokens: four masks, four sentinels, two tokens for each."""
    lm = model_of("spans")
    assert shape_of(lm) == Shape(13, 48)
    assert len(lm.fill("[MASK] a [MASK] b [MASK] c [MASK]").masks) == 4
    with pytest.raises(UserError, match=r"7 masks are too many: .* 13 tokens has room for 6 tokens of answers"):
        lm.fill("a [MASK] " * 7)


# ---------------------------------------------------------------- directories without a vocabulary head


def test_a_body_without_a_head_gives_hidden_states_only(tmp_path: Path) -> None:
    """A bare untied Llama body: its head's table is not there, so no head is made up."""
    kind, settings = stock("llama")
    kind(kind.config_class(**settings, tie_word_embeddings=False)).model.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    lm = replace(load(tmp_path, device="cpu"), tokenizer=tokenizer())
    assert lm.objective is None and not lm.network.heads
    assert lm.report is not None and lm.report.new == () and lm.report.heads == () and len(lm.report.loaded) > 10
    assert not any(lm.can(what) for what in ("score", "fill", "generate"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no vocabulary head: only its hidden states can be read"):
        lm.logits(IDS)
    with pytest.raises(UserError, match="it can neither score nor write"):
        lm.score("a")
    lm = replace(lm, tokenizer=StubTokens())  # type: ignore[arg-type]
    assert lm.hidden("abc").shape == (4, 32) and lm.embed(["abc", "a"]).shape == (2, 32)
    with pytest.raises(UserError, match="no vocabulary head"):
        import_run(tmp_path, tmp_path / "run")


class StubTokens:
    """One token a character, in a vocabulary of 60."""

    vocabulary = replace(tokenizer().vocabulary, size=60)

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(c) % 50 + 9 for c in text], np.int32)

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [self.encode(t) for t in texts]


@pytest.mark.parametrize("pad", [0, 1, 3])
def test_d24_the_full_context_works_whatever_the_pad_id_and_one_more_is_a_clear_message(pad: int) -> None:
    """Positions are counted from a row's first real token, never from a pad id."""
    lm = model_of("masked", max_position=64)
    ids = np.arange(64) % 40 + 20
    full = lm.logits([ids.tolist()])
    padded = lm.logits(
        [[*ids[:60].tolist(), *[pad] * 4], [*[pad] * 4, *ids[:60].tolist()]], [[1] * 60 + [0] * 4, [0] * 4 + [1] * 60]
    )
    torch.testing.assert_close(padded[0, :60], padded[1, 4:])
    assert full.shape[1] == 64 and torch.isfinite(full).all()
    with pytest.raises(UserError, match="64"):
        lm.logits([[*ids.tolist(), 20]])
