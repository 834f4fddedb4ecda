"""Ours beside the peer, in turn on one machine: `unmask bench`.

base     what a row of the table is, and what was measured of it
turns    two or more processes that work in turn, each idle while another is timed
steps    the rows of training steps: the same weights, tokens and targets on both sides, equal losses before any timing
"""
