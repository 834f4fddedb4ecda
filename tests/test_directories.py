"""What lies in model directories and runs: heads that no objective names, broken files, options that contradict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from unmask.batch import Head
from unmask.cli import app
from unmask.config import BudgetConfig, ModelConfig, TrainConfig
from unmask.config.model import ExpertsConfig
from unmask.conversion import convert
from unmask.description import describe
from unmask.errors import UserError
from unmask.initial import taken
from unmask.lm import LM
from unmask.loading import import_run, load
from unmask.model.presets import expanded, preset
from unmask.model.transformer import Transformer
from unmask.recipe import load_recipe
from unmask.run import prepared, pretrain, resolve, resume_run, stored_recipe
from unmask.tokens.tokenizer import Tokenizer
from unmask.train.trainer import Trainer

TINY: dict[str, Any] = {
    "tokenizer.type": "byte",
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "context": 16,
    "train.batch_size": 4,
    "evaluation.pieces": 8,
    "budget.steps": 2,
    "precision": "fp32",
}
ON = {k: v for k, v in TINY.items() if not k.startswith(("model.", "tokenizer."))}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and a decoder of two updates on it."""
    folder = tmp_path_factory.mktemp("directories")
    (folder / "text.txt").write_text("\n".join(f"line {i} says {i * i}" for i in range(200)))
    start(folder, folder / "decoder", **TINY)
    return folder


def start(place: Path, out: Path, recipe: str = "decoder-small", **settings: Any) -> Any:
    settings = {"corpus.path": str(place / "text.txt"), "corpus.document": "line", **settings}
    return pretrain(recipe, out=out, cache=place / "cache", say=lambda _: None, **settings)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Every start fails after all is written down, and before its first update; undone by the test."""

    def full(trainer: Trainer) -> None:
        raise UserError("no room to write")

    with monkeypatch.context() as broken:
        broken.setattr(Trainer, "_require_space", full)
        yield broken


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("resume", ["never", "auto"])
@pytest.mark.parametrize("init", [False, True])
def test_a_start_that_fails_leaves_its_place_to_the_mended_command(
    place: Path, tmp_path: Path, failing: pytest.MonkeyPatch, init: bool, resume: str
) -> None:
    """Whatever is wrong before the first update is done, here a full disk; what lay there before stays."""
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("keep me")
    own = {**ON, "init": str(place / "decoder")} if init else dict(TINY)
    for _ in range(2):
        with pytest.raises(UserError, match="no room to write"):
            start(place, out, resume=resume, **own)
    assert (out / "failed.txt").read_text() == "no room to write\n" and (out / "notes.txt").read_text() == "keep me"
    with pytest.raises(UserError, match="no run to resume"):
        start(place, out, resume="must", **own)
    failing.undo()
    mended = {**own, "train.learning_rate": 2e-3}
    assert start(place, out, resume=resume, **mended).counters.step == 2
    assert not (out / "failed.txt").exists() and (out / "notes.txt").exists()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    with pytest.raises(UserError, match="already holds a run"):
        start(place, out, **mended)


@pytest.mark.parametrize("name", ["tokenizer.json", "metrics.jsonl", "init", "init.json"])
def test_a_run_writes_over_nothing_of_somebody_else_s(place: Path, tmp_path: Path, name: str) -> None:
    """A model's own directory, or a tokenizer's, is no place for a run; a start that fails deletes nothing either."""
    out = tmp_path / "mine"
    (out / "init").mkdir(parents=True) if name == "init" else out.mkdir()
    (out / "init" / "model.safetensors" if name == "init" else out / name).write_text("mine")
    before = contents(out)
    with pytest.raises(UserError, match=f"holds {name} of something else, .*another out="):
        start(place, out, **TINY)
    assert contents(out) == before


def test_a_run_that_made_an_update_stays(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {**TINY, "budget.steps": 4}
    with monkeypatch.context() as broken:
        broken.setattr("unmask.train.checkpoint.Writing.begin", lambda _: (_ for _ in ()).throw(UserError("disk full")))
        with pytest.raises(UserError, match="disk full"):
            start(place, tmp_path / "run", **own)
    assert (tmp_path / "run" / "recipe.yaml").exists() and (tmp_path / "run" / "metrics.jsonl").exists()
    with pytest.raises(UserError, match="already holds a run"):
        start(place, tmp_path / "run", **own)


def random(model: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.normal_(0, 0.3, generator=generator)
    return model


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of BERT's kind as the common library writes them."""
    import transformers as t

    folder = tmp_path_factory.mktemp("bert")
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = t.BertConfig(**sizes, intermediate_size=24, max_position_embeddings=20)
    for name in ("BertForPreTraining", "BertModel", "BertForMaskedLM"):
        random(getattr(t, name)(config)).save_pretrained(folder / name)
    return folder


# ---------------------------------------------------------------- heads


@pytest.mark.parametrize("how", ["import", "convert"])
def test_a_pair_head_goes_through_a_run_to_the_export(how: str, bert: Path, tmp_path: Path) -> None:
    import transformers as t

    source = bert / "BertForPreTraining"
    if how == "import":
        import_run(source, tmp_path / "run")
    else:
        convert(source, tmp_path / "run", max_position=24, positions="repeat")
    lm = load(tmp_path / "run", device="cpu")
    assert list(lm.network.declared) == ["lm", "nsp"] and lm.config.pooler
    assert describe(tmp_path / "run")["parameters"] == sum(p.numel() for p in lm.network.parameters())
    report = lm.export(tmp_path / "hf")
    assert report["left_out"] == []
    before, after = (t.BertForPreTraining.from_pretrained(p).eval() for p in (source, tmp_path / "hf"))
    ids = torch.arange(1, 13).reshape(2, 6)
    with torch.no_grad():
        one, two = before(ids), after(ids)
    torch.testing.assert_close(one.seq_relationship_logits, two.seq_relationship_logits)
    torch.testing.assert_close(one.prediction_logits, two.prediction_logits)


@pytest.mark.parametrize("to", ["causal", "prefix", "masked", None])
def test_a_body_is_not_converted_to_a_language_model(to: Any, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="BertModel has no vocabulary head: it is no language model"):
        convert(bert / "BertModel", tmp_path / "run", to, max_position=None if to in ("causal", "prefix") else 24)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["BertForPreTraining", "BertModel", "BertForMaskedLM"])
def test_inspect_counts_the_heads_that_the_files_hold(name: str, bert: Path) -> None:
    network = load(bert / name, device="cpu").network
    found = describe(bert / name)
    assert found["parameters"] == sum(p.numel() for p in network.parameters())
    assert [p["part"] for p in found["parts"] if p["part"].startswith("head")] == [f"head {h}" for h in network.heads]


def test_inspect_of_an_export_with_its_own_code(tmp_path: Path) -> None:
    config = ModelConfig(vocab_size=40, hidden_size=16, num_layers=1, num_heads=2, max_position=20, visibility="prefix")
    network = Transformer(config, [Head("lm"), Head("score", over="score")])
    LM(network, 16).export(tmp_path / "hf")
    assert describe(tmp_path / "hf")["parameters"] == sum(p.numel() for p in network.parameters())


# ---------------------------------------------------------------- directories that are not whole


def test_checkpoints_without_a_recipe_are_not_written_over(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "decoder", tmp_path / "run")
    (tmp_path / "run" / "recipe.yaml").unlink()
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    for resume in ("never", "auto"):
        with pytest.raises(UserError, match=r"holds checkpoints of a run without its recipe\.yaml"):
            start(place, tmp_path / "run", "encoder-small", resume=resume, **TINY)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}


def test_a_run_with_init_goes_on_without_the_copy_of_its_start(place: Path, tmp_path: Path) -> None:
    more = {**ON, "budget.steps": 4, "checkpoint.every": 2, "init": str(place / "decoder")}
    start(place, tmp_path / "run", **more)
    whole = (tmp_path / "run/checkpoints/step-4/model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-4")
    shutil.rmtree(tmp_path / "run" / "init")
    resume_run(tmp_path / "run", cache=place / "cache")
    assert (tmp_path / "run/checkpoints/step-4/model.safetensors").read_bytes() == whole
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(UserError, match=r"lacks the weights in .*init: start it anew"):
        resume_run(tmp_path / "run", cache=place / "cache")


@pytest.mark.parametrize("held", [b"", b"- 1", b"\xff\xfe\x00x", b"a: ["])
def test_a_broken_recipe_of_a_run_is_one_sentence(held: bytes, place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "decoder", tmp_path / "run")
    (tmp_path / "run" / "recipe.yaml").write_bytes(held)
    for ask in (resume_run, load, describe):
        with pytest.raises(UserError, match=r"recipe\.yaml"):
            ask(tmp_path / "run")


@pytest.mark.parametrize("held", ["[1]", '{"prepared": 3}', '"x"', "{}", "{"])
def test_a_broken_note_of_the_text_is_one_sentence(held: str, place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "decoder", tmp_path / "run")
    (tmp_path / "run" / "text.json").write_text(held)
    with pytest.raises(UserError, match=r"text\.json"):
        prepared(tmp_path / "run")


# ---------------------------------------------------------------- start and end tokens


def test_start_and_end_are_tokens_and_given_ones_win(place: Path) -> None:
    with pytest.raises(UserError, match=r"end=9999 is no token: the tokenizer's ids are 0 to "):
        start(place, place / "no", **TINY, end=9999)
    assert not (place / "no").exists()
    lm = load(place / "decoder", device="cpu")
    words = lm.vocabulary
    odd = LM(lm.network, lm.context, lm.tokenizer, lm.objective, None, replace(words, bos=9, eos=8), lm.directory)
    asked = {**ON, "corpus": "-", "init": "x"}
    made, tokenizer = taken(load_recipe("decoder-small", asked), odd)
    assert (made.start, made.end) == (9, 8)
    made, _ = taken(load_recipe("decoder-small", {**asked, "start": 5, "end": 7}), odd)
    assert (made.start, made.end) == (5, 7)
    assert isinstance(tokenizer, Tokenizer)
    with pytest.raises(UserError, match="start=4000 is no token"):
        resolve(made.model_copy(update={"start": 4000}), tokenizer)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ModelConfig, {"rotary_base": 0}),
        (ModelConfig, {"rotary_base": float("nan")}),
        (ModelConfig, {"rotary_local_base": -1}),
        (ModelConfig, {"norm_eps": -1e-9}),
        (ModelConfig, {"init_std": -1}),
        (ModelConfig, {"embedding_std": float("inf")}),
        (ModelConfig, {"head_std": -1}),
        (ModelConfig, {"attention_scale": 0}),
        (ModelConfig, {"attention_softcap": 0}),
        (ModelConfig, {"logit_softcap": -30}),
        (ModelConfig, {"embedding_scale": float("inf")}),
        (ModelConfig, {"head_scale": 0}),
        (ModelConfig, {"dropout": float("nan")}),
        (ExpertsConfig, {"scale": 0}),
        (ExpertsConfig, {"capacity_factor": float("inf")}),
        (ExpertsConfig, {"balance_loss": float("inf")}),
        (TrainConfig, {"adam_eps": 0}),
        (TrainConfig, {"learning_rate": float("inf")}),
        (TrainConfig, {"weight_decay": float("nan")}),
        (TrainConfig, {"clip_norm": float("inf")}),
        (BudgetConfig, {"minutes": float("inf")}),
        (BudgetConfig, {"tokens": float("nan")}),
    ],
)
def test_numbers_that_would_break_a_run_are_refused(kind: Any, settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        kind(**settings)


def test_a_file_of_settings_and_a_recipe_expand_a_preset_alike(tmp_path: Path) -> None:
    given = {"preset": "deepseek-v3", "experts": {"count": 64, "groups": 4, "groups_kept": 2}}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(given))
    recipe = load_recipe("decoder-small", {"corpus": "-", **{f"model.{k}": v for k, v in given.items()}})
    one, two = describe(tmp_path / "model.yaml", vocab_size=100), describe(recipe.model, vocab_size=100)
    assert one["parameters"] == two["parameters"] < 671e9 / 2
    assert recipe.model.experts is not None and recipe.model.experts.router == "sigmoid"
    assert preset("deepseek-v3")["experts"]["count"] == 256  # as it was
    assert expanded({"preset": "t5-small", "hidden_size": 64})["hidden_size"] == 64


def test_init_and_its_neighbours_are_told_apart(place: Path) -> None:
    asked = {**ON, "corpus": "-"}
    with pytest.raises(UserError, match=r"init=x brings its model settings: leave model\.preset out"):
        load_recipe("decoder-small", {**asked, "init": "x", "model.preset": "gpt2"})
    plain = load_recipe("decoder-small", {**asked, "init": ""})
    assert plain.init is None and plain.model == load_recipe("decoder-small", asked).model
    with pytest.raises(UserError, match=r"brings its tokenizer: leave the tokenizer settings out"):
        taken(load_recipe("decoder-small", {**asked, "init": "x", "tokenizer.file": "y"}), load(place / "decoder"))


def test_a_recipes_own_init_keeps_the_tokenizer_beside_it(place: Path, tmp_path: Path) -> None:
    """A model without a tokenizer asks for tokenizer.file, in the recipe's file as on the command line."""
    values = {
        "objective": {"type": "causal"},
        "init": "x",
        "tokenizer": {"file": str(place / "decoder" / "tokenizer.json")},
        "corpus": "-",
        "context": 16,
        "budget": {"steps": 1},
    }
    (tmp_path / "on.yaml").write_text(yaml.safe_dump(values))
    lm = load(place / "decoder", device="cpu")
    bare = LM(lm.network, lm.context, None, lm.objective)
    made, tokenizer = taken(load_recipe(tmp_path / "on.yaml"), bare)
    assert tokenizer == made.tokenizer and made.tokenizer.file == values["tokenizer"]["file"]


# ---------------------------------------------------------------- options


REFUSED = [
    (["generate", "RUN", "--beams", "2", "--seed", "3"], "leave out temperature, top_k, top_p and seed"),
    (["generate", "RUN", "--temperature", "inf"], "temperature=inf"),
    (["generate", "RUN", "--temperature", "nan"], "temperature=nan"),
    (["generate", "RUN", "--temperature", "1", "--seed", "-1"], "seed=-1 must be 0 or more"),
    (["evaluate", "RUN", "--seed", "-1"], "seed=-1 must be 0 or more"),
    (["convert", "RUN", "NEW", "--positions", "repeat"], "add --max-position"),
    (["convert", "RUN", "NEW", "--to", "masked", "--seed", "-1"], "seed=-1 must be 0 or more"),
    (["convert", "RUN", "NEW", "--rotary-base", "nan"], "rotary_base"),
    (["export", "RUN", "NEW", "--license", "mit\nTitle: x"], "license=.* has several lines"),
    (["export", "RUN", "NEW", "--language", "en\n---"], "language=.* has several lines"),
]


@pytest.mark.parametrize(("words", "fault"), REFUSED)
def test_options_that_mean_nothing_are_refused(words: list[str], fault: str, place: Path, tmp_path: Path) -> None:
    names = {"RUN": str(place / "decoder"), "NEW": str(tmp_path / "new")}
    done = CliRunner().invoke(app, [names.get(w, w) for w in words])
    assert isinstance(done.exception, UserError), done.output
    with pytest.raises(UserError, match=fault):
        raise done.exception
    assert not (tmp_path / "new").exists()


def test_a_refused_export_names_the_directory_that_was_given(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.model.verify.TOLERANCE", -1.0)
    with pytest.raises(UserError) as caught:
        load(place / "decoder", device="cpu").export(tmp_path / "hf")
    assert str(caught.value).startswith(f"{tmp_path / 'hf'}: after reloading") and "/.hf." not in str(caught.value)


def test_the_card_of_a_converted_or_continued_model(place: Path, tmp_path: Path) -> None:
    convert(place / "decoder", tmp_path / "long", max_position=1024, positions="new")
    start(place, tmp_path / "on", "encoder-small", **ON, init=str(place / "decoder"))
    texts = {}
    for name in ("long", "on"):
        load(tmp_path / name, device="cpu").export(tmp_path / f"{name}-hf")
        texts[name] = (tmp_path / f"{name}-hf" / "README.md").read_text()
    assert "The weights were converted from `decoder`, and not trained since:\n\n- max_position:" in texts["long"]
    assert "Training started from the weights of `decoder` (`init=`)." in texts["on"]
    assert "imported" not in texts["long"] and "has seen no longer text" not in texts["on"]
    data = json.loads(json.dumps(prepared(place / "decoder", place / "cache").summary()))["train"][""]
    for text in texts.values():
        line = f"- Training text of `decoder`, where the weights come from: {data['documents']} documents, "
        assert line in text and str(place) not in text
    assert stored_recipe(tmp_path / "on").init == str(place / "decoder")
