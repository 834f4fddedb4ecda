"""From documents to batches. Reading order:

text      the documents of a corpus and its held-out side
prepare   documents to shards, by `workers` and in `parts`; `stats` measures them first
shards    tokenized documents on disk; `marks` is what is known of their inside
sampling  which text stands where in the training order
targets   texts that come with another, to be written when they are read
loader    (seed, step) to the batches of an update
collate   ragged examples to rows
"""
