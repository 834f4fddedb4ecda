"""What users type: torchrun, its signals, a rank that dies, and sentences where something does not fit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rankwork
import torch

from unmask.cli import app
from unmask.errors import UserError
from unmask.loading import gather, load
from unmask.tensors import named_once
from unmask.train import checkpoint
from unmask.train.ranks import Group, Patient, Ranks
from unmask.train.sharded import Stored

STEPS = ["budget.steps=6", "checkpoint.every=2"]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    rankwork.write_text(Path("text.txt"))
    left = {k: v for k, v in rankwork.TINY.items() if not k.startswith(("budget", "checkpoint"))}
    return [f"{k}={v}" for k, v in left.items()] + ["corpus=text.txt", "corpus.document=blank_line", "cache=cache"]


def torchrun(*words: str, ranks: int = 2) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*launcher, "-m", "unmask", *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_torchrun_trains_one_run_that_one_process_continues(settings: list[str], tmp_path: Path) -> None:
    words = ["pretrain", "encoder-small", *settings, *STEPS, "out=run", "parallel=fsdp"]
    out, err = torchrun(*words, "--json").communicate(timeout=240)
    (line,) = out.splitlines()
    assert json.loads(line)["step"] == 6, err
    assert err.count("2 ranks hold shards (FSDP2) of the model; micro-batches of an update: 2") == 1
    assert err.count(" texts read in 6 updates, none twice") == 1 and "Traceback" not in err
    assert [x["step"] for x in rankwork.losses(tmp_path, "run")] == [1, 2, 3, 4, 5, 6]
    assert json.loads(Path("run/result.json").read_text())["step"] == 6
    lm = load("run")  # from two ranks' files, here
    assert len(list(Path("run/checkpoints/step-6").glob("model-*-of-00002.safetensors"))) == 2
    assert lm.step == 6 and gather("run", "plain.safetensors")["tensors"] == len(named_once(lm.network)[0])
    # As if it had been stopped after update 4: one process without torchrun goes on from there.
    checkpoint._remove(tmp_path / "run" / "checkpoints" / "step-6")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "unmask", "resume", "run"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    before, after = (json.loads(text.splitlines()[-1]) for text in (lines, Path("run/metrics.jsonl").read_text()))
    assert before["step"] == after["step"] == 6 and before["loss"] == pytest.approx(after["loss"], rel=1e-6)


def test_shards_start_with_a_given_models_weights(settings: list[str], tmp_path: Path) -> None:
    """Two networks, one of which the given run lacks; also when a run that was stopped early starts once more."""
    app(["pretrain", "decoder-small", *settings, "budget.steps=1", "out=given"], standalone_mode=False)
    own = [x for x in settings if not x.startswith(("model.", "tokenizer."))]
    still = ["train.learning_rate=1e-30", "train.muon_learning_rate=1e-30", "budget.steps=1"]  # no weight moves
    more = ["objective.type=replaced", "objective.sharing=embeddings", "init=given"]
    words = ["pretrain", "encoder-small", *own, *still, *more]
    app([*words, "out=one"], standalone_mode=False)
    wanted = Stored(tmp_path / "one" / "init" / "step-0", checkpoint.MODEL)
    for more in ([], ["resume=auto"]):
        with rankwork.start(["-m", "unmask", *words, "parallel=fsdp", "out=two", *more], 2) as ranks:
            told = [p.communicate(timeout=120)[1] for p in ranks]
            assert [p.returncode for p in ranks] == [0, 0], told
        there = Stored(tmp_path / "two" / "checkpoints" / "step-1", checkpoint.MODEL)
        assert there.keys() == wanted.keys() and len(there.files) == 2
        for name, tensor in wanted.items():
            assert torch.allclose(there[name][...], tensor[...], rtol=0, atol=1e-28), name
        shutil.rmtree(tmp_path / "two" / "checkpoints")
        (tmp_path / "two" / "plan.json").unlink()


def test_sigterm_to_torchrun_stops_all_ranks_with_a_checkpoint(settings: list[str]) -> None:
    words = ["pretrain", "encoder-small", *settings, "budget.steps=100000", "checkpoint.every=100000", "out=run"]
    process = torchrun(*words)
    try:
        wait_for(Path("run/metrics.jsonl"), process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    steps = [x["step"] for x in rankwork.losses(Path(), "run")]
    assert list(checkpoint.find(Path("run/checkpoints")).whole) == [steps[-1]] and out == ""
    assert err.count("stopped by SIGTERM after step") == 1, err


def wait_for(file: Path, process: subprocess.Popen[str], lines: int = 3) -> None:
    for _ in range(2000):
        if file.exists() and file.read_text().count("\n") >= lines:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    raise AssertionError(f"{file} was not written")


MEANWHILE = ["parallel=fsdp", "checkpoint.background=true"]


@pytest.mark.parametrize("how", [["parallel=ddp"], MEANWHILE], ids=["ddp", "fsdp, meanwhile"])
def test_t09_a_rank_that_dies_leaves_whole_checkpoints(settings: list[str], tmp_path: Path, how: list[str]) -> None:
    """SIGKILL to rank 1 while a checkpoint is written each update: rank 0 says so and exits with 2."""
    words = [*settings, *how, "budget.steps=100000", "checkpoint.every=1", "checkpoint.keep=2", "out=run"]
    with rankwork.start(["-m", "unmask", "pretrain", "encoder-small", *words], 2) as (first, second):
        wait_for(Path("run/metrics.jsonl"), first, 8)
        second.kill()
        _, err = first.communicate(timeout=120)
    assert first.returncode == 2 and "error: another rank is gone: checkpoints that were written are whole" in err
    assert "resume=auto" in err and "Traceback" not in err
    newest, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert newest is not None and checkpoint.read_state(newest)["step"] >= 6


@pytest.mark.slow
def test_t01_ranks_that_are_killed_while_they_save_all_the_time(settings: list[str], tmp_path: Path) -> None:
    """SIGKILL to both, three times; each life writes shards meanwhile. The run is the uncut one, bit for bit."""
    words = [*settings, *MEANWHILE, "budget.steps=40", "checkpoint.every=1", "checkpoint.keep=2", "model.dropout=0.1"]
    program = ["-m", "unmask", "pretrain", "encoder-small", *words, "resume=auto"]
    for life, lines in enumerate((4, 15, 29, None, None)):
        out = "uncut" if life == 4 else "cut"
        with rankwork.start([*program, f"out={out}"], 2) as ranks:
            if lines is not None:
                wait_for(Path(out, "metrics.jsonl"), ranks[0], lines)
                time.sleep(0.01 * life)
                continue  # which kills them
            told = [process.communicate(timeout=240)[1] for process in ranks]
            assert [process.returncode for process in ranks] == [0, 0], told
    assert rankwork.losses(tmp_path, "cut") == rankwork.losses(tmp_path, "uncut")
    for kind in (checkpoint.MODEL, checkpoint.OPTIMIZER):
        cut, uncut = (Stored(tmp_path / out / "checkpoints" / "step-40", kind) for out in ("cut", "uncut"))
        assert cut.keys() == uncut.keys() and all(torch.equal(cut[k][...], uncut[k][...]) for k in cut)


def test_what_does_not_fit_is_one_sentence_of_rank_0(settings: list[str]) -> None:
    words = ["-m", "unmask", "pretrain", "encoder-small", *settings, *STEPS, "out=run"]
    alone = subprocess.run([sys.executable, *words, "parallel=ddp"], capture_output=True, text=True)
    assert alone.returncode == 2 and alone.stderr.count("\n") == 1
    assert "parallel=ddp needs several processes, and this is one: start it with torchrun" in alone.stderr
    Path("failing").write_text("a file")
    for more, sentence in (
        (["parallel=fsdp", "evaluation.gradients_every=1"], "evaluation.gradients_every compares whole gradients"),
        (["out=failing"], "out=failing is a file: give a directory"),
    ):
        with rankwork.start([*words, *more], 2) as ranks:
            told = [p.communicate(timeout=120) for p in ranks]
            assert [p.returncode for p in ranks] == [2, 2], told
        last = told[0][1].splitlines()[-1]  # the text may have been read before
        assert last.startswith("error: ") and sentence in last and told[1][1] == "", told
        assert [out for out, _ in told] == ["", ""]


def test_what_fails_on_one_rank_alone_is_told_by_it_and_stops_all(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from unmask import cli, errors\n"
        "from unmask.train.ranks import session\n"
        "def work(**_):\n"
        "    with session('cpu') as ranks:\n"
        "        with ranks.together():\n"
        "            if ranks.rank == 1: raise errors.UserError('no disk here')\n"
        "cli.app = work\n"
        "cli.main()\n"
    )
    with rankwork.start(["-c", code], 2) as ranks:
        told = [p.communicate(timeout=120)[1] for p in ranks]
        assert [p.returncode for p in ranks] == [2, 2], told
    assert told[0] == "error: rank 1 cannot go on, and says why: the run stops on all 2 ranks\n"
    assert told[1] == "error: rank 1: no disk here\n"


def test_variables_of_half_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    from unmask.train.ranks import session

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match="WORLD_SIZE=2 is set and RANK is not"), session("cpu"):
        pass


def test_a_repeated_signal_is_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stop = Patient()
    stop._handle(signal.SIGTERM, None)
    now[0] += 5.0
    stop._handle(signal.SIGTERM, None)
    assert stop.requested == "SIGTERM"
    now[0] += 11.0
    with pytest.raises(KeyboardInterrupt):
        stop._handle(signal.SIGTERM, None)


def test_one_gpu_by_number_is_none_of_many_ranks() -> None:
    group = Group.__new__(Group)
    group.count, group.local = 2, 1
    with pytest.raises(UserError, match="device=cuda:0 is one GPU and there are 2 ranks"):
        group.device("cuda:0")
    assert group.device("cpu").type == "cpu"


def test_one_process_is_dealt_all() -> None:
    ranks = Ranks()
    assert list(ranks.deal(4)) == [0, 1, 2, 3] and ranks.add([1.0, 2.0]) == [1.0, 2.0] and ranks.describe(4) is None
