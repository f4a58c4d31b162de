"""Reproduction of the papers' tables and figures: published and reproduced values.

Each entry is a TOML file under `tables/` with the paper's setting; `printed.json` contains the published values.
"""

from hush.reproduce.entry import Cell, Entry, entries, entry
from hush.reproduce.pages import html, markdown
from hush.reproduce.run import make_request, repeated, reproduce

__all__ = ["Cell", "Entry", "entries", "entry", "html", "make_request", "markdown", "repeated", "reproduce"]
