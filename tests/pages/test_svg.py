from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from hush.pages.chart import Axis, Chart, Rule, Series
from hush.pages.svg import frame, standalone, svg


def chart(part: Series, **changes: object) -> Chart:
    return Chart(key="one", title="One", words="words", series=[part], **changes)  # type: ignore[arg-type]


def test_points_are_where_the_scales_say() -> None:
    made = chart(Series(kind="points", name="a", x=[1.0, 3.0], y=[0.0, 10.0]), y=Axis(from_zero=True))
    drawn, found = frame(made, 500), ET.fromstring(svg(made, 500))
    dots = [(float(c.get("cx")), float(c.get("cy"))) for c in found.iter("circle")]
    for dot, (x, y) in zip(dots, ((1, 0), (3, 10)), strict=True):
        assert dot == pytest.approx((drawn.px(x), drawn.py(y)), abs=0.1)
    assert dots[0][1] > dots[1][1]
    assert drawn.box.left <= dots[0][0] and dots[1][0] <= drawn.box.left + drawn.box.width


def test_every_kind_is_well_formed_and_stays_inside() -> None:
    x, y = [0.0, 1.0, 2.0], [0.1, math.nan, 0.9]
    names = Axis(scale="category", categories=("a", "<b>", "c"))
    for kind in ("line", "points", "bars", "ticks", "cells", "words"):
        part = Series(kind=kind, name=kind, x=x, y=[0.0, 1.0, 2.0] if kind == "cells" else y, low=[0.0] * 3,
                      high=[1.0] * 3, labels=["<1>", "2", "3"], values=[0.5, math.nan, 1.0])  # fmt: skip
        made = chart(part, x=names, y=names if kind == "cells" else Axis(), rules=[Rule(0.5, "half")])
        for width in (340, 500, 1040):
            text = svg(made, width)
            ET.fromstring(text)
            assert "nan" not in text and "<b>" not in text and "<1>" not in text
            for left in map(float, re.findall(r' x="(-?[\d.]+)"', text)):
                assert -1 <= left <= width + 1


def test_a_long_line_is_thinned_and_keeps_its_extremes() -> None:
    y = [0.5] * 5000
    y[1234], y[4321] = 9.0, -9.0
    made = chart(Series(name="a", x=[float(n) for n in range(1, 5001)], y=y))
    path = re.search(r'class="line" d="([^"]+)"', svg(made, 500))
    assert path is not None
    heights = [float(point.split()[1]) for point in path[1][1:].split("L")]
    drawn = frame(made, 500)
    assert len(heights) <= 602
    assert min(heights) == pytest.approx(drawn.py(9.0), abs=0.1)
    assert max(heights) == pytest.approx(drawn.py(-9.0), abs=0.1)


def test_a_drawing_says_what_it_shows() -> None:
    made = chart(Series(name="a", x=[1.0], y=[1.0]), meaning='It is "one" & only.')
    assert ET.fromstring(svg(made, 340)).get("aria-label") == 'One. It is "one" & only.'
    assert "<style>" in standalone(made, 340) and "<style>" not in svg(made, 340)
