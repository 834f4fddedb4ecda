"""The published orders, written down before the runs. Theirs are of fine-tuned models; ours are asked as they are.

An order that was published as a clear difference stands as one; what the papers call similar, or what lies less than a
point apart there, as "cannot be told apart".
"""

from __future__ import annotations

from collections.abc import Callable

from unmask.compare.results import Results
from unmask.labs.base import Statement, Verdict, claims
from unmask.labs.ladders.study import BART, ENCODER, LITTLE, T5
from unmask.labs.ladders.tables import tables
from unmask.labs.orders import Group

Judge = Callable[["Papers"], Verdict]


class Papers:
    """The entries of each paper, which have one budget and one or two stacks: each paper's share their noise."""

    def __init__(self, results: Results) -> None:
        shared = [(names, Group.of(results, names)) for names in (T5, BART, (*ENCODER, *LITTLE))]
        self.groups = {name: group for names, group in shared for name in names}

    def of(self, name: str) -> Group:
        """Those of an entry's paper that were run."""
        return self.groups[name]


def judged(results: Results) -> Results:
    """The record with its claims and tables."""
    return results.model_copy(update={"claims": claims(STATEMENTS, [Papers(results)]), "tables": tables(results)})


def _better(a: str, b: str) -> Judge:
    return lambda papers: papers.of(a).better(a, b)


def _unseen(*names: str) -> Judge:
    return lambda papers: papers.of(names[0]).unseen(*names)


def _no_better(a: str, b: str) -> Judge:
    return lambda papers: papers.of(a).no_better(a, b)


def _ahead_of_all(name: str, others: tuple[str, ...], worse: bool = False) -> Judge:
    """Whether an entry is ahead of each of others, or behind."""

    def judge(papers: Papers) -> Verdict:
        pairs = [(other, name) if worse else (name, other) for other in others]
        found = [papers.of(name).better(*pair, of=len(pairs)) for pair in pairs]
        held = [holds for holds, _ in found]
        told = "; ".join(f"{a}, {b}: {said}" for (a, b), (_, said) in zip(pairs, found, strict=True))
        return (False if False in held else None if None in held else True), told

    return judge


STATEMENTS: tuple[Statement[Papers], ...] = (
    Statement(
        "In T5, denoising (BERT-style) is ahead of a prefix LM",
        "T5 table 4 (82.96, 80.69)",
        _better("bert-style", "prefix-lm"),
    ),
    Statement(
        "In T5, writing the spans alone cannot be told apart from writing the whole text",
        "T5 table 5 (83.28, 82.96)",
        _unseen("iid-15", "bert-style"),
    ),
    Statement(
        "In T5, 15 and 25 % of noise cannot be told apart", "T5 table 6 (83.28, 83.00)", _unseen("iid-15", "iid-25")
    ),
    Statement("In T5, 15 % of noise are ahead of 50 %", "T5 table 6 (83.28, 81.27)", _better("iid-15", "iid-50")),
    Statement(
        "In T5, spans of 3 cannot be told apart from single tokens",
        "T5 table 7 (83.49, 83.28)",
        _unseen("iid-15", "span-3"),
    ),
    Statement("In T5, spans of 3 are ahead of spans of 10", "T5 table 7 (83.49, 82.85)", _better("span-3", "span-10")),
    Statement(
        "In T5, two stacks that share their weights cannot be told apart from two of their own",
        "T5 table 2 (82.81, 83.28)",
        _unseen("iid-15", "shared"),
    ),
    Statement(
        "In T5, two stacks are ahead of one that reads the source both ways",
        "T5 table 2 (83.28, 81.82)",
        _better("iid-15", "one-stack"),
    ),
    Statement(
        "In BART, infilling is ahead of token masking",
        "BART table 1 (ELI5 24.26, 25.05)",
        _better("infilling", "masking"),
    ),
    Statement(
        "In BART, sentence permutation beside token masking changes nothing that can be told",
        "BART table 1 (24.26 and 24.17, beside infilling)",
        _unseen("masking", "masking+permutation"),
    ),
    Statement(
        "In BART, rotation beside token masking does harm",
        "ours, after BART table 1 (53.69 alone)",
        _better("masking", "masking+rotation"),
    ),
    Statement(
        "In RoBERTa, static and dynamic masks cannot be told apart",
        "RoBERTa table 1 (SQuAD 78.3, 78.7; MNLI 84.3, 84.0)",
        _unseen("little-static", "little-dynamic"),
    ),
    Statement(
        "In RoBERTa, single sentences in pairs are behind all other inputs",
        "RoBERTa table 2 (MNLI 82.9; 84.0, 84.7)",
        _ahead_of_all("sentence-pair+nsp", ("segment-pair+nsp", "full-sentences"), worse=True),
    ),
    Statement(
        "In RoBERTa, full sentences without NSP are no worse than segment pairs with it",
        "RoBERTa table 2 (84.7, 84.0); notes 4.3",
        _no_better("segment-pair+nsp", "full-sentences"),
    ),
    Statement(
        "In RoBERTa, a larger batch is ahead at equal tokens, its rate adapted",
        "RoBERTa table 3 (perplexity 3.68, 3.99)",
        _better("batch-x4", "full-sentences"),
    ),
    Statement(
        "In RoBERTa, more text is ahead of less at equal compute",
        "RoBERTa table 4; notes 4.3",
        _better("full-sentences", "little-dynamic"),
    ),
)
