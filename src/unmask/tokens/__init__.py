"""From text to ids and back. Reading order:

special     control tokens, and what an objective may know of a vocabulary
tokenizer   one class around the `tokenizers` library; `words` says where words start, `aligned` where tokens lie
pieces      learning a vocabulary: `counting` words, then `bpe` or `unigram_training` (over `lattice`)
unigram     the unigram model itself; `subword` draws segmentations by key
encode      fast encoding: where a text may be cut (`cuts`, `runs`), and a memo of chunks (`memo`)
formats     files of other people (`sentencepiece`); `structure` reads a tokenizer.json
report      what tokenizers do to a text (`probes`)
"""
