"""Training on from a trained model (`init`), conversions as runs, and named models in recipes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

import unmask
from unmask.batch import Batch, Head, Stream
from unmask.config import ModelConfig
from unmask.conversion import convert
from unmask.errors import UserError
from unmask.initial import fill
from unmask.loading import load
from unmask.loss import forward_heads
from unmask.model.convert import Weights
from unmask.model.transformer import Transformer
from unmask.recipe import load_recipe
from unmask.run import Run, prepared, pretrain, resolve, resume_run, stored_recipe, training_loader
from unmask.tokens.tokenizer import Tokenizer
from unmask.train import checkpoint
from unmask.train.devices import to_device

TINY: dict[str, Any] = {
    "tokenizer.vocab_size": 512,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.num_layers": 2,
    "context": 32,
    "train.batch_size": 4,
    "evaluation.pieces": 8,
    "precision": "fp32",
}
ON: dict[str, Any] = {k: v for k, v in TINY.items() if not k.startswith(("model.", "tokenizer."))}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a decoder and an encoder of two steps."""
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("init")
    lines = [json.dumps({"text": t}) + "\n" for _, t in sorted(topics.items())]
    (folder / "topics.jsonl").write_text("".join(lines[:40]), encoding="utf-8")
    for name in ("decoder", "encoder"):
        start(folder, folder / name, f"{name}-small", **TINY)
    return folder


def start(place: Path, out: Path, recipe: str, said: list[str] | None = None, **settings: Any) -> Run:
    settings = {"budget.steps": 2, "corpus": str(place / "topics.jsonl"), **settings}
    say = (lambda _: None) if said is None else said.append
    return pretrain(recipe, out=out, cache=place / "cache", say=say, **settings)


def started(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "init" / "step-0" / checkpoint.MODEL)


def states(network: Transformer, visibility: str) -> torch.Tensor:
    """Hidden states of twelve tokens under a mask."""
    i = torch.arange(12)[None]
    reveal = {"causal": i, "bidirectional": i * 0, "prefix": (i - 4).clamp(min=0)}[visibility]
    stream = Stream(i + 200, i, torch.ones_like(i), reveal, reveal.clone())
    with torch.no_grad():
        return network(Batch(stream, {}, {}))["stream"]


# ---------------------------------------------------------------- from the first step on


@pytest.mark.parametrize(("recipe", "visibility"), [("encoder-small", "bidirectional"), ("decoder-small", "causal")])
def test_the_first_loss_is_that_of_the_given_weights_under_the_new_mask(
    recipe: str, visibility: str, place: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    start(place, tmp_path / "run", recipe, said, init=str(place / "decoder"), **ON)
    given = load(place / "decoder", device="cpu")
    kept = started(tmp_path / "run")
    assert all(torch.equal(kept[f"model.{n}"], t) for n, t in Weights.of(given.network).state.items())
    made = stored_recipe(tmp_path / "run")
    assert made.model.visibility == visibility and made.model.hidden_size == 32
    assert made.model.positions == "rotary"  # the given model's settings, not the recipe's
    assert made.init == str(place / "decoder") and Path(made.init).is_absolute()
    assert (tmp_path / "run" / "tokenizer.json").read_text() == (place / "decoder" / "tokenizer.json").read_text()

    text = prepared(tmp_path / "run", place / "cache")
    batches = training_loader(resolve(made, text.tokenizer), text)(0)
    assert len(batches) == 1
    with torch.no_grad():
        terms = forward_heads(nn.ModuleDict({"model": given.network}), to_device(batches[0], torch.device("cpu")), None)
    wanted = sum(float(t.sum) / t.norm * t.coefficient for t in terms.values())
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(wanted, rel=1e-5)
    assert any("tensors loaded" in line and "100% of the body" in line for line in said)


def test_prefix_weights_are_the_causal_ones_under_another_mask(place: Path, tmp_path: Path) -> None:
    start(place, tmp_path / "run", "prefix-small", init=str(place / "decoder"), **ON)
    given = load(place / "decoder", device="cpu").network
    made = stored_recipe(tmp_path / "run")
    network = Transformer(made.model, made.objective.heads())
    checkpoint.load_model(nn.ModuleDict({"model": network}), tmp_path / "run" / "init" / "step-0")
    for mask in ("prefix", "causal", "bidirectional"):
        assert torch.equal(states(network, mask), states(given, mask))
    assert not torch.allclose(states(network, "prefix"), states(network, "causal"), atol=1e-3)
    assert load(tmp_path / "run").can("generate")


def test_a_resumed_run_needs_the_directory_no_more(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "decoder", tmp_path / "given")
    settings = {**ON, "init": str(tmp_path / "given"), "budget.steps": 4, "checkpoint.every": 2, "model.dropout": 0.1}
    start(place, tmp_path / "whole", "decoder-small", **settings)
    for name, removed in (("cut", ["step-4"]), ("bare", ["step-4", "step-2"])):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        for step in removed:
            shutil.rmtree(tmp_path / name / "checkpoints" / step)
        (tmp_path / name / "result.json").unlink()
    (tmp_path / "bare" / "plan.json").unlink()  # killed before its length was known: from the given weights again
    shutil.rmtree(tmp_path / "given")
    wanted = load_file(tmp_path / "whole" / "checkpoints" / "step-4" / checkpoint.MODEL)
    for name in ("cut", "bare"):
        run = resume_run(tmp_path / name, cache=place / "cache")
        assert run.counters.step == 4
        found = load_file(tmp_path / name / "checkpoints" / "step-4" / checkpoint.MODEL)
        assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items()), name
    again = start(place, tmp_path / "whole", "decoder-small", resume="auto", **settings)
    assert again.counters.step == 4
    with pytest.raises(UserError, match=r"was started with model\.dropout=0\.1, not 0\.2"):
        start(place, tmp_path / "whole", "decoder-small", resume="auto", **{**settings, "model.dropout": 0.2})
    with pytest.raises(UserError, match="was started with init="):
        start(place, tmp_path / "whole", "decoder-small", resume="auto", **{**settings, "init": str(place / "encoder")})


def test_a_hugging_face_directory_without_head_starts_one(place: Path, tmp_path: Path) -> None:
    load(place / "decoder", device="cpu").export(tmp_path / "hf")
    file, settings = tmp_path / "hf" / "model.safetensors", tmp_path / "hf" / "config.json"
    tensors = load_file(file)
    table = next(t for n, t in tensors.items() if "embed_tokens" in n)
    save_file(
        {n: t for n, t in tensors.items() if not n.startswith("lm_head")} | {"odd.weight": table[:3].clone()}, file
    )
    settings.write_text(settings.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    (tmp_path / "hf" / "unmask.json").unlink(missing_ok=True)
    said: list[str] = []
    start(place, tmp_path / "run", "decoder-small", said, init=str(tmp_path / "hf"), seed=3, **ON)
    report = json.loads((tmp_path / "run" / "init.json").read_text())
    assert report["new"] == ["heads.lm.weight"] and report["unused"] == ["odd.weight"]
    assert any("1 new, from the recipe's seed: heads.lm.weight" in line for line in said)
    assert any("1 not used: odd.weight" in line for line in said)
    assert any("re-shaped" in line and "attention.qkv.weight" in line for line in said)
    kept = started(tmp_path / "run")["model.heads.lm.weight"]
    own = Transformer(stored_recipe(tmp_path / "run").model, [Head("lm")], seed=3).heads["lm"].weight
    assert torch.equal(kept, own)


def test_a_model_that_starts_with_its_pad_is_trained_on_so(place: Path, tmp_path: Path) -> None:
    """T5's way: config.json says it, the tokenizer's spellings do not."""
    convert(place / "encoder", tmp_path / "pair", "encdec")
    values = yaml.safe_load((tmp_path / "pair" / "recipe.yaml").read_text())
    pad = load(tmp_path / "pair", device="cpu").vocabulary.pad
    (tmp_path / "pair" / "recipe.yaml").write_text(yaml.safe_dump({**values, "start": pad}))
    start(place, tmp_path / "run", "encdec-small", init=str(tmp_path / "pair"), **ON)
    made, text = stored_recipe(tmp_path / "run"), prepared(tmp_path / "run", place / "cache")
    assert made.start == pad and made.end is None
    stream = training_loader(made, text)(0)[0].stream
    first = (stream.positions == 0) & (stream.block != 0)
    assert set(stream.tokens[first].tolist()) == {pad}
    assert load(tmp_path / "run").vocabulary.bos == pad


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("recipe", "settings", "says"),
    [
        (
            "decoder-small",
            {"model.hidden_size": 64},
            r"has model\.hidden_size=32, not 64: leave model\.hidden_size out",
        ),
        ("decoder-small", {"tokenizer.vocab_size": 600}, "brings its tokenizer: leave the tokenizer settings out"),
        ("decoder-small", {"model.visibility": "bidirectional"}, r"model\.visibility=causal, not bidirectional"),
        ("decoder-small", {"context": 200}, "context=200 goes beyond model.max_position=128"),
        ("encdec-small", {}, "needs 2 stacks, and init=.* has 1: make two of it first .unmask convert"),
        ("decoder-small", {"init": "gone"}, "gone does not exist"),
    ],
)
def test_what_contradicts_the_given_model_is_one_sentence(
    recipe: str, settings: dict[str, Any], says: str, place: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says) as error:
        start(place, tmp_path / "run", recipe, **{**ON, "init": str(place / "decoder"), **settings})
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_settings_that_agree_and_dropout_may_be_given(place: Path) -> None:
    from unmask.initial import taken

    lm = load(place / "decoder", device="cpu")
    more = {"corpus": "-", "init": str(place / "decoder"), "model.num_layers": 2, "model.attention_dropout": 0.3}
    recipe, tokenizer = taken(load_recipe("encoder-small", {**ON, **more}), lm)
    assert isinstance(tokenizer, Tokenizer) and recipe.tokenizer.file == str(place / "decoder")
    assert recipe.model.attention_dropout == 0.3 and recipe.model.norm == "rms"


def test_a_masked_objective_says_how_to_add_its_token(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "decoder", tmp_path / "given")
    spec = (tmp_path / "given" / "tokenizer.json").read_text()
    (tmp_path / "given" / "tokenizer.json").write_text(spec.replace("[MASK]", "[ODD]").replace("[CLS]", "[ODD2]"))
    with pytest.raises(UserError, match=r"no mask token, .* --add-token '\[MASK\]', and take NEW"):
        start(place, tmp_path / "run", "encoder-small", init=str(tmp_path / "given"), **ON)
    with pytest.raises(UserError, match=r"no mask token"):
        convert(tmp_path / "given", tmp_path / "new", "masked")
    made = convert(tmp_path / "given", tmp_path / "new", "masked", add_tokens=["[MASK]"])
    assert [n.split(":")[0] for n in made.notes] == ["vocabulary", "visibility"]
    start(place, tmp_path / "run", "encoder-small", init=str(tmp_path / "new"), **ON)
    old, new = load(tmp_path / "given", device="cpu"), load(tmp_path / "new", device="cpu")
    size = old.vocabulary.size
    assert new.config.vocab_size == size + 1 and new.vocabulary.mask == size
    table = new.network.embedding.weight
    assert torch.equal(table[:size], old.network.embedding.weight)
    assert torch.allclose(table[size], old.network.embedding.weight.mean(0), atol=1e-7)
    assert new.fill("the [MASK] of").masks


# ---------------------------------------------------------------- another objective's additions


@pytest.fixture(scope="module")
def bert(place: Path) -> Path:
    """An encoder with learned positions and two token types."""
    settings = {"model.preset": "bert-base", "model.hidden_size": 32, "model.num_heads": 2, "model.num_layers": 2}
    more = {"model.intermediate_size": 64, "model.max_position": 64, "tokenizer.type": "wordpiece"}
    start(place, place / "bert", "encoder-small", **{**TINY, **settings, **more})
    return place / "bert"


@pytest.mark.parametrize(
    ("objective", "settings", "new", "grown"),
    [
        ("permutation", {"model.query_vector": True}, ["query"], []),
        ("glm", {"model.positions2": 40}, ["stack.positions2.weight"], []),
        ("unilm", {"model.token_types": 6}, [], ["stack.token_types.weight"]),
    ],
)
def test_what_an_objective_adds_to_a_model_starts_from_the_seed(
    objective: str, settings: dict[str, Any], new: list[str], grown: list[str], bert: Path, place: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    own = {**ON, "objective.type": objective, "init": str(bert), **settings}
    start(place, tmp_path / "run", "encoder-small", said, **own, seed=3)
    report = json.loads((tmp_path / "run" / "init.json").read_text())
    assert (report["new"], report["grown"], report["restarted"]) == (new, grown, [])
    assert all(any(name in line and "from the recipe's seed" in line for line in said) for name in new + grown)
    made, kept = stored_recipe(tmp_path / "run"), started(tmp_path / "run")
    fresh = Transformer(made.model, made.objective.heads(), seed=3).state_dict()
    given = Weights.of(load(bert, device="cpu").network).state
    for name in new:
        assert torch.equal(kept[f"model.{name}"], fresh[name])
    for name in grown:
        rows = len(given[name])
        assert rows == 2 and torch.equal(kept[f"model.{name}"], torch.cat([given[name], fresh[name][rows:]]))
    assert all(torch.equal(kept[f"model.{n}"], t) for n, t in given.items() if n not in grown)
    again = start(place, tmp_path / "run", "encoder-small", resume="auto", **own, seed=3)
    assert again.counters.step == 2
    assert load(tmp_path / "run").config == made.model


def test_what_the_given_model_learnt_is_not_dropped_by_a_setting(bert: Path, place: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has model\.token_types=2, and 1 would drop what it learnt"):
        start(place, tmp_path / "run", "encoder-small", **ON, init=str(bert), **{"model.token_types": 1})


def test_modules_that_look_ahead_are_no_part_of_the_body(place: Path, tmp_path: Path) -> None:
    """Multi-token prediction goes on from a causal model, one of fewer tokens from it, and a causal model again."""

    def report(name: str, source: Path, **settings: Any) -> dict[str, Any]:
        start(place, tmp_path / name, "decoder-small", **ON, init=str(source), **settings)
        return dict(json.loads((tmp_path / name / "init.json").read_text()))

    four = report("four", place / "decoder", **{"objective.type": "multi_token"})
    assert four["body_share"] == 1 and four["new"] and all(".ahead." in name for name in four["new"])
    two = report("two", tmp_path / "four", **{"objective.type": "multi_token", "objective.num_future": 2})
    assert two["body_share"] == 1 and not two["new"] and all(n.startswith("stack.ahead.") for n in two["unused"])
    one = report("one", tmp_path / "two")
    assert not one["new"] and {n.split(".")[1] for n in one["unused"]} == {"ahead"}
    assert load(tmp_path / "one").config.ahead_layers == 0


# ---------------------------------------------------------------- filling


def _model(heads: list[Head], **settings: Any) -> Transformer:
    values = {"vocab_size": 50, "hidden_size": 32, "num_heads": 2, "num_layers": 2, "max_position": 16}
    return Transformer(ModelConfig(**{**values, **settings}), heads, seed=1)


def test_t14_a_head_of_another_size_starts_with_the_models_own_spread() -> None:
    two, three = (_model([Head("lm"), Head("task", over="classes", size=n)]) for n in (2, 3))
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.add_(1.0)
        three.heads["task"].weight.fill_(1e37)
    three = _model([Head("lm"), Head("task", over="classes", size=3)])
    filled = fill(three, Weights.of(two), "DIR")
    assert filled.restarted == ("heads.task.weight", "heads.task.bias")
    assert any("2 of another size, started anew: heads.task.weight" in line for line in filled.lines())
    assert torch.equal(three.embedding.weight, two.embedding.weight)
    weight, bias = three.heads["task"].weight.detach(), three.heads["task"].bias.detach()
    assert 0.014 < float(weight.std()) < 0.026 and float(bias.abs().max()) == 0
    hidden = states_of(three)
    loss = torch.nn.functional.cross_entropy(three.heads["task"].project(hidden), torch.arange(len(hidden)) % 3)
    assert float(loss.detach()) == pytest.approx(np.log(3), abs=0.15)


def states_of(network: Transformer) -> torch.Tensor:
    i = torch.arange(12)[None]
    return network(Batch(Stream(i + 5, i, torch.ones_like(i), i, i.clone()), {}, {}))["stream"][0]


def test_a_body_of_another_size_names_both_numbers() -> None:
    with pytest.raises(UserError, match=r"DIR holds embedding\.weight with 60 × 32, and this model needs 50 × 32"):
        fill(_model([Head("lm")]), Weights.of(_model([Head("lm")], vocab_size=60)), "DIR")


def test_f08_a_body_under_other_names_is_refused_and_little_of_it_may_be_new() -> None:
    given = Weights.of(_model([Head("lm")], token_types=2))
    renamed = Weights(given.config, {f"encoder.{n}": t for n, t in given.state.items()}, given.heads)
    fresh = _model([Head("lm")])
    before = {n: t.clone() for n, t in fresh.state_dict().items()}
    with pytest.raises(UserError, match=r"DIR holds only 0% of the body's weights .*under 90%"):
        fill(fresh, renamed, "DIR")
    assert all(torch.equal(t, before[n]) for n, t in fresh.state_dict().items())
    filled = fill(fresh, given, "DIR")
    assert filled.unused == ("stack.token_types.weight",) and filled.body_share == 1
    filled = fill(_model([Head("lm")], token_types=2), Weights.of(fresh), "DIR")
    assert filled.new == ("stack.token_types.weight",) and 0.99 < filled.body_share < 1


# ---------------------------------------------------------------- conversions as runs


def test_an_encoder_and_a_decoder_become_one_run_that_trains_and_writes(place: Path, tmp_path: Path) -> None:
    made = convert(place / "encoder", tmp_path / "pair", "encdec", cross="self")
    assert any("self-attention" in note for note in made.notes)
    lm = load(tmp_path / "pair", device="cpu")
    assert lm.config.num_source_layers == 2 and lm.score("the value of")[0].logprob < 0
    start(place, tmp_path / "run", "encdec-small", init=str(tmp_path / "pair"), **ON)
    assert load(tmp_path / "run", device="cpu").generate("the <extra_id_0> of", max_tokens=3)
    with pytest.raises(UserError, match="the encoder has"):
        convert(place / "encoder", tmp_path / "odd", "encdec", decoder=place / "decoder")


def test_a_decoder_becomes_masked_with_room_for_longer_texts(place: Path, tmp_path: Path) -> None:
    made = convert(place / "decoder", tmp_path / "new", "masked", max_position=256, rotary_base=5e4)
    new = load(tmp_path / "new", device="cpu")
    assert len(made.notes) == 3 and new.config.max_position == 256 and new.config.rotary_base == 5e4
    assert new.context == 32  # what it was trained on is not what it has room for
    assert new.objective is not None and new.objective.type == "masked"
    values = yaml.safe_load((tmp_path / "new" / "recipe.yaml").read_text())
    assert values["converted"] == list(made.notes) and values["imported"] == str(place / "decoder")
    given = load(place / "decoder", device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(given.network.parameters(), new.network.parameters(), strict=True))


def test_another_tokenizer_keeps_equal_tokens(place: Path, tmp_path: Path) -> None:
    from unmask.config import TokenizerConfig

    texts = [json.loads(line)["text"] for line in (place / "topics.jsonl").read_text().splitlines()]
    other = Tokenizer.train(TokenizerConfig(vocab_size=700), texts)
    other.save(tmp_path / "other.json")
    convert(place / "decoder", tmp_path / "new", tokenizer=tmp_path / "other.json")
    old, new = load(place / "decoder", device="cpu"), load(tmp_path / "new", device="cpu")
    assert new.config.vocab_size == 700 and new.tokenizer is not None and old.tokenizer is not None
    a, b = old.network.embedding.weight, new.network.embedding.weight
    the = int(old.tokenizer.encode(" the")[0])
    assert torch.equal(b[int(other.encode(" the")[0])], a[the])
    longer = next(i for i in range(400, 700) if len(old.tokenizer.encode(other.decode([i]))) == 2)
    assert torch.allclose(b[longer], a[old.tokenizer.encode(other.decode([longer]))].mean(0), atol=1e-6)
    report = new.export(tmp_path / "hf")
    assert report["difference"] < 1e-4
    assert load(tmp_path / "hf", device="cpu").score("the value")[0].logprob == pytest.approx(
        new.score("the value")[0].logprob, abs=1e-4
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"to": "mask"}, "to=mask is none of causal, prefix, masked, encdec; did you mean 'masked'"),
        ({"to": "causal"}, "is what is asked for already"),
        ({"to": "prefix", "cross": "self"}, "--cross is for two stacks"),
        ({"tokenizer": "x", "add_tokens": ["[A]"]}, "give one of them"),
        ({"add_tokens": ["[MASK]"]}, "already holds it"),
    ],
)
def test_conversions_that_cannot_be_are_refused(
    settings: dict[str, Any], says: str, place: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says):
        convert(place / "decoder", tmp_path / "new", **settings)
    assert not (tmp_path / "new").exists()


def test_the_command_line_converts_and_says_what_it_did(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from unmask.cli.output import app

    words = ["convert", str(place / "decoder"), str(tmp_path / "new"), "--to", "prefix", "--json"]
    app([*words, "--add-token", "<a>", "--add-token", "<b>"], standalone_mode=False)
    said = json.loads(capsys.readouterr().out)
    assert said["run"] == str(tmp_path / "new") and "512 entries become 514" in said["notes"][0]
    assert unmask.load(tmp_path / "new").objective.type == "prefix_lm"


# ---------------------------------------------------------------- named models


def test_a_named_model_stands_under_the_other_settings() -> None:
    recipe = load_recipe("decoder-small", {"corpus": "-", "model.preset": "gpt2", "model.num_layers": 3})
    assert (recipe.model.hidden_size, recipe.model.num_layers, recipe.model.family) == (768, 3, "gpt2")
    assert recipe.model.vocab_size == 0  # the tokenizer's
    assert recipe.model.positions == "learned"  # nothing of the recipe's own model is left
    with pytest.raises(UserError, match=r"no preset 'gpt22'.*did you mean 'gpt2'"):
        load_recipe("decoder-small", {"corpus": "-", "model.preset": "gpt22"})


def test_a_recipe_file_may_name_its_model(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    values = {"objective": {"type": "masked"}, "model": {"preset": "bert-base", "dropout": 0}, "budget": {"steps": 1}}
    file.write_text(yaml.safe_dump(values))
    recipe = load_recipe(file, {"corpus": "-"})
    assert recipe.model.hidden_size == 768 and recipe.model.dropout == 0 and recipe.model.attention_dropout == 0.1
