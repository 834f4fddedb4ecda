"""Checkpoints of shards: every rank writes and reads its own rows; any layout goes on from any other, bit for bit."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import rankwork
import torch
from rankwork import losses
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.cli import app
from unmask.errors import UserError
from unmask.loading import gather
from unmask.tensors import save_tensors
from unmask.train import checkpoint
from unmask.train.layout import Shards
from unmask.train.ranks import Ranks
from unmask.train.sharded import Rows, Stored, save_share

Seen = dict[str, Any]
LAST = 6
FORMS = {"sharded": "fsdp", "gathered": "fsdp", "copies": "ddp"}
"""How a run was written."""


def job(out: str, **settings: Any) -> dict[str, Any]:
    """ELECTRA with shared tables, by Muon and AdamW."""
    given = {"parallel": "fsdp", "budget__steps": LAST, "checkpoint__every": 2, "checkpoint__keep": 1, **settings}
    return {"out": out, "case": "replaced", "settings": {k.replace("__", "."): v for k, v in given.items()}}


def again(form: str, how: str, ranks: int) -> dict[str, Any]:
    """A finished run that is taken up once more: what is loaded is what is there afterwards."""
    return {**job(f"{form}-{how}-x{ranks}", parallel=how), "of": form}


CUT = {"model__dropout": 0.1, "budget__steps": 16, "evaluation__every": 5, "checkpoint__background": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sharded")
    rankwork.write_text(place / "text.txt")
    return place


@pytest.fixture(scope="module")
def two(folder: Path, one_thread: None) -> dict[str, list[Seen]]:
    jobs = [
        *(job(form, parallel=how, checkpoint__sharded=form == "sharded") for form, how in FORMS.items()),
        *(
            job(f"{form}-meanwhile", parallel=how, checkpoint__sharded=form == "sharded", checkpoint__background=True)
            for form, how in FORMS.items()
        ),
        *(again(form, how, 2) for form in FORMS for how in ("fsdp", "ddp")),
        {**job("full"), "full": {"rank": 1, "step": 4}},
        {**job("full-meanwhile", checkpoint__background=True), "full": {"rank": 1, "step": 4}},
        job("uncut", **{**CUT, "checkpoint__background": False}),
        {**job("cut", **CUT), "signal": {"rank": 1, "step": 9}},
        {**job("resumed", **CUT), "of": "cut"},
    ]
    return rankwork.work(folder, jobs, 2)


@pytest.fixture(scope="module")
def three(folder: Path, two: dict[str, list[Seen]]) -> dict[str, list[Seen]]:
    return rankwork.work(folder, [*(again(form, "fsdp", 3) for form in FORMS), again("sharded", "ddp", 3)], 3)


def place(folder: Path, out: str, step: int = LAST) -> Path:
    return folder / out / "checkpoints" / f"step-{step}"


def stored(folder: Path, out: str, kind: str) -> dict[str, Tensor]:
    return {name: tensor[...] for name, tensor in Stored(place(folder, out), kind).items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ---------------------------------------------------------------- what lies there


def test_every_rank_writes_its_rows_once(folder, two) -> None:
    names = sorted(p.name for p in place(folder, "sharded").iterdir())
    parts = [f"{kind}-0000{r}-of-00002.safetensors" for kind in ("model", "optimizer") for r in (1, 2)]
    assert names == sorted([*parts, "manifest.json", "state.json"])
    manifest = json.loads((place(folder, "sharded") / "manifest.json").read_text())
    assert sorted(manifest["files"]) == sorted([*parts, "state.json"])
    whole = sum(w.numel() for w in two["sharded"][0]["weights"].values())
    written = [sum(t.numel() for t in load_file(place(folder, "sharded") / name).values()) for name in parts[:2]]
    assert sum(written) == whole and max(written) < 0.6 * whole
    for form in ("gathered", "copies"):
        assert (place(folder, form) / checkpoint.MODEL).exists()


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_holds_what_the_ranks_held(folder, two, form: str) -> None:
    for seen in two[form]:
        assert equal(stored(folder, form, checkpoint.MODEL), seen["weights"])
        assert equal(stored(folder, form, checkpoint.OPTIMIZER), seen["state"])
    kinds = {name.rpartition(":")[2] for name in two[form][0]["state"]}
    assert kinds == {"exp_avg", "exp_avg_sq", "step", "momentum"}


def test_the_form_changes_no_number(folder, two) -> None:
    for kind in (checkpoint.MODEL, checkpoint.OPTIMIZER):
        assert equal(stored(folder, "sharded", kind), stored(folder, "gathered", kind))
    assert losses(folder, "sharded") == losses(folder, "gathered")


@pytest.mark.parametrize("form", FORMS)
def test_saving_meanwhile_changes_no_number(folder, two, form: str) -> None:
    other = f"{form}-meanwhile"
    for kind in (checkpoint.MODEL, checkpoint.OPTIMIZER):
        assert equal(stored(folder, form, kind), stored(folder, other, kind))
    assert losses(folder, form) == losses(folder, other)
    files = {out: sorted(p.name for p in place(folder, out).iterdir()) for out in (form, other)}
    assert files[form] == files[other]
    found = [list(checkpoint.find(folder / out / "checkpoints").whole) for out in (form, other)]
    assert found == [[2, 4, 6]] * 2
    states = [checkpoint.read_state(place(folder, out)) for out in (form, other)]
    assert [s.pop("seconds") > 0 for s in states] == [True, True] and states[0] == states[1]
    assert two[form][0]["counters"]["checkpoint_bytes"] == two[other][0]["counters"]["checkpoint_bytes"]


# ---------------------------------------------------------------- other ranks


@pytest.mark.parametrize("form", FORMS)
def test_any_layout_goes_on_from_any_other_bit_for_bit(folder, two, three, form: str) -> None:
    alone = rankwork.run(folder, again(form, "auto", 1), Ranks())
    taken = [alone, *two[f"{form}-fsdp-x2"], *two[f"{form}-ddp-x2"], *three[f"{form}-fsdp-x3"]]
    taken += three["sharded-ddp-x3"] if form == "sharded" else []
    for seen in taken:
        assert seen["counters"]["step"] == LAST
        assert equal(seen["weights"], two[form][0]["weights"]) and equal(seen["state"], two[form][0]["state"])


def test_a_rank_reads_its_rows_alone(two, three) -> None:
    whole = sum(w.numel() for kind in ("weights", "state") for w in two["sharded"][0][kind].values())
    shares = [sum(seen["read"].values()) / whole for seen in two["sharded-fsdp-x2"]]
    thirds = [sum(seen["read"].values()) / whole for seen in three["gathered-fsdp-x3"]]
    assert max(shares) < 0.55 and max(thirds) < 0.4
    assert sum(two["sharded-ddp-x2"][1]["read"].values()) == whole


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rows", [1, 2, 3, 10, 12])
def test_rows_of_a_rank_are_those_of_chunk(rows: int, ranks: int) -> None:
    """FSDP2 cuts by torch.chunk; later ranks may hold nothing."""

    class Cut:
        def __init__(self, rank: int) -> None:
            self.shape, self.device_mesh, self.rank = (rows, 2), self, rank

        size, get_local_rank = lambda self: ranks, lambda self: self.rank

        def to_local(self) -> Tensor:
            parts = torch.arange(rows).chunk(ranks)
            return parts[self.rank] if self.rank < len(parts) else torch.empty(0)

    layout = Shards()
    layout._type = Cut
    found = [layout.rows(Cut(rank)) for rank in range(ranks)]
    assert [r for first, end in found for r in range(first, end)] == list(range(rows))


# ---------------------------------------------------------------- read elsewhere


def test_a_gather_is_the_plain_file(folder, two, tmp_path: Path, capsys) -> None:
    (folder / "sharded" / "recipe.yaml").write_text("{}")
    found = gather(folder / "sharded", tmp_path / "new" / "a.safetensors")
    assert (tmp_path / "new" / "a.safetensors").read_bytes() == (
        place(folder, "gathered") / checkpoint.MODEL
    ).read_bytes()
    assert found["step"] == LAST and found["tensors"] == len(two["sharded"][0]["weights"])
    with safe_open(tmp_path / "new" / "a.safetensors", "pt") as file:
        assert "generator.embedding.weight" in str(file.metadata()["aliases"])
    with pytest.raises(UserError, match=r"a\.safetensors is there already"):
        gather(folder / "sharded", tmp_path / "new" / "a.safetensors")
    app(["gather", str(folder / "sharded"), str(tmp_path / "b.safetensors"), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == {**found, "file": str(tmp_path / "b.safetensors")}
    with pytest.raises(UserError, match="no checkpoint '5'"):
        gather(folder / "sharded", tmp_path / "b", 5)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_a_checkpoint_of_shards(folder, two) -> None:
    """torch.distributed.checkpoint's own reader finds each tensor, of weights and optimizer, in one directory."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    wanted = {**two["sharded"][0]["weights"], **two["sharded"][0]["state"]}
    found = {name: torch.full_like(tensor, -1) for name, tensor in wanted.items()}
    load(found, storage_reader=HuggingFaceStorageReader(str(place(folder, "sharded"))), no_dist=True)
    assert equal(found, wanted)


def test_a_missing_or_damaged_part_is_no_checkpoint(folder, two, tmp_path: Path) -> None:
    run = tmp_path / "checkpoints"
    for step in (2, 4, 6):
        shutil.copytree(place(folder, "sharded", step), run / f"step-{step}")
    (run / "step-6" / "model-00002-of-00002.safetensors").unlink()
    file = run / "step-4" / "optimizer-00001-of-00002.safetensors"
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)
    found, passed = checkpoint.newest(run)
    assert found == run / "step-2"
    assert "step-6 (model-00002-of-00002.safetensors is missing)" in passed
    assert "step-4 (optimizer-00001-of-00002.safetensors is damaged)" in passed
    with pytest.raises(UserError, match="1 of 2 files are there"):
        Stored(run / "step-6", checkpoint.MODEL)
    checkpoint.lighten(run / "step-2")
    assert checkpoint.is_light(run / "step-2") and checkpoint.find(run).whole.keys() == {2, 4}
    assert not list((run / "step-2").glob("optimizer*"))


def test_rows_that_lack_are_named(tmp_path: Path) -> None:
    for rank, first in ((0, 0), (1, 3)):
        save_share({"w": Rows(torch.zeros(2, 4), first)}, tmp_path / f"m-0000{rank + 1}-of-00002.st", 2)
    with pytest.raises(UserError, match="'w' lacks rows"):
        Stored(tmp_path, "m.st")


def test_any_rows_are_read_from_any_cut(tmp_path: Path) -> None:
    whole = torch.arange(40.0).reshape(10, 4)
    for rank, part in enumerate(whole.split([3, 3, 4])):
        save_share({"w": Rows(part, 3 * rank)}, tmp_path / f"m-0000{rank + 1}-of-00003.st", 3)
    w = Stored(tmp_path, "m.st")["w"]
    assert w.shape == (10, 4) and torch.equal(w[...], whole)
    for first in range(11):
        for end in range(first, 11):
            assert torch.equal(w[first:end], whole[first:end])


@pytest.mark.parametrize("notes", [{}, {"aliases": '{"b": "ä"}'}])
def test_files_are_those_of_the_library_byte_for_byte(tmp_path: Path, notes: dict[str, str]) -> None:
    tensors = {
        "z.ä": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "step": torch.tensor(3.0),
        "i": torch.arange(4),
        "none": torch.zeros(0, 2),
        "turned": torch.randn(4, 3).t().contiguous(),
    }
    save_file(tensors, tmp_path / "theirs", notes or None)
    save_tensors({**tensors, "turned": tensors["turned"].t().contiguous().t()}, tmp_path / "ours", **notes)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_one_tensor_is_here_at_a_time(tmp_path: Path) -> None:
    """What is written may lie elsewhere: on a GPU, or in the files of many ranks."""
    alive: list[weakref.ref[Tensor]] = []

    class Elsewhere:
        shape, dtype = (3, 2), torch.float32

        def __getitem__(self, index: Any) -> Tensor:
            alive[:] = [one for one in alive if one() is not None]
            assert len(alive) <= 1
            made = torch.full(self.shape, 7.0)
            alive.append(weakref.ref(made))
            return made

    save_tensors({f"t{i}": Elsewhere() for i in range(5)}, tmp_path / "file")
    assert len(load_file(tmp_path / "file")) == 5 and not [one for one in alive if one() is not None]


# ---------------------------------------------------------------- stopped, and full disks


@pytest.mark.parametrize("out", ["full", "full-meanwhile"])
def test_t10_a_disk_that_is_full_for_one_rank_stops_all(folder, two, out: str) -> None:
    first, second = (seen["stopped"] for seen in two[out])
    assert first == "rank 1 cannot go on, and says why: the run stops on all 2 ranks"
    assert second.startswith("rank 1: no room to write") and "step-4: it needs" in second
    assert [p.name for p in (folder / out / "checkpoints").iterdir()] == ["step-2"]


def test_t01_a_run_that_saves_meanwhile_is_stopped_and_goes_on_bit_for_bit(folder, two) -> None:
    for seen in two["cut"]:
        assert seen["stopped"] == "SIGTERM" and seen["counters"]["step"] == 10
    assert list(checkpoint.find(folder / "cut" / "checkpoints").whole)[-1] == 10
    assert losses(folder, "uncut") == losses(folder, "resumed")
    for a, b in zip(two["uncut"], two["resumed"], strict=True):
        assert equal(a["weights"], b["weights"]) and equal(a["state"], b["state"])
