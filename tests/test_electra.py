"""The step of replaced-token objectives: sampling, labels, who moves whom, and what is learnt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.batch import Batch, Rows
from unmask.config import ModelConfig
from unmask.data.collate import collate
from unmask.electra import copy_loss, put, warning
from unmask.errors import UserError
from unmask.loss import Term, head_sum, sampled_sum
from unmask.model.cost import flops, head_flops
from unmask.model.heads import read
from unmask.networks import Shifted, networks_of, summed
from unmask.objectives import Replaced
from unmask.objectives.show import toy
from unmask.programs import norms_of, program_of
from unmask.run import batch_flops
from unmask.train.devices import to_device
from unmask.vocabulary import inverse

CONFIG = ModelConfig(
    vocab_size=100, hidden_size=32, num_layers=2, num_heads=4, max_position=64, head_transform=True, embedding_norm=True
)
CPU = torch.device("cpu")


def batch_of(objective: Replaced, lengths: tuple[int, ...] = (30, 12, 7), pad: int = 0) -> Batch:
    rng = np.random.default_rng(0)
    rows = Rows.of([rng.integers(5, 90, n) for n in lengths])
    name = objective.type
    return to_device(collate({name: objective(rows, toy())}, {name: objective.heads()}, pad=pad), CPU)


def terms_of(
    objective: Replaced, networks: nn.ModuleDict, batch: Batch, told: list[tuple[Tensor, Tensor]] | None = None
) -> dict[str, Term]:
    """The terms by head; `told` receives the detection head's scores and labels."""
    with pytest.MonkeyPatch.context() as patch:
        if told is not None:
            ours = F.binary_cross_entropy_with_logits
            patch.setattr(
                F,
                "binary_cross_entropy_with_logits",
                lambda x, y, **more: (told.append((x.detach(), y)), ours(x, y, **more))[1],
            )
        return {key[1]: term for key, term in program_of(objective)(networks, batch, None).items()}


def total(terms: dict[str, Term]) -> Tensor:
    """The loss."""
    return torch.stack([t.coefficient * t.sum / t.norm for t in terms.values()]).sum()


def value(term: Term) -> float:
    return term.sum.item() / term.norm


# ---------------------------------------------------------------- sampling


def test_samples_follow_the_softmax() -> None:
    """Chi-squared against the softmax in fp64, at logits that differ by up to 9 nats; 1 in 1,000."""
    torch.manual_seed(0)
    for logits in (torch.randn(40) * 2, torch.cat([torch.zeros(1), torch.full((39,), -9.0)]), torch.zeros(40)):
        n = 200_000
        draw = torch.rand(n, dtype=torch.float64)
        drawn = torch.cat([inverse(logits.softmax(0).expand(len(part), 40), part) for part in draw.split(10_000)])
        expected = logits.double().softmax(0) * n
        big = expected >= 10
        observed, expected = torch.bincount(drawn, minlength=40)[big].double(), expected[big]
        chi = float(((observed - expected) ** 2 / expected).sum())
        k = int(big.sum()) - 1
        assert chi < k + 3.1 * np.sqrt(2 * k) + 6, (chi, k)


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.full((5, 6), -torch.inf)
    logits[:, 2], logits[:, 4] = 0.0, 0.0
    draw = torch.tensor([0.0, 0.25, 0.4999999, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert inverse(logits.softmax(1), draw).tolist() == [2, 2, 2, 4, 4]
    wide = torch.zeros(5, 1000)
    wide[:, 300], wide[:, 999] = 0.5, 0.5
    assert inverse(wide, draw).tolist() == [300, 300, 300, 999, 999]


def test_samples_are_those_of_all_sums_in_fp64() -> None:
    torch.manual_seed(0)
    shares = (torch.randn(300, 1031) * 3).softmax(1)
    draw = torch.rand(300, dtype=torch.float64)
    sums = shares.double().cumsum(1)
    expected = torch.searchsorted(sums, draw[:, None] * sums[:, -1:], right=True).squeeze(1)
    assert torch.equal(inverse(shares, draw), expected)


def test_what_is_sampled_is_what_the_loss_reads() -> None:
    """Loss and gradient are those without sampling; samples and right answers are those of the head's logits."""
    objective = Replaced()
    networks, batch = networks_of(objective, CONFIG), batch_of(objective)
    head, targets = batch.heads["replaced", "lm"], batch.targets["replaced", "lm"]
    module = networks["generator"].heads["lm"]
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape))
    states = torch.randn(*batch.stream.tokens.shape, 8, requires_grad=True)
    total, drawn = sampled_sum(head, module, states, batch, targets)
    plain = head_sum(head, module, states, batch, targets)
    assert torch.equal(total, plain)
    (one,), (two,) = torch.autograd.grad(total, states), torch.autograd.grad(plain, states)
    assert torch.equal(one, two)
    logits = module.project(module.features(read(states, batch.stream, head, targets.index)))
    assert drawn.tokens.tolist() == inverse(logits.softmax(-1), targets.draw).tolist()
    assert drawn.right.tolist() == (logits.argmax(-1) == targets.value).tolist()
    assert not drawn.tokens.requires_grad and len(set(drawn.tokens.tolist())) > 3


def test_padding_of_targets_replaces_nothing() -> None:
    """Padded slots point at place 0 of the first row, where they must not write (google-research/electra, 5.3)."""
    objective = Replaced(mask_share=0.0)  # the generator reads the text itself
    batch = batch_of(objective)
    t = batch.targets["replaced", "lm"]
    assert (t.weight == 0).any()
    out = put(batch.stream, t, torch.full_like(t.value, 77)).tokens
    changed = (out != batch.stream.tokens).reshape(-1).nonzero().squeeze(1)
    assert changed.tolist() == sorted(t.index[t.weight > 0].tolist()) and out[0, 0] == 2


# ---------------------------------------------------------------- O17, O18


def test_o17_both_networks_move() -> None:
    objective = Replaced()
    networks, batch = networks_of(objective, CONFIG), batch_of(objective)
    before = {name: p.detach().clone() for name, p in networks.named_parameters()}
    optimizer = torch.optim.SGD(networks.parameters(), 0.1)
    terms = terms_of(objective, networks, batch)
    total(terms).backward()
    optimizer.step()
    still = {name for name, p in networks.named_parameters() if torch.equal(p, before[name])}
    assert not still, still
    assert {t for t in terms if terms[t].coefficient} == {"lm", "rtd"}


class Answering(nn.Module):
    """A head that is certain: of the tokens it is given, in order of the targets, or of one other than them."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(100, 8))
        self.logits = F.one_hot(tokens, 100) * 100.0

    def features(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        return self.logits

    def project(self, x: Tensor) -> Tensor:
        return x

    def projection(self) -> Any:
        return torch.eye(100), None, 1.0, None


@pytest.mark.parametrize("right", [True, False])
def test_o18_a_sample_that_is_the_original_is_original(right: bool) -> None:
    objective = Replaced()
    networks, batch = networks_of(objective, CONFIG), batch_of(objective)
    t, asked = batch.targets["replaced", "lm"], batch.targets["replaced", "rtd"]
    networks["generator"].heads["lm"] = Answering(t.value if right else torch.where(t.value == 50, 51, 50))
    told: list[tuple[Tensor, Tensor]] = []
    terms = terms_of(objective, networks, batch, told)
    assert asked.index is not None and t.index is not None
    replaced = asked.index[(told[0][1] == 1) & (asked.weight > 0)].tolist()
    assert replaced == ([] if right else sorted(t.index[t.weight > 0].tolist()))
    real = set(asked.index[asked.weight > 0].tolist())
    block, tokens = batch.stream.block.reshape(-1), batch.stream.tokens.reshape(-1)
    assert real == {i for i in range(len(block)) if block[i] != 0 and int(tokens[i]) not in (2, 3)}
    assert value(terms["replaced"]) == (0.0 if right else 1.0) and value(terms["generator_accuracy"]) == float(right)
    assert value(terms["always_original"]) == pytest.approx(1 - len(replaced) / len(real))


def test_padding_changes_no_term() -> None:
    objective = Replaced()
    networks = networks_of(objective, CONFIG)
    a, b = (terms_of(objective, networks, batch_of(objective, pad=pad)) for pad in (0, 9))
    assert {k: t.sum.item() for k, t in a.items()} == {k: t.sum.item() for k, t in b.items()}


# ---------------------------------------------------------------- O19: who moves whom

SHARED = {
    "none": set(),
    "embeddings": {
        "embedding.weight",
        "stack.positions.weight",
        "stack.embedding_norm.weight",
        "stack.embedding_norm.bias",
    },
}


def moved(objective: Replaced, term: str) -> dict[str, set[str]]:
    """Names of the parameters of each network with a gradient other than zero from one term."""
    networks, batch = networks_of(objective, CONFIG), batch_of(objective)
    terms_of(objective, networks, batch)[term].sum.backward()
    return {
        name: {n for n, p in network.named_parameters() if p.grad is not None and bool(p.grad.any())}
        for name, network in networks.items()
    }


@pytest.mark.parametrize("sharing", ["none", "embeddings"])
def test_o19_detection_moves_what_is_shared_of_the_generator_and_no_more(sharing: str) -> None:
    objective = Replaced(sharing=sharing)  # type: ignore[arg-type]
    by_detection, by_masks = moved(objective, "rtd"), moved(objective, "lm")
    assert by_detection["generator"] == SHARED[sharing] and by_masks["model"] == SHARED[sharing]
    everything = {n for n, _ in networks_of(objective, CONFIG)["model"].named_parameters()}
    assert by_detection["model"] == everything


def test_o19_gdes_detection_moves_the_difference_alone() -> None:
    """He et al. 2023, section 3.3."""
    objective = Replaced.deberta_v3()
    by_detection, by_masks = moved(objective, "rtd"), moved(objective, "lm")
    assert by_detection["generator"] == set()
    tables = {"embedding", "stack.positions"}
    assert {f"{t}.delta" for t in tables} <= by_detection["model"]
    assert not {f"{t}.weight" for t in tables} & by_detection["model"]
    assert by_masks["model"] == {f"{t}.weight" for t in tables} <= by_masks["generator"]


def test_gdes_reads_the_sum_and_starts_as_the_generator() -> None:
    networks = networks_of(Replaced.deberta_v3(), CONFIG)
    table, own = networks["model"].embedding, networks["generator"].embedding
    index = torch.arange(100)
    assert isinstance(table, Shifted) and table.weight is own.weight and torch.equal(table(index), own(index))
    with torch.no_grad():
        table.delta.add_(0.5)
        own.weight.mul_(2.0)
    seen = table(index)
    assert torch.equal(seen, own.weight + 0.5)
    batch = batch_of(Replaced.deberta_v3())
    before = networks["model"](batch)["stream"]
    plain = summed(networks["model"])
    assert not isinstance(plain.embedding, Shifted) and torch.equal(plain.embedding.weight, seen)
    assert torch.equal(plain(batch)["stream"], before)
    assert "delta" not in " ".join(plain.state_dict())


def test_sharing_everything_leaves_the_heads_apart() -> None:
    networks = networks_of(Replaced(sharing="all", generator_width=1.0), CONFIG)
    ours, theirs = (dict(networks[name].named_parameters()) for name in ("model", "generator"))
    apart = {n for n in theirs if theirs[n] is not ours.get(n)}
    assert apart and all(n.startswith("heads.lm.") for n in apart)
    assert networks["generator"].heads["lm"].weight is networks["model"].embedding.weight


def test_networks_of_one_shape_do_not_start_alike() -> None:
    networks = networks_of(Replaced(sharing="none", generator_width=1.0), CONFIG)
    a, b = (networks[name].embedding.weight.detach() for name in ("model", "generator"))
    assert abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])) < 0.1


def test_gdes_and_a_tied_head_are_refused() -> None:
    with pytest.raises(UserError, match=r"sharing=gdes .* head 'lm' cannot be tied"):
        networks_of(Replaced(sharing="gdes", task="recovery"), CONFIG)


# ---------------------------------------------------------------- O20: the report


def test_o20_figures_of_a_generator_that_is_always_right_and_of_one_at_random() -> None:
    objective = Replaced()
    networks, batch = networks_of(objective, CONFIG), batch_of(objective, (40,) * 8)
    found = {k: value(t) for k, t in terms_of(objective, networks, batch).items()}
    assert found["replaced"] > 0.9 and found["generator_accuracy"] < 0.15  # untrained: 1 in 100
    assert found["always_original"] == pytest.approx(1 - found["replaced"] * 0.15, abs=1e-6)
    t = batch.targets["replaced", "lm"]
    networks["generator"].heads["lm"] = Answering(t.value)
    good = {k: value(t) for k, t in terms_of(objective, networks, batch).items()}
    assert good["always_original"] == 1.0 and good["generator_accuracy"] == 1.0
    assert warning(good) is not None  # no discriminator passes a baseline of 1
    assert warning({**found, "accuracy": found["always_original"] + 0.02}) is None
    assert "it detects nothing yet" in str(warning({**found, "accuracy": found["always_original"]}))


def test_figures_do_not_depend_on_micro_batches() -> None:
    objective = Replaced()
    networks = networks_of(objective, CONFIG)
    parts = [batch_of(objective, (n,)) for n in (30, 12, 7)]
    norms: dict[Any, float] = {}
    sums: dict[Any, float] = {}
    for part in parts:
        for key, norm in norms_of(objective)(networks, part).items():
            norms[key] = norms.get(key, 0.0) + norm
        for key, term in program_of(objective)(networks, part, None).items():
            sums[key] = sums.get(key, 0.0) + term.sum.item()
    assert norms.keys() == sums.keys()
    counts = (sum(max(1, round(0.15 * n)) for n in (30, 12, 7)), 49.0)
    assert {key[1]: n for key, n in norms.items()} == {
        **dict.fromkeys(("lm", "generator_accuracy", "replaced"), counts[0]),
        **dict.fromkeys(("rtd", "accuracy", "always_original"), counts[1]),
    }


# ---------------------------------------------------------------- ablations of section 3.5


def test_replace_mlm_asks_the_masked_places_of_the_replaced_text() -> None:
    objective = Replaced.replace_mlm()
    networks, batch = networks_of(objective, CONFIG), batch_of(objective)
    seen: list[Tensor] = []
    networks["model"].register_forward_pre_hook(lambda module, given: seen.append(given[0].stream.tokens))
    terms = terms_of(objective, networks, batch)
    t = batch.targets["replaced", "lm"]
    flat, real = seen[0].reshape(-1), t.index[t.weight > 0]
    assert not (flat == 4).any() and (flat[real] != t.value[t.weight > 0]).any()
    logits = networks["model"].heads["lm"]
    states = networks["model"](replace(batch, stream=replace(batch.stream, tokens=seen[0])))["stream"].flatten(0, 1)
    direct = F.cross_entropy(logits.project(logits.features(states[real][:, None])), t.value[t.weight > 0])
    assert value(terms["recovery"]) == pytest.approx(float(direct), rel=1e-5)


def test_the_copy_gate_is_the_paper_s_mixture() -> None:
    objective = Replaced.all_tokens_mlm()
    networks, batch = networks_of(objective, CONFIG), batch_of(objective)
    targets = batch.targets["replaced", "recovery"]
    n = len(targets.value)
    torch.manual_seed(0)
    states = torch.randn(n, 1, 32, requires_grad=True)
    gate = torch.randn(n, requires_grad=True)
    same = torch.rand(n) < 0.8
    module = networks["model"].heads["lm"]
    total = copy_loss(module, states, gate, targets, same)
    softmax = module.project(module.features(states)).double().softmax(-1)[torch.arange(n), targets.value]
    d = gate.double().sigmoid()
    direct = -((d * same + (1 - d) * softmax).log() * targets.weight).sum()
    assert float(total) == pytest.approx(float(direct), rel=1e-6)
    ours = torch.autograd.grad(total, (states, gate), retain_graph=True)
    theirs = torch.autograd.grad(direct, (states, gate))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("make", [Replaced.electra_15, Replaced.replace_mlm, Replaced.all_tokens_mlm])
def test_ablations_move_every_parameter(make: Any) -> None:
    objective = make()
    networks, batch = networks_of(objective, CONFIG), batch_of(objective)
    terms = terms_of(objective, networks, batch)
    total(terms).backward()
    assert not [n for n, p in networks.named_parameters() if p.grad is None or not p.grad.any()]


def test_flops_are_those_of_both_networks_and_of_sampling() -> None:
    objective = Replaced()
    rng = np.random.default_rng(0)
    rows = Rows.of([rng.integers(5, 90, n) for n in (30, 12, 7)])
    batch = collate({"replaced": objective(rows, toy())}, {"replaced": objective.heads()})
    config = objective.networks(CONFIG)
    lm, rtd = objective.heads()
    tokens = 49 + 3 * 2
    masked = sum(max(1, round(0.15 * n)) for n in (30, 12, 7))
    expected = (
        flops(config["generator"], tokens, targets=[(lm, masked)], context=32)
        + masked * head_flops(config["generator"], lm)
        + flops(config["model"], tokens, targets=[(rtd, 49)], context=32)
    )
    assert batch_flops(CONFIG, batch, objective) == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------- learning


def test_a_discriminator_overfits_64_sentences() -> None:
    """Balanced accuracy: the mean of the shares of replaced and of original tokens told right; 0.5 by guessing."""
    objective = Replaced(mask_rate=0.3)
    rng = np.random.default_rng(0)
    rows = Rows.of([rng.integers(5, 45, n) for n in rng.integers(6, 13, 64)])
    networks = networks_of(objective, CONFIG.model_copy(update={"hidden_size": 64}))
    batch = to_device(collate({"replaced": objective(rows, toy())}, {"replaced": objective.heads()}), CPU)
    optimizer = torch.optim.AdamW(networks.parameters(), lr=1e-3, betas=(0.9, 0.98))
    norm, reached = batch.targets["replaced", "rtd"].norm, []
    for _ in range(150):
        told: list[tuple[Tensor, Tensor]] = []
        terms = terms_of(objective, networks, batch, told)
        (said, label) = told[0]
        said, label = said[: int(norm)] > 0, label[: int(norm)] > 0  # what follows is padding
        reached.append(float(said[label].float().mean() + (~said[~label]).float().mean()) / 2)
        if reached[-1] >= 0.8:
            break
        optimizer.zero_grad()
        total(terms).backward()
        optimizer.step()
    assert reached[0] < 0.65 and reached[-1] >= 0.8, reached[::10]
