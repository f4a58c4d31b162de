"""Attacks: membership inference and gradient inversion on the demo, at epsilon infinite, 8 and 1, and their picture.

The results go into results/attacks.json, the picture into docs/attacks.svg. Run it from the repository:
`OMP_NUM_THREADS=1 .venv/bin/python -m scripts.attacks`. `--draw` draws what the file has.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEMO, RESULTS, PICTURE = (
    ROOT / "src" / "hush" / "demo.toml", ROOT / "results" / "attacks.json", ROOT / "docs" / "attacks.svg"
)  # fmt: skip
EPSILONS, SHADOWS, IMAGES, ROWS = (math.inf, 8.0, 1.0), 32, 5, 100
_COLORS = {"inf": "#c62828", "8": "#ef6c00", "1": "#1565c0"}
_SIDE, _CELL = 8, 6


def name(epsilon: float) -> str:
    """An epsilon in texts and as a key."""
    return f"{epsilon:g}"


def measured() -> dict[str, Any]:
    """Both attacks, by epsilon."""
    from hush.auditing.inversion import inversion
    from hush.auditing.membership import membership
    from hush.config import load

    config = load(DEMO)
    members = membership(config, EPSILONS, shadows=SHADOWS)
    inverted = inversion(config, EPSILONS, rows=ROWS)
    return {
        "membership": {name(found.epsilon): {**asdict(found), "epsilon": name(found.epsilon)} for found in members},
        "inversion": {
            name(found.epsilon): {
                "noise_multiplier": found.noise_multiplier,
                "correlation": round(statistics.fmean(found.correlations), 4),
                "images": [[round(float(v), 3) for v in row] for row in found.found[:IMAGES]],
            }
            for found in inverted
        },
        "originals": [[round(float(v), 3) for v in row] for row in inverted[0].originals[:IMAGES]],
    }


def table(stored: Mapping[str, Any]) -> list[str]:
    """The lines of the table in docs/attacks.md."""
    lines = [
        "| epsilon | accuracy | membership: AUC | found at 1 % false alarms | allowed there | inversion: correlation |",
        "|---|---|---|---|---|---|",
    ]
    for key, found in stored["membership"].items():
        lines.append(
            f"| {'no privacy' if key == 'inf' else key} | {100 * found['accuracy']:.1f} % | {found['auc']:.3f} ± "
            f"{found['auc_error']:.3f} | {100 * found['tpr']['0.01']:.1f} % | {100 * found['allowed']['0.01']:.1f} % | "
            f"{stored['inversion'][key]['correlation']:.2f} |"
        )
    return lines


def picture(stored: Mapping[str, Any]) -> str:
    """One SVG: ROC curves on the left, and on the right rows and what was reconstructed of them."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 340" font-family="sans-serif" font-size="12">',
        '<rect width="760" height="340" fill="#ffffff"/>',
        '<text x="40" y="22" font-size="14">Membership inference (LiRA)</text>',
        '<text x="430" y="22" font-size="14">Gradient inversion</text>',
        *_curves(stored["membership"]), *_images(stored), "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _curves(members: Mapping[str, Any]) -> list[str]:
    left, top, side = 50.0, 40.0, 250.0

    def place(rate: float) -> float:
        return side * (math.log10(max(rate, 1e-3)) + 3) / 3

    def path(points: Sequence[Sequence[float]]) -> str:
        return " ".join(f"{left + place(a):.1f},{top + side - place(b):.1f}" for a, b in points)

    parts = [f'<rect x="{left}" y="{top}" width="{side}" height="{side}" fill="none" stroke="#777777"/>']
    for power in range(4):
        at, label = side * power / 3, ("0.1 %", "1 %", "10 %", "100 %")[power]
        parts.append(f'<text x="{left + at:.1f}" y="{top + side + 16}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{left - 6}" y="{top + side - at + 4:.1f}" text-anchor="end">{label}</text>')
    even = path([(1e-3, 1e-3), (1, 1)])
    parts.append(f'<polyline points="{even}" fill="none" stroke="#999999" stroke-dasharray="4 4"/>')
    for at, (key, found) in enumerate(members.items()):
        color = _COLORS[key]
        parts.append(f'<polyline points="{path(found["curve"])}" fill="none" stroke="{color}" stroke-width="2"/>')
        words = f"{'no privacy' if key == 'inf' else f'epsilon {key}'}: AUC {found['auc']:.3f}"
        parts.append(f'<text x="{left + 10}" y="{top + 18 + 17 * at}" fill="{color}">{words}</text>')
    middle = left + side / 2
    parts.append(f'<text x="{middle}" y="{top + side + 34}" text-anchor="middle">rows wrongly called members</text>')
    parts.append(
        f'<text transform="translate(12 {top + side / 2}) rotate(-90)" text-anchor="middle">members found</text>'
    )
    return parts


def _images(stored: Mapping[str, Any]) -> list[str]:
    columns = {"original": stored["originals"], **{k: v["images"] for k, v in stored["inversion"].items()}}
    parts = []
    for column, (key, images) in enumerate(columns.items()):
        x = 430 + column * 80
        words = {"original": "original", "inf": "no privacy"}.get(key, f"epsilon {key}")
        parts.append(f'<text x="{x + 24}" y="46" text-anchor="middle">{words}</text>')
        for row, image in enumerate(images):
            parts += _image(image, x, 54 + row * 55)
    return parts


def _image(values: Sequence[float], x: int, y: int) -> list[str]:
    low, high = min(values), max(values)
    scale = 255 / (high - low) if high > low else 0.0
    parts = []
    for at, value in enumerate(values):
        shade = 255 - round((value - low) * scale)
        place = f'x="{x + at % _SIDE * _CELL}" y="{y + at // _SIDE * _CELL}"'
        parts.append(f'<rect {place} width="{_CELL}" height="{_CELL}" fill="#{shade:02x}{shade:02x}{shade:02x}"/>')
    return parts


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true")
    if not parser.parse_args().draw:
        from hush.config import load
        from hush.engines.results import versions

        stored = {
            "command": "OMP_NUM_THREADS=1 .venv/bin/python -m scripts.attacks",
            "versions": versions(),
            "config": load(DEMO).model_dump(),
            "shadows": SHADOWS,
            "rows": ROWS,
            **measured(),
        }
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    found = json.loads(RESULTS.read_text())
    PICTURE.write_text(picture(found), encoding="utf-8")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
