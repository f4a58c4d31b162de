"""The papers' tables and figures: what they print beside what comes out here.

Each is one small TOML file under `tables/` that gives the paper's setting; `printed.json` has the printed numbers.
"""

from hush.reproduce.entry import Cell, Entry, entries, entry
from hush.reproduce.pages import html, markdown
from hush.reproduce.run import asked, reproduce

__all__ = ["Cell", "Entry", "asked", "entries", "entry", "html", "markdown", "reproduce"]
