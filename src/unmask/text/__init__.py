"""From files to documents. Reading order:

document    a document, and what reading counts            textfile    bytes to lines: encodings, marks, line ends
corpus      the documents of a source                      tables      parquet, and what `datasets` loads
filters     what is passed over                            holdout     the training and the held-out side
characters  scripts and the rule of what a word is         sentences   where sentences start
segment     words given with a text, or by jieba           spans       annotated spans, lexicons
files       which files there are, on disk or behind URLs  position    where reading stands, and goes on from
"""
