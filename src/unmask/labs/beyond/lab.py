"""The laboratory by name, and its picture; what trains models is loaded when it runs."""

from __future__ import annotations

from unmask.chart import Chart, Series, svg
from unmask.compare.results import Results
from unmask.labs.base import Asked, Lab

PANELS = {
    "Masks of 15, 30 and 40 %": ("masked 15 %", "masked 30 %", "masked 40 %"),
    "Remedies for T5, chosen beforehand": (
        "T5",
        "T5, twice the updates",
        "T5, spans of 3",
        "T5, half prefix LM",
        "T5, relative positions",
        "T5, one stack",
    ),
    "Remedies for T5, found on another seed": (
        "T5",
        "T5, larger initial weights",
        "T5, one gap a window",
        "T5, single words and spans of 3",
    ),
    "Mixtures and others": ("GPT-BERT", "AntLM", "permutation", "diffusion", "masked and next, behind a prefix", "UL2"),
}


def run(asked: Asked) -> Results:
    """Every subject under every seed (`study`)."""
    from unmask.labs.beyond.study import study

    return study(asked)


def picture(results: Results) -> str:
    """The rating along the training, means over seeds, with the best and the worst seed as a band."""
    return svg(*(_panel(results, title, names) for title, names in PANELS.items()))


def _panel(results: Results, title: str, names: tuple[str, ...]) -> Chart:
    lines = []
    for entry in (e for name in names for e in results.entries if e.name == name):
        steps = [point.step for point in entry.runs[0].points]
        each = [[run.points[k].values["rating"] or 0.0 for run in entry.runs] for k in range(len(steps))]
        means = [sum(values) / len(values) for values in each]
        lines.append(
            Series(entry.name, steps, means, [min(values) for values in each], [max(values) for values in each])
        )
    return Chart(title, tuple(lines), "updates", "right ratings")


LAB = Lab(
    "beyond",
    "Beyond: other mask rates, remedies for T5, hybrids, and how objectives pull",
    "what the notes name and do not try, on their text: who learns the rating, and whose gradients agree.",
    run,
    picture,
)
