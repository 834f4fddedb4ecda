"""A small world with a known truth: people and cities, questions, sums, stories and reviews, from a seed and dials.

World     the dials, what holds in the world, its lines and texts, its tokenizers
Review    a review by its parts; two adjectives decide its rating
Checked   what the checker says of a line: is it well formed, is it true, and if not, why

Reading order: `grammar` (words and templates), `draws` (which lines are drawn), `world`, `check`, `vocabulary`.
"""

from unmask.data.worlds.check import Checked
from unmask.data.worlds.grammar import KINDS, SPLITS, Kind, Review, Split
from unmask.data.worlds.world import World

__all__ = ["KINDS", "SPLITS", "Checked", "Kind", "Review", "Split", "World"]
