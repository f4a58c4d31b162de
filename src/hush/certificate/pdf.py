"""A certificate as PDF, on one page of A4.

The letters are those of the fonts that every reader of PDF has, which cover Western European languages. Other letters
in names become question marks, and the page says so; the HTML page and the signed file have them all.
"""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import Any

from hush.certificate.sections import Content, Tone
from hush.text import printable
from hush.types import HushError

_SIZES = (8.5, 8.0, 7.5, 7.0, 6.5, 6.0)
_COLOURS: dict[Tone, tuple[str, str]] = {
    "good": ("#1d7f5f", "#e8f5f0"), "warn": ("#9a5b00", "#fdf3e0"), "bad": ("#a8324a", "#fceaee"),
}  # fmt: skip
_WIDTHS = (0.22, 0.16, 0.11, 0.11, 0.10, 0.15, 0.15)
_LETTERS = "Letters that this font lacks are shown as question marks; the HTML page and the signed file have them."


def pdf(title: str, content: Content, fingerprint: str) -> bytes:
    """Return the document, with the largest letters that fit on one page; `fingerprint` is that of the signing key.

    Raises:
        HushError: reportlab is not installed.
    """
    try:
        import reportlab  # noqa: F401
    except ImportError:
        raise HushError(
            "certificate: reportlab is not installed; install it with: pip install 'hush[certificate]'"
        ) from None
    made = b""
    for size in _SIZES:
        made, pages = _drawn(title, content, fingerprint, size)
        if pages == 1:
            break
    return made


def _drawn(title: str, content: Content, fingerprint: str, size: float) -> tuple[bytes, int]:
    """Return the document with letters of this size, and its number of pages."""
    from reportlab.lib.colors import HexColor
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.lib.units import mm
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table, TableStyle

    lost = False

    def text(value: str) -> str:
        nonlocal lost
        plain = printable(value, 4000)
        kept = plain.encode("cp1252", "replace").decode("cp1252")
        lost = lost or kept != plain
        return html.escape(kept, quote=False)

    ink, wash = map(HexColor, _COLOURS[content.tone])
    body = ParagraphStyle("body", fontName="Helvetica", fontSize=size, leading=1.22 * size, spaceAfter=0.18 * size)
    head = ParagraphStyle("head", parent=body, fontName="Helvetica-Bold", fontSize=1.15 * size, leading=1.4 * size,
                          spaceBefore=0.5 * size, spaceAfter=0.1 * size)  # fmt: skip
    point = ParagraphStyle("point", parent=body, leftIndent=1.2 * size, bulletIndent=0.3 * size, spaceAfter=0.05 * size)
    large = ParagraphStyle("large", parent=head, fontSize=1.8 * size, leading=2.1 * size)
    cell = ParagraphStyle("cell", parent=body, fontSize=0.94 * size, leading=1.1 * size, spaceAfter=0)
    first = ParagraphStyle("first", parent=cell, fontName="Helvetica-Bold")
    buffer = io.BytesIO()
    document = SimpleDocTemplate(
        buffer, pagesize=A4, leftMargin=14 * mm, rightMargin=14 * mm, topMargin=11 * mm, bottomMargin=11 * mm,
        title=text(title), author="Hush", subject=text(content.headline), invariant=1, lang="en",
    )  # fmt: skip
    cells = [
        Paragraph(f"<b>{text(content.headline)}</b>", body),
        *(Paragraph(text(each), body) for each in content.summary),
    ]
    verdict = Table([[cells]], colWidths=[document.width])
    verdict.setStyle(TableStyle([
        ("BACKGROUND", (0, 0), (-1, -1), wash), ("LINEBEFORE", (0, 0), (0, -1), 2, ink),
        ("TOPPADDING", (0, 0), (-1, -1), 3), ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
    ]))  # fmt: skip
    lines = [[Paragraph(text(each), first) for each in content.heads]]
    lines += [[Paragraph(text(each), cell) for each in row] for row in content.rows]
    table = Table(lines, colWidths=[width * document.width for width in _WIDTHS], repeatRows=1)
    table.setStyle(TableStyle([
        ("LINEBELOW", (0, 0), (-1, -1), 0.3, HexColor("#c3cad4")), ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("TOPPADDING", (0, 0), (-1, -1), 1), ("BOTTOMPADDING", (0, 0), (-1, -1), 1.5),
        ("LEFTPADDING", (0, 0), (-1, -1), 2), ("RIGHTPADDING", (0, 0), (-1, -1), 2),
    ]))  # fmt: skip
    parts: list[Any] = [Paragraph(text(title), large), verdict, Paragraph("How strongly", head), table]
    parts += _paragraphs(content.reading, body, text)
    for section in content.sections:
        parts.append(Paragraph(text(section.title), head))
        parts += _paragraphs(section.paragraphs, body, text)
        parts += [Paragraph(text(each), point, bulletText="\u2022") for each in section.points]
    parts.append(Paragraph("Signature", head))
    signed = f"Signed with the key {fingerprint}. Verify with: hush certificate --verify certificate.signed.json"
    parts += _paragraphs((signed, *((_LETTERS,) if lost else ())), body, text)
    document.build(parts)
    return buffer.getvalue(), document.page


def _paragraphs(texts: Sequence[str], style: Any, text: Any) -> list[Any]:
    from reportlab.platypus import Paragraph

    return [Paragraph(text(each), style) for each in texts]
