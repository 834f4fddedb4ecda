"""What the laboratories about reviews share: one small network over one text, asked by one protocol.

setting     the text, the network, and the recipes of those who are compared
asked       what a model is asked at an open slot: ratings, words
gaps        several gaps at once, as span corruption is trained, and the spans that it writes
probes      what can be read from its states
bench       subjects × seeds side by side, each measured at its milestones
cells       how a table says what several seeds found
"""
