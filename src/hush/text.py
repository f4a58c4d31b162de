"""Text from untrusted sources, escaped for printing."""

from __future__ import annotations

import unicodedata

LONGEST = 300


def printable(text: object, limit: int = LONGEST) -> str:
    """Return the text on one line, escaping every character that could move a cursor, or reorder or hide other text.

    Control characters, line breaks, ANSI sequences, bidirectional and zero-width marks, combining marks, surrogates and
    unassigned characters become `\\x1b` or `\\u202e`; text beyond `limit` characters is cut.
    """
    # Cut before escaping, so that the cost does not depend on the length of the text.
    whole = str(text)
    shown = "".join(
        character if character.isprintable() and not unicodedata.combining(character) else _escaped(character)
        for character in whole[:limit]
    )
    return shown if max(len(whole), len(shown)) <= limit else f"{shown[: limit - 3]}..."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
