"""Words of pictures as text again: a page that holds many pictures is smaller for it, can be searched and read aloud.

`common.compact` writes a word as one outline a glyph, with the word as a comment above. The text gets the width that
the outlines had, so that it fits where the reader has another font.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache

from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font, LoadFlags

EM = 100
"""Units of a font's outlines as matplotlib places them, at scale 1."""
_WORD = re.compile(
    r'<!-- ([^\n]*?) -->\s*<g(?: style="([^"]*)")? transform="([^"]*?) ?scale\(([\d.]+) -[\d.]+\)">\s*'
    r'((?:<use xlink:href="#[bs][0-9a-f]+"(?: x="-?\d+")?/>\s*)+)</g>'
)
_PLACE = re.compile(r'#([bs])[0-9a-f]+"(?: x="(-?\d+)")?')


def as_text(svg: str) -> str:
    """The picture with text for every word of one font; what else is drawn of glyphs, formulas say, stays as it is."""
    return _WORD.sub(_text, svg)


def _text(found: re.Match[str]) -> str:
    word, (style, place, scale, uses) = html.unescape(found[1]), found.groups()[1:]
    glyphs = _PLACE.findall(uses)
    if len({font for font, _ in glyphs}) > 1 or len(glyphs) != len(re.sub(r"\s", "", word)):
        return found[0]
    bold, size = glyphs[0][0] == "b", float(scale) * EM
    width = (float(glyphs[-1][1] or 0) + advance(word.rstrip()[-1], bold)) * float(scale)
    weight = ' font-weight="700"' if bold else ""
    kept = f' style="{style}"' if style else ""
    return (
        f'<text transform="{place}" font-size="{size:g}"{weight} textLength="{width:.1f}"{kept}>'
        f"{html.escape(word, quote=False)}</text>"
    )


@lru_cache
def _font(bold: bool) -> FT2Font:
    font = FT2Font(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")))
    font.set_size(EM, 72)
    return font


@lru_cache
def advance(letter: str, bold: bool) -> float:
    """How far a letter of DejaVu Sans moves the next one, in hundredths of the font's size."""
    return _font(bold).load_char(ord(letter), flags=LoadFlags.NO_HINTING).linearHoriAdvance / 65536
