"""The page of a certificate as HTML, which prints on one sheet of paper."""

from __future__ import annotations

from collections.abc import Sequence

from hush.certificate.sections import Content, Section
from hush.pages.document import banner, page
from hush.pages.wording import safe

_STYLE = """
.certificate { max-width: 900px; }
.certificate p { overflow-wrap: anywhere; }
.certificate h2 { margin: 22px 0 4px; font-size: 1.05rem; }
.certificate li { margin: 2px 0; }
.certificate table { width: 100%; }
.certificate td:first-child { overflow-wrap: anywhere; }
@media print {
  @page { size: A4; margin: 12mm; }
  body { font-size: 8pt; line-height: 1.3; background: white; color: black; }
  .brand, .skip { display: none; }
  .certificate h1 { font-size: 14pt; margin: 0; }
  .certificate h2 { font-size: 9.5pt; margin: 6pt 0 1pt; }
  .certificate p, .certificate li { margin: 1pt 0; }
  .banner { break-inside: avoid; padding: 4pt 8pt; }
}
"""


def html(title: str, content: Content, fingerprint: str) -> bytes:
    """Return the complete document; `fingerprint` is that of the key that signs it."""
    tone = {"good": "good", "warn": "warn", "bad": "bad"}[content.tone]
    heads = "".join(f'<th scope="col">{safe(head)}</th>' for head in content.heads)
    rows = "".join("<tr>" + "".join(f"<td>{safe(cell)}</td>" for cell in row) + "</tr>" for row in content.rows)
    body = [
        "<style>", _STYLE, '</style><article class="certificate">',
        f"<h1>{safe(title)}</h1>",
        banner(tone, content.headline, content.summary),  # type: ignore[arg-type]
        "<h2>How strongly</h2>",
        '<div class="panel scroll" tabindex="0" role="region" aria-label="How strongly">',
        f"<table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>",
        _paragraphs(content.reading),
        *(_section(each) for each in content.sections),
        f"<h2>Signature</h2><p>The files beside this page are signed with the key {safe(fingerprint)}. Verify them "
        "with: hush certificate --verify certificate.signed.json</p></article>",
    ]  # fmt: skip
    return page(title, "Privacy certificate", "\n".join(body)).encode()


def _section(section: Section) -> str:
    points = "".join(f"<li>{safe(point)}</li>" for point in section.points)
    return f"<h2>{safe(section.title)}</h2>{_paragraphs(section.paragraphs)}" + (f"<ul>{points}</ul>" if points else "")


def _paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{safe(text)}</p>" for text in texts)
