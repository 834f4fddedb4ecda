"""lm-eval reads local tasks and asks our models; without that library these tests are skipped."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from unmask.cli import app
from unmask.errors import UserError
from unmask.evaluation.harness import Answers, Settings, harness
from unmask.evaluation.items import shortened
from unmask.evaluation.score import score
from unmask.evaluation.unmasking import Unmasking
from unmask.evaluation.watch import silent

from .helpers import OBJECTIVES, Stub, model_of, stub_of, tokenizer
from .test_lm import written_run

QUESTIONS = [
    {"context": "the cat sat on", "choices": ["the mat", "a log", "and"], "label": 0},
    {"context": "a dog and", "choices": ["the", "a cat"], "label": 1},
    {"context": "on the", "choices": ["log", "dog", "mat"], "label": 2},
]
TEXTS = [{"text": "the cat sat on the mat"}, {"text": "a dog sat on the log and the cat on the mat, and on"}]
PROMPTS = [{"prompt": "the cat", "answer": "x"}, {"prompt": "a dog sat", "answer": "y"}]


def request(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


# ---------------------------------------------------------------- without lm-eval


@pytest.mark.parametrize("name", OBJECTIVES)
def test_log_likelihoods_are_scores(name: str) -> None:
    lm = model_of(name)
    asked = Answers(lm, watch=silent)
    pairs = [("the cat sat", " on"), ("", "the cat"), ("a dog", " and a cat")]
    found = asked.loglikelihood([request(*p) for p in pairs])
    for (context, text), (value, greedy) in zip(pairs, found, strict=True):
        s = score(lm, text, context)[0]
        assert value == pytest.approx(s.logprob, rel=1e-5) and greedy is s.greedy
    moved = asked.loglikelihood([request("a dog and the ", "cat"), request("a dog and the ", "xyz")])
    plain = asked.loglikelihood([request("a dog and the", " cat"), request("a dog and the", " xyz")])
    assert moved == plain
    rolling = asked.loglikelihood_rolling([request(t["text"]) for t in TEXTS])
    assert rolling == pytest.approx([s.logprob for s in score(lm, [t["text"] for t in TEXTS])], rel=1e-5)
    info = asked.get_model_info()
    assert info["unmask_plan"] == OBJECTIVES[name].plan and "p(t" in info["unmask_event"]
    assert info["unmask_shortened_contexts"] == 0
    if OBJECTIVES[name].plan in ("pseudo", "infill"):
        assert "pseudo-log-likelihood" in info["unmask_event"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_greedy_is_whether_every_token_is_the_likeliest(name: str) -> None:
    lm, _ = stub_of(name)
    logits = torch.zeros(lm.config.vocab_size)
    logits[tokenizer().encode("t")[0]] = 1.0
    network: Any = Stub(logits, lm.config)
    asked = Answers(replace(lm, network=network), watch=silent)
    found = asked.loglikelihood([request("a cat", "ttt"), request("a cat", "tat"), request("", "t"), request("t", "a")])
    assert [greedy for _, greedy in found] == [True, False, True, False]


def test_contexts_beyond_the_room_lose_their_beginning() -> None:
    context = " ".join(["the cat sat on the mat and"] * 4)
    for name in OBJECTIVES:
        lm = model_of(name, context=32)
        asked = Answers(lm, watch=silent)
        value, _ = asked.loglikelihood([request(context, " a dog")])[0]
        assert asked.get_model_info()["unmask_shortened_contexts"] == 1
        s = score(lm, " a dog", shortened(lm, None, context, [" a dog"]))[0]
        assert value == pytest.approx(s.logprob, rel=1e-5) and "cut into" not in s.event
        written = asked.generate_until([request(context, {"until": [], "max_gen_toks": 4})])
        assert len(written) == 1


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_generation_stops_where_asked(name: str) -> None:
    lm = model_of(name)
    requests = [
        request("the cat", {"until": ["\n"], "max_gen_toks": 5}),
        request("a dog", {"until": ["a", "e"], "max_gen_toks": 9}),
        request("the log", {"until": ["\n"], "max_gen_toks": 5, "do_sample": True, "temperature": 0.7}),
        request("the mat", {"until": "\n", "max_gen_toks": 5}),
    ]
    found = Answers(lm, watch=silent).generate_until(requests)
    assert found[0] == lm.generate("the cat", max_tokens=5, stop=["\n"])[0]
    assert found[1] == lm.generate("a dog", max_tokens=9, stop=["a", "e"])[0]
    assert found[2] == lm.generate("the log", max_tokens=5, stop=["\n"], temperature=0.7)[0]
    assert found[3] == lm.generate("the mat", max_tokens=5, stop=["\n"])[0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_answers_are_compared_by_one_event_whatever_their_tokens_take_in(name: str) -> None:
    """A blank at the context's end, which one answer's token takes in, is all answers', as in lm-eval's own models."""
    lm = model_of(name, "bbpe", max_position=96)
    asked = Answers(lm, watch=silent)
    found = asked.loglikelihood([request("a dog and the ", "cat"), request("a dog and the ", "xyz"), request(" ", "a")])
    known = score(lm, [" cat", " xyz"], "a dog and the") + score(lm, " a")
    assert [value for value, _ in found] == pytest.approx([s.logprob for s in known], rel=1e-5)
    assert asked.get_model_info()["unmask_merged_seams"] == 0
    asked.loglikelihood([request("a dog and th", "e cat")])  # "the" is one token
    assert asked.get_model_info()["unmask_merged_seams"] == 1


def test_unmasking_is_the_harnesss_and_sampling_each_requests() -> None:
    lm, rule = model_of("masked"), Unmasking("random", 2, 4)
    asked = Answers(lm, watch=silent, unmasking=rule)
    requests = [
        request("the cat", {"until": [], "max_gen_toks": 7}),
        request("a dog", {"until": [], "max_gen_toks": 7, "do_sample": True, "temperature": 0.7}),
    ]
    given: Any = {"max_tokens": 7, "steps": 2, "order": "random", "block": 4}
    assert asked.generate_until(requests) == [
        lm.generate("the cat", **given)[0],
        lm.generate("a dog", temperature=0.7, **given)[0],
    ]
    assert asked.get_model_info()["unmask_writing"] == {"steps": 2, "order": "random", "block": 4}
    assert "unmask_writing" not in Answers(model_of("causal"), watch=silent).get_model_info()
    for name in ("causal", "prefix", "spans"):
        with pytest.raises(UserError, match="leave out steps, order, block and length"):
            Answers(model_of(name), watch=silent, unmasking=rule)


def test_settings_of_generation() -> None:
    assert Settings.of({}).tokens == 256 and Settings.of({}).sampling.temperature == 0
    greedy = Settings.of({"do_sample": False, "temperature": 0.8, "until": "."})
    assert greedy.sampling.temperature == 0 and greedy.stop == (".",)
    assert Settings.of({"do_sample": True}).sampling.temperature == 1
    nucleus = Settings.of({"temperature": 0.5, "top_p": 0.9, "top_k": 3, "max_new_tokens": 7})
    assert (nucleus.sampling.temperature, nucleus.sampling.top_p, nucleus.sampling.top_k) == (0.5, 0.9, 3)
    assert nucleus.tokens == 7


def test_the_plan_may_be_named() -> None:
    asked = Answers(model_of("masked"), "pseudo_words", silent)
    asked.loglikelihood([request("", "the cat")])
    assert asked.get_model_info()["unmask_plan"] == "pseudo_words"
    with pytest.raises(UserError, match="plan decoder does not fit"):
        Answers(model_of("causal"), "decoder")


# ---------------------------------------------------------------- with lm-eval


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three local tasks: a multiple choice, a rolling likelihood and a generation."""
    place = tmp_path_factory.mktemp("tasks")
    for name, items in (("choice", QUESTIONS), ("rolling", TEXTS), ("writing", PROMPTS)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(i) + "\n" for i in items))
        own: dict[str, Any] = {
            "choice": {
                "output_type": "multiple_choice",
                "doc_to_text": "{{context}}",
                "doc_to_choice": "choices",
                "doc_to_target": "label",
                "metric_list": [{"metric": "acc"}, {"metric": "acc_bytes"}],
            },
            "rolling": {
                "output_type": "loglikelihood_rolling",
                "doc_to_text": "",
                "doc_to_target": "{{text}}",
                "metric_list": [{"metric": "bits_per_byte"}],
            },
            "writing": {
                "output_type": "generate_until",
                "doc_to_text": "{{prompt}}",
                "doc_to_target": "{{answer}}",
                "generation_kwargs": {"until": ["."], "max_gen_toks": 6, "do_sample": False},
                "metric_list": [{"metric": "exact_match"}],
            },
        }[name]
        task = {
            "task": f"local_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(place / f"{name}.jsonl")}},
            "test_split": "test",
            **own,
        }
        (place / f"{name}.yaml").write_text(yaml.safe_dump(task))
    return place


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf" / "datasets"))


def test_lm_eval_gives_the_numbers_of_our_scores(tasks: Path) -> None:
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    for name in ("causal", "masked", "prefix", "spans"):
        lm = model_of(name, max_position=96)
        wanted = ["local_choice", "local_rolling", "local_writing"]
        out = lm_eval.simple_evaluate(
            harness(lm, watch=silent), tasks=wanted, task_manager=manager, bootstrap_iters=0, log_samples=True
        )
        accuracy, by_bytes = [], []
        for q in QUESTIONS:
            choices: Any = q["choices"]
            values = np.array([s.logprob for s in score(lm, [" " + c for c in choices], str(q["context"]))])
            accuracy.append(int(values.argmax()) == q["label"])
            by_bytes.append(int((values / [len(c.encode()) for c in choices]).argmax()) == q["label"])
        found = out["results"]
        assert found["local_choice"]["acc,none"] == pytest.approx(np.mean(accuracy))
        assert found["local_choice"]["acc_bytes,none"] == pytest.approx(np.mean(by_bytes))
        scores = score(lm, [t["text"] for t in TEXTS])
        bits = -sum(s.logprob for s in scores) / np.log(2) / sum(s.bytes for s in scores)
        assert found["local_rolling"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-5)
        assert out["config"]["unmask_plan"] == OBJECTIVES[name].plan
        written = [s["resps"][0][0] for s in out["samples"]["local_writing"]]
        assert written == lm.generate([p["prompt"] for p in PROMPTS], max_tokens=6, stop=["."])


def test_lm_evals_own_command_knows_our_runs(tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.api.registry import get_model
    from lm_eval.tasks import TaskManager

    # The index of lm-eval's own thousands of tasks takes ten seconds.
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    run = written_run(lm := model_of("masked", max_position=96), tmp_path / "run")
    words = ["lm-eval", "run", "--model", "unmask", "--tasks", "local_rolling", "--include_path", str(tasks)]
    words += ["--output_path", str(tmp_path / "out"), "--model_args"]
    app([*words, f"path={run},plan=pseudo_words"], standalone_mode=False)
    (file,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(file.read_text())
    scores = score(lm, [t["text"] for t in TEXTS], plan="pseudo_words")
    bits = -sum(s.logprob for s in scores) / np.log(2) / sum(s.bytes for s in scores)
    assert found["results"]["local_rolling"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-5)
    assert found["config"]["unmask_plan"] == "pseudo_words"
    for wrong, says in (
        ("pretrained=x", "takes --model_args path=RUN"),
        (f"path={run},plan=decoder", "does not fit"),
        (f"path={run},order=sure", "order=sure is not known"),
        (f"path={run},steps=many", "steps=many must be a whole number"),
        (f"path={run},block=-1", "block=-1 must be at least 1"),
    ):
        with pytest.raises(UserError, match=says):
            get_model("unmask").create_from_arg_string(wrong)
    causal = written_run(model_of("causal"), tmp_path / "causal")
    with pytest.raises(UserError, match="writes from left to right: leave out steps, order"):
        get_model("unmask").create_from_arg_string(f"path={causal},steps=4")


def test_the_command_line_writes_by_steps_order_and_block(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    lm = model_of("masked", max_position=96)
    run = written_run(lm, tmp_path / "run")
    words = ["lm-eval", "run", "--model", "unmask", "--tasks", "local_writing", "--include_path", str(tasks)]
    words += ["--output_path", str(tmp_path / "out"), "--log_samples", "--model_args"]
    app([*words, f"path={run},steps=4,order=mask_predict,block=3"], standalone_mode=False)
    (file,) = (tmp_path / "out").rglob("samples_*.jsonl")
    written = [json.loads(line)["resps"][0][0] for line in file.read_text().splitlines()]
    asked: Any = {"max_tokens": 6, "stop": ["."]}
    prompts = [p["prompt"] for p in PROMPTS]
    assert written == lm.generate(prompts, steps=4, order="mask_predict", block=3, **asked)
    assert written != lm.generate(prompts, **asked)
    (file,) = (tmp_path / "out").rglob("results_*.json")
    how = json.loads(file.read_text())["config"]["unmask_writing"]
    assert how == {"steps": 4, "order": "mask_predict", "block": 3}
