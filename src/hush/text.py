"""Text from elsewhere, made safe to print."""

from __future__ import annotations

import unicodedata

LONGEST = 300


def printable(text: object, limit: int = LONGEST) -> str:
    """The text on one line, with every character escaped that could move a cursor, reorder or hide other text.

    Control characters, line breaks, ANSI sequences, bidirectional and zero-width marks, combining marks, surrogates and
    unassigned characters become `\\x1b` or `\\u202e`; what is longer than `limit` characters is cut.
    """
    # Cut before it is escaped: a text of a gigabyte costs no more than one of the limit.
    whole = str(text)
    shown = "".join(
        letter if letter.isprintable() and not unicodedata.combining(letter) else _escaped(letter)
        for letter in whole[:limit]
    )
    return shown if max(len(whole), len(shown)) <= limit else f"{shown[: limit - 3]}..."


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
