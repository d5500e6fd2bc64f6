"""Pictures as small files that look the same: short SVG, PNG with a palette."""

from __future__ import annotations

import base64
import io
import re
from decimal import Decimal

from PIL import Image

COLOURS = 256
"""Of a palette: anti-aliased text and lines need some shades of each colour, a colour map a hundred."""
_LONG_NUMBER = re.compile(r"(?<![\w.])(-?[1-9]\d*\.\d{3,})(?![\w.])")
_PATH = re.compile(r'\bd="([^"]*)"')
_PATH_PART = re.compile(r"[A-Za-z]|-?[\d.]+(?:e-?\d+)?")
_IMAGE = re.compile(r'(data:image/png;base64,)([^"]+)')
_GLYPH = re.compile(r"\bDejaVuSans-(Bold-)?([0-9a-f]+)\b")
_PLACED = re.compile(r'(<use xlink:href="#[bs][0-9a-f]+") transform="translate\(([\d.-]+) 0\)"/>')
_ARGUMENTS = {"M": 2, "L": 2, "Q": 4, "C": 6, "z": 0}
"""Commands that matplotlib writes, all with absolute coordinates, and how many numbers each takes."""


def svg(text: str) -> str:
    """An SVG picture with coordinates to a hundredth of a point, short paths, no names or groups without a use, and
    images in palettes.

    Numbers below 1 keep their digits, for they may be scales. Glyphs are called by the font's number for them and the
    first letter of sans or bold, the same in every picture; spaces are left out. The same text gives the same text.
    """
    text = _LONG_NUMBER.sub(lambda found: _short(found[1]), text)
    text = _GLYPH.sub(lambda found: ("b" if found[1] else "s") + found[2], text)
    for outline, blank in re.findall(r'(<path id="([bs][0-9a-f]+)" transform="[^"]*"/>)', text):
        text = re.sub(rf'<use xlink:href="#{blank}"[^>]*/>', "", text.replace(outline, ""))
    # In units of the font, of which a point is about ten.
    text = _PLACED.sub(lambda found: f'{found[1]} x="{round(float(found[2]))}"/>', text)
    text = _PATH.sub(lambda found: f'd="{path(found[1])}"', text)
    text = _IMAGE.sub(lambda found: found[1] + _image(found[2]), text)
    text = re.sub(r'style="[^"]*"', lambda found: re.sub(r"([:;]) ", r"\1", found[0]), text)
    used = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    short = {name: name if re.fullmatch("[bs][0-9a-f]+", name) else f"i{number}" for number, name in enumerate(used)}
    text = re.sub(r'\sid="([^"]+)"', lambda found: f' id="{short[found[1]]}"' if found[1] in used else "", text)
    text = re.sub(r'(href="#|url\(#)([^")]+)', lambda found: found[1] + short[found[2]], text)
    return re.sub(r"\s*\n\s*", "\n", _without_idle_groups(text))


def _short(number: str) -> str:
    return f"{float(number):.2f}".rstrip("0").rstrip(".")


def _without_idle_groups(text: str) -> str:
    """The same without `<g>` that says nothing, and without its end."""
    out, kept = [], []
    for part in re.split(r"(<g\b[^>]*(?<!/)>|</g>)", text):
        if part == "</g>":
            if not kept.pop():
                continue
        elif part.startswith("<g") and part.endswith(">"):
            kept.append(part != "<g>")
            if not kept[-1]:
                continue
        out.append(part)
    return "".join(out)


def path(commands: str) -> str:
    """The same path with lines as such or relative to their start, h and v along an axis, no letter without need.

    A path with a command that matplotlib does not write stays as it is.
    """
    parts = _PATH_PART.findall(commands)
    out: list[str] = []
    last, number = "", 0
    place = start = (Decimal(0), Decimal(0))
    while number < len(parts):
        command = parts[number]
        if command not in _ARGUMENTS:
            return commands
        shown = parts[number + 1 : number + 1 + _ARGUMENTS[command]]
        number += 1 + len(shown)
        target = (Decimal(shown[-2]), Decimal(shown[-1])) if shown else start
        if command == "L":
            if target == start and parts[number : number + 1] == ["z"]:
                continue  # z draws this line
            command, shown = _line(place, target)
        elif command == "M":
            start = target
        repeated = command == last and command in "LlHhVvQC"
        out.append((" " if repeated else command) + " ".join(shown))
        place, last = target, command
    return "".join(out).replace(" -", "-")


def _line(place: tuple[Decimal, Decimal], target: tuple[Decimal, Decimal]) -> tuple[str, list[str]]:
    """The shortest command for a line, along an axis or not, to a place as such or relative to the line's start."""
    across, up = target[0] - place[0], target[1] - place[1]
    word = ("L" if across else "V") if up else "H"
    axes = {"H": (0,), "V": (1,), "L": (0, 1)}[word]
    relative, absolute = ([_plain(values[axis]) for axis in axes] for values in ((across, up), target))
    shorter = len("".join(relative)) <= len("".join(absolute))
    return (word.lower(), relative) if shorter else (word, absolute)


def _plain(number: Decimal) -> str:
    return re.sub(r"^(-?)0\.", r"\1.", f"{number.normalize():f}") if number else "0"


def _image(encoded: str) -> str:
    data = base64.b64decode(encoded)
    smaller = png(data)
    return base64.b64encode(smaller if len(smaller) < len(data) else data).decode()


def png(data: bytes) -> bytes:
    """A PNG picture with a palette of at most COLOURS colours. The same picture gives the same bytes."""
    picture = Image.open(io.BytesIO(data))
    if picture.mode == "RGBA" and picture.getextrema()[3] == (255, 255):
        picture = picture.convert("RGB")
    method = Image.Quantize.FASTOCTREE if picture.mode == "RGBA" else Image.Quantize.MEDIANCUT
    out = io.BytesIO()
    picture.quantize(COLOURS, method=method, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()
