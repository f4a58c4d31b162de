"""Pages: self-contained HTML with charts drawn as SVG, for reports, plans, the live page and notebooks.

A page is one file (or one response) with its style and its script inside, under a content security policy that forbids
every other origin. Charts are drawn here, so they show without JavaScript, print, and follow the reader's colours; the
script adds tooltips, keyboard access, tables of the numbers and CSV downloads.
"""

from __future__ import annotations

from hush.pages.chart import Axis, Chart, Rule, Series
from hush.pages.document import Cell, banner, command, facts, page, panels, table, tiles
from hush.pages.svg import standalone, svg

__all__ = [
    "Axis",
    "Cell",
    "Chart",
    "Rule",
    "Series",
    "banner",
    "command",
    "facts",
    "page",
    "panels",
    "standalone",
    "svg",
    "table",
    "tiles",
]
