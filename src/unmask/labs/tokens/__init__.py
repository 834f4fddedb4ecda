"""Laboratory 1, `tokens`: how a text is cut, and what the cuts cost.

examples   the lecture's worked examples, to the last fraction
measured   the small world under white space, characters, BPE over its merges, and unigram
lab        what was claimed beforehand, and the tables
"""
