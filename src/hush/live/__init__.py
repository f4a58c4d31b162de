"""Live pages: follow a run, a comparison, a sweep, a reproduction or a federation's run in a browser on this machine.

`serve` and `background` show a `Source`: what a page consists of, and when it has changed. `source_of` makes one for a
directory. Another page needs a source of its own and nothing else; it has the style and the charts of `hush.pages`.
"""

from __future__ import annotations

from hush.live.server import Endpoint, background, serve
from hush.live.source import Fragment, Monitor, Source
from hush.live.sources import source_of

__all__ = ["Endpoint", "Fragment", "Monitor", "Source", "background", "serve", "source_of"]
