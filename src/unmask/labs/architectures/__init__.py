"""One text, one size, one budget, four architectures: who learns the rule, who can fill, write, and be read.

subjects    who is compared
measured    what each is asked at its milestones, and at the end
writing     lines from nothing, in each model's way
statements  what is claimed, before anything is measured
tables      what was found
picture     the learning curves
study       train, ask, judge, write down; `small` for a demonstration
"""
