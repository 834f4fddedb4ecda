"""Ours beside the peer, in turn on one machine: `unmask bench`.

base     what a row of the table is, and what was measured of it
turns    processes that work in turn, each idle while another is timed
steps    the rows of training steps: the same weights, tokens and targets on both sides, equal losses before any timing
generation    the rows of greedy writing with a cache: equal tokens before any timing
waiting, resuming, loss_memory    figures that should be small: time spent on data, seconds to resume, bytes of a loss
"""
