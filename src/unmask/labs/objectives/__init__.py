"""Laboratory 3, `objectives`: who sees whom, what is corrupted, how many targets there are.

grids        masks of the three architectures, and the pairs of exercise 4
corruptions  one review line under each objective; the fates of BERT's tokens
densities    targets per 1,000 positions: by formula, and counted
characters   what a masked character's own word tells, and what independent answers spell
lab          what was claimed beforehand, and the tables
"""
