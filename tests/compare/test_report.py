"""The page as text: all of the record is on it, escaped, well formed, self-contained, light, the same each time."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from unmask.cli import compare as console
from unmask.compare.page import curves
from unmask.compare.page.verdict import verdict
from unmask.compare.report import page, write_report
from unmask.compare.results import Comparison, Level, Point, Results
from unmask.compare.statistics import compared, holm

from .example import NAMES, example

VOID = {"meta", "link", "input", "br"}


class Read(HTMLParser):
    """Elements with attributes, and whether each is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def results() -> Results:
    return example()


@pytest.fixture(scope="module")
def read(results: Results) -> Read:
    return Read(page(results))


def test_it_is_well_formed_and_its_parts_can_be_found(read: Read) -> None:
    assert read.open == []
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in read.elements:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert attributes.get(name) is None or attributes[name] in ids
    assert {a["href"] for a in read.of("a")} <= {f"#{i}" for i in ids}
    for landmark in ("header", "nav", "main", "footer"):
        assert len(read.of(landmark)) == 1
    levels = [int(tag[1]) for tag, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_tables_have_captions_and_heads(read: Read) -> None:
    assert len(read.of("table")) == len(read.of("caption")) >= 9
    assert {a.get("scope") for a in read.of("th")} == {"col", "row"}
    wide = [a for a in read.of("div") if a.get("class") == "wide"]
    assert all(a["tabindex"] == "0" and a["role"] == "region" and a["aria-label"] for a in wide)


def test_nothing_is_asked_of_a_network(results: Results) -> None:
    text = page(results)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|\bsrc=|srcset|<iframe|<object|fetch\(|XMLHttp", text)
    assert "default-src 'none'" in text and len(re.findall("<script", text)) == 1


def test_all_of_the_record_is_on_it(results: Results, read: Read) -> None:
    text = read.text
    said: list[Any] = [results.title, results.command, results.contamination, *results.notes, *NAMES]
    said += [s for claim in results.claims for s in (claim.statement, claim.evidence, claim.source)]
    said += [s for m in results.measures for s in (m.label, m.protocol, *(level.label for level in m.levels))]
    said += [results.tables[0].title, results.tables[0].note, *results.tables[0].columns, "0.461"]
    said += [f"{e.parameters:,}" for e in results.entries] + [r for e in results.entries for r in e.cannot.values()]
    said += ["objective.type", "optimizer.lr", "device.cores", "3.11.7", "diverged", "still falling", "0.0625"]
    said += ["holds", "refuted", "undecided", "score", "fill", "generate", "embed", "zukun lives in", "quila. she has"]
    assert [s for s in said if " ".join(str(s).split()) not in text] == []
    differ, shared = text.split("Settings that all entries share", 1)
    assert "objective.rate" in differ.split("Settings that differ")[1] and "batch.tokens" in shared
    assert "batch.tokens" not in differ


def test_text_is_escaped_wherever_it_comes_from(results: Results) -> None:
    nasty = "<script>alert(1)</script>\"'&$title</style><img src=x onerror=y>\x00\ud800"

    def spoiled(value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return value if key in ("better", "measure") and value != nasty else nasty + value
        if isinstance(value, dict):
            return {k: spoiled(v, k) for k, v in value.items()}
        return [spoiled(v, key) for v in value] if isinstance(value, list) else value

    record = results.model_dump(mode="json")
    names = [m["name"] for m in record["measures"]]
    spoilt = spoiled(record)
    for name, measure in zip(names, spoilt["measures"], strict=True):
        measure["name"] = name
    for c, before in zip(spoilt["comparisons"], record["comparisons"], strict=True):
        c["measure"] = before["measure"]
    for e in spoilt["entries"]:
        e["settings"] = {f"{nasty}{k}": v for k, v in e["settings"].items()}
        e["can"] = {f"{nasty}{k}": v for k, v in e["can"].items()}
    text = page(Results.model_validate(spoilt))
    read = Read(text)
    assert read.open == [] and len(read.of("script")) == 1 and read.of("img") == []
    assert not any(name.startswith("on") for _, attributes in read.elements for name in attributes)
    assert "\x00" not in text and read.text.count("<script>alert(1)</script>\"'&$title") > 60
    assert text.encode()


def test_it_is_light_for_a_large_study(tmp_path: Path) -> None:
    large = example(tuple(f"{name}-{k}" for k in (1, 2) for name in NAMES), seeds=5, milestones=20)
    assert write_report(large, tmp_path).stat().st_size < 400_000


def test_the_same_record_makes_the_same_page(results: Results, tmp_path: Path) -> None:
    again = Results.read(results.write(tmp_path))
    file = write_report(again, tmp_path)
    assert file.name == "report.html" and file.read_text(encoding="utf-8") == page(results)


def test_a_record_may_be_nearly_empty() -> None:
    bare = Read(page(Results(title="t", command="c")))
    assert bare.open == [] and bare.of("section") == [] and bare.of("form") == []
    none = example(seeds=0)
    assert Read(page(none)).open == [] and none.comparisons == []


def test_what_was_tuned_is_not_called_shared() -> None:
    """Two entries found the same rates by their own trials; the batch size was given to both."""
    plain = example(names=("causal", "prefix"))
    rates = {"learning_rate": 3e-3, "muon_learning_rate": 0.02, "batch_size": 4}
    tuning = plain.entries[0].tuning
    assert tuning is not None
    tuning = tuning.model_copy(update={"setting": "train.learning_rate"})
    entries = [e.model_copy(update={"settings": {"train": rates}, "tuning": tuning}) for e in plain.entries]
    text = Read(page(plain.model_copy(update={"entries": entries}))).text
    tuned, shared = text.split("Tuned for each entry by itself", 1)[1].split("Settings that all entries share", 1)
    shared = shared.split("Environment")[0]
    assert "train.learning_rate" in tuned and "train.muon_learning_rate" in tuned and "0.003" in tuned
    assert "learning_rate" not in shared and "train.batch_size" in shared and "Settings that differ" not in text
    untuned = [e.model_copy(update={"tuning": None}) for e in entries]
    text = Read(page(plain.model_copy(update={"entries": untuned}))).text
    assert "Tuned for" not in text and "train.learning_rate" in text.split("Settings that all entries share", 1)[1]


def test_the_verdict_has_a_heading_that_is_true() -> None:
    """Claims of a laboratory alone, and one seed, say of no difference whether it is real."""
    differences = "Which differences are real"
    several, one = example(seeds=3), example(seeds=1)
    claims = several.model_copy(update={"comparisons": [], "entries": [], "measures": []})
    assert f'<h2 id="verdict-title">{differences}</h2>' in page(several)
    for results in (one, claims):
        text = page(results)
        assert differences not in text and '<h2 id="verdict-title">In short</h2>' in text
        assert '<a href="#verdict">In short</a>' in text


def test_the_console_says_which_p_it_prints_and_when_seeds_are_too_few(capsys: pytest.CaptureFixture[str]) -> None:
    study = example(seeds=5)
    console._print(study, Path("s"))
    said = capsys.readouterr().out
    corrected = holm([c.p for c in study.comparisons])
    assert [c.p for c in study.comparisons] != corrected
    for c, p in zip(study.comparisons, corrected, strict=True):
        verdict = "real" if c.real else "not told apart"
        assert f"{c.measure}: {c.a} − {c.b} = {c.difference:.4g} (p {p:.2g}, {verdict})\n" in said
    assert "Holm's correction for all comparisons of the study\n" in said and "fewer than" not in said
    console._print(example(seeds=2), Path("s"))
    said = capsys.readouterr().out
    assert "too few seeds to tell)" in said and "not told apart" not in said and "real)" not in said
    assert said.count("which differences are real is not decided with fewer than 3 seeds: this study has 2") == 1
    console._print(example(seeds=1), Path("s"))
    said = capsys.readouterr().out
    assert "(p " not in said and "fewer than 3 seeds: this study has 1" in said
    console._print(study.model_copy(update={"comparisons": []}), Path("s"))
    assert "seeds" not in capsys.readouterr().out


def test_a_real_difference_below_what_is_trivial_says_little() -> None:
    """Of ratings, shares between 0 and 1: a level of 2 is beyond them all, one of 0 beyond none."""

    def told(level: float) -> tuple[str, str, str]:
        study = example(seeds=5)
        measures = [m.model_copy(update={"levels": [Level(label="a guess", value=level)]}) for m in study.measures[:1]]
        study = study.model_copy(update={"measures": measures, "comparisons": study.comparisons[:6]})
        return Read(verdict(study)).text, Read(page(study)).text, "\n".join(console._differences(study))

    remark = "none of them is better than a guess: this says little"
    above, all_of_it, lines = told(2.0)
    assert above.count("really ahead") == above.count(f"({remark})") > 0
    assert f"real {remark}" in all_of_it and f", real, but {remark})" in lines
    assert all(remark not in text for text in told(0.0))


def test_one_seed_claims_nothing() -> None:
    text = Read(page(example(seeds=1))).text
    assert "There is one seed: which differences are real cannot be said" in text
    assert "really" not in text and "not told apart" not in text and "95 % interval: a bootstrap" not in text


def test_each_measure_has_a_chart_for_each_axis_and_one_axis_stands_without_a_script(results: Results) -> None:
    charts = [a for a in Read(page(results)).of("figure")]
    assert [(c["data-measure"], c["data-axis"]) for c in charts] == [
        (m.name, a.name) for m in results.measures for a in curves.AXES
    ]
    assert all(("hidden" in c) == (c["data-axis"] != "step") for c in charts)


def test_milestones_are_means_over_runs(results: Results) -> None:
    entry = results.entries[2]
    (first, *_, last) = curves.milestones(entry)
    seconds = [run.points[0].seconds for run in entry.runs]
    assert first.at["seconds"] == pytest.approx(sum(seconds) / 5)
    assert last.values["rating"] == [run.points[-1].values["rating"] for run in entry.runs]
    line = next(line for line in curves.lines(results, "rating", "flops") if line.name == "masked")
    values = last.values["rating"]
    assert line.points[-1][1:] == (pytest.approx(sum(values) / 5), min(values), max(values))
    assert "causal" not in [line.name for line in curves.lines(results, "fill", "step")]


def test_values_are_drawn_where_they_belong(results: Results) -> None:
    """Ticks stand at percentages, strokes at thousandths: both by the same scales."""
    measure = results.measures[0]
    drawn = curves.lines(results, "rating", "step")
    text = curves.figure(measure, curves.AXES[0], drawn, hidden=False)
    ticks = {float(t): float(p) for p, t in re.findall(r'class="y" style="top:([\d.]+)%">([\d.]+)<', text)}
    (low, at_low), (high, at_high) = min(ticks.items()), max(ticks.items())
    unit = (at_high - at_low) / (high - low)
    path = re.findall(r'class="line" d="M([^"]+)"', text)[0]
    for point, (_, mean, _, _) in zip(path.split("L"), drawn[0].points, strict=True):
        assert float(point.split()[1]) / 10 == pytest.approx(at_low + unit * (mean - low), abs=0.15)
    levels = [float(v) / 10 for v in re.findall(r'class="level" d="M0 (\d+)H1000"', text)]
    assert levels == pytest.approx([at_low + unit * (level.value - low) for level in measure.levels], abs=0.15)
    xs = {float(t): float(p) for p, t in re.findall(r'class="x" style="left:([\d.]+)%">([\d.]+)<', text)}
    assert [float(p.split()[0]) / 1000 for p in path.split("L")] == pytest.approx(
        [p[0] / drawn[0].points[-1][0] for p in drawn[0].points], abs=1e-3
    )
    assert xs[0.0] == 0.0 and xs[1000.0] == pytest.approx(1e5 / 2640, abs=0.1)


def test_axes_are_logarithmic_where_milestones_double(results: Results) -> None:
    entry = results.entries[0]
    points = [p.model_copy(update={"step": 2**k}) for k, p in enumerate(entry.runs[0].points)]
    doubled = entry.model_copy(update={"runs": [entry.runs[0].model_copy(update={"points": points})]})
    study = results.model_copy(update={"entries": [doubled], "comparisons": []})
    figures = curves.figures(study)
    assert "steps, logarithmic" in figures[0] and "logarithmic" not in figures[1]
    path = re.findall(r'class="line" d="M([^"]+)"', figures[0])[0]
    xs = [float(p.split()[0]) for p in path.split("L")]
    assert xs == pytest.approx([k * 1000 / 7 for k in range(8)], abs=1)


def test_the_picture_is_told_in_words(results: Results) -> None:
    said = curves.said(results.measures[2], curves.AXES[3], curves.lines(results, "bpb", "flops"))
    assert said.startswith("Bits per byte against FLOPs, lower is better. causal from ")
    assert "Trivial level unigram floor: 2.310." in said and said.index("causal") < said.index("prefix")


def told(results: Results) -> str:
    return Read(verdict(results)).text


def test_the_verdict_says_what_the_comparisons_say(results: Results) -> None:
    text = told(results)
    real = sum(c.real for c in results.comparisons)
    assert f"{real} of 15 differences are real" in text and "Claims: 1 held, 1 refuted, 1 undecided." in text
    assert "has the best mean, but is not told apart from prefix (0.991)" in text
    assert "causal and prefix are really ahead of masked and t5-span. masked is really ahead of t5-span." in text
    assert "Not shown to be beyond one-word shortcut (0.730): t5-span." in text
    assert "t5-span: the best tuning run's curve still fell" in text


def test_the_verdict_follows_the_record_not_the_means(results: Results) -> None:
    """Comparisons are the record's: where it calls none real, neither does the page; lower is better where it is."""
    none = [c.model_copy(update={"real": False}) for c in results.comparisons]
    assert "really ahead" not in told(results.model_copy(update={"comparisons": none}))
    every = [c.model_copy(update={"real": True}) for c in results.comparisons]
    text = told(results.model_copy(update={"comparisons": every}))
    assert re.search(r"Bits per byte: causal \(1\.\d+\) is really ahead of all 3 others", text)
    only: list[Comparison] = []
    assert "No comparison was made" in told(results.model_copy(update={"comparisons": only}))


def test_a_measure_of_one_entry_has_no_best(results: Results) -> None:
    entries = [
        e.model_copy(
            update={
                "runs": [
                    r.model_copy(update={"points": [_only(p, keep=e.name == "causal") for p in r.points]})
                    for r in e.runs
                ]
            }
        )
        for e in results.entries
    ]
    alone = results.model_copy(update={"entries": entries, "comparisons": []})
    assert re.search(r"Rating[^:]*: causal \([\d.]+\) alone has it\.", told(alone))


def _only(point: Point, keep: bool) -> Point:
    return point if keep else point.model_copy(update={"values": {k: v for k, v in point.values.items() if k == "bpb"}})


def test_words_are_explained_where_something_is_measured(results: Results) -> None:
    for word in ("seed", "FLOPs", "bootstrap", "trivial level", "milestone"):
        assert f"<dt>{word}</dt>" in page(results)
    assert 'id="words"' not in page(Results(title="t", command="c"))


def test_two_seeds_are_told_to_be_too_few() -> None:
    two = example(seeds=2)
    assert two.comparisons == compared(two) and not any(c.real for c in two.comparisons)
    assert "2 seeds: at least 3 are needed" in told(two)


def test_names_stand_apart_and_inside() -> None:
    for wanted in ([50.0, 50.5, 51.0], [0.0, 0.1, 99.9, 100.0], [float(v) for v in range(40, 60)], [98.0, 99.0], [7.0]):
        placed = curves._apart(wanted)
        gaps = [b - a for a, b in itertools.pairwise(placed)]
        assert all(g >= min(curves.LABEL, 98 / (len(wanted) - 1)) - 1e-6 for g in gaps)
        assert placed[0] >= 1 - 1e-6 and placed[-1] <= 99 + 1e-6
