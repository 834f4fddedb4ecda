"""Names of what is measured, as the record has them."""

PROBES = {32: "probe32", 128: "probe128"}
"""Labels of a probe of the mean of the states → the measure."""
PLACES = {32: "place32", 128: "place128"}
"""The same, of the state at the adjective."""
REPLACED, LABELS, AUC, BEST, FOUND, ALARMS = "replaced", "labels", "auc", "best_auc", "found", "alarms"
DETECTED = (AUC, BEST, FOUND, ALARMS)
"""What is asked about every word of a review, so of those alone that are trained to say it of every word."""
