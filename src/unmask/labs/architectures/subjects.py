"""Who is compared: four architectures with their objectives, and two of them on windows that begin anywhere."""

from __future__ import annotations

from unmask.labs.reviews.setting import Subject

CAUSAL, PREFIX, MASKED, T5 = "causal", "prefix", "masked", "t5"
MASKED_ANYWHERE, T5_ANYWHERE = "masked-anywhere", "t5-anywhere"
_MASKED = {"objective.type": "masked"}
_T5 = {  # 15 % of the tokens, any of them, and neighbours make one gap: the baseline of Raffel et al.
    "objective.type": "span_corruption",
    "objective.layout": "encdec",
    "objective.mean_span": None,
    "model.num_source_layers": 2,
}
SUBJECTS: tuple[Subject, ...] = (
    Subject(CAUSAL, "Causal", {"objective.type": "causal"}),
    Subject(PREFIX, "Prefix LM", {"objective.type": "prefix_lm"}),
    Subject(MASKED, "Masked", _MASKED),
    Subject(T5, "T5", _T5),
    Subject(MASKED_ANYWHERE, "Masked, anywhere", _MASKED, windows="anywhere"),
    Subject(T5_ANYWHERE, "T5, anywhere", _T5, windows="anywhere"),
)
ALIGNED = (CAUSAL, PREFIX, MASKED, T5)
PARAMETERS = {CAUSAL: 125_312, PREFIX: 125_312, MASKED: 125_312, T5: 260_992}
LABELS = {subject.name: subject.label for subject in SUBJECTS}
