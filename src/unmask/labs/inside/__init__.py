"""Laboratory `inside`: a character model of 109,056 parameters is trained on the small world, then opened.

model        the recipe, the world's held-out text as pieces, and training one seed
forward      a forward pass by hand, from the weight matrices alone
count        parameters by formula
temperature  why scores are divided by the root of the head size
ablation     the same model with one part switched off
opened       everything that one seed's model is asked
statements   what the notes say of their model, as claims
tables       what is no curve
study, lab   training and opening all models, and the record
"""
