"""Laboratory `ladders`: small versions of the studies of T5, RoBERTa and BART on Wikipedia, at equal FLOPs.

study, lab   the three studies, and the laboratory by name
statements   the published orders
tables       the papers' tables with our numbers
"""
