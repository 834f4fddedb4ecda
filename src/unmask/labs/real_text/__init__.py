"""Laboratory `real-text`: the lecture's objectives on Wikipedia, at equal FLOPs and tuned equally.

words        a cloze test of four words made from the held-out text
record       what of a study's results stands in a laboratory's record
study, lab   the study, and the laboratory by name
statements   what was expected beforehand
"""
