"""Laboratory beyond: what the lecture notes name and do not try, on their text and with their network.

subjects    who is compared
gradients   how the gradients of objectives stand to each other, beside their noise
measure     what each is asked at its milestones
statements  what was expected
tables      what is no curve
study       train, ask, judge, write down
"""
