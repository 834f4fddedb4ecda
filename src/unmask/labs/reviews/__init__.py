"""What the laboratories about reviews share: one small network over one text, asked by one protocol.

setting     the text, the network, the entries' recipes, and their training
asked       what a model is asked: ratings, gaps, whole reviews to write
probes      what can be read from its states
bench       entries × seeds side by side, each measured at its milestones
"""
