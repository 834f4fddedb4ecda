"""Laboratory `electra`: replaced-token detection on reviews, opened.

designed     two objectives of its own: words replaced by their opposites; a generator that shares nothing and may stop
subjects     who is compared
corrupted    held-out windows with some words replaced, and what a detector says of them
kinds        what a replacement does to a review, and how well scores part the replaced from the rest
floor        the best any detector can do that knows the world and the generator
measured     what is measured at a milestone
statements   what the notes and the papers say, as statements
study, picture
"""
