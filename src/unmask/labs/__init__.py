"""Laboratories: what the CS324 lecture notes on architectures and objectives show, measured again with our own code.

Each answers by the record of `compare.results`: claims that were fixed in its code before it ran, tables, samples.
A claim that fails is recorded as refuted. `unmask lab NAME out=DIR` runs one; docs/labs says what was found.

base        a laboratory, its statements, and what running one does
tokens      how a text is cut, and what the cuts cost
objectives  who sees whom, what is corrupted, how many targets there are
"""
