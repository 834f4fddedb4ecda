"""Laboratories: what the CS324 lecture notes on architectures and objectives show, measured again with our own code.

Each answers by the record of `compare.results`: claims that were fixed in its code before it ran, tables, samples.
A claim that fails is recorded as refuted. `unmask lab NAME out=DIR` runs one; docs/labs says what was found.

base           a laboratory, its statements, and what running one does
processes      models side by side
recorded       a recipe as a record has it
reviews        what laboratories about reviews share: text, network, questions, probes
orders         which of two entries is better than seeds' noise
tokens         how a text is cut, and what the cuts cost
inside         a small GPT, opened
objectives     who sees whom, what is corrupted, how many targets there are
architectures  one text, one budget, four ways to learn from it
electra        what a detector of replaced words learns
beyond         what the notes name and do not try
real_text      five objectives on real text
ladders        T5's, RoBERTa's and BART's studies in small
"""
