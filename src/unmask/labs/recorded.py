"""A recipe as a laboratory's record has it: with the world's name where the run had files of this machine."""

from __future__ import annotations

from typing import Any

from unmask.recipe import Recipe


def recorded(recipe: Recipe, tokenizer: str, **text: str | None) -> dict[str, Any]:
    """Its settings, ready for JSON; tokenizer: the world's kind of it, text: what tells its text from other ones."""
    named = {"corpus": dict(text), "valid": dict(text), "tokenizer": {"world": tokenizer}}
    return {**recipe.model_dump(mode="json"), **named}
