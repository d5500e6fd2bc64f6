"""Small pictures: the same places, names and colours, and the size of what is committed."""

from __future__ import annotations

import base64
import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image, ImageChops

from common import compact
from figures.__main__ import HERE

PICTURES = sorted(HERE.glob("*.svg"))


def places(path: str) -> list[tuple[str, float, float]]:
    """Where each part of a path of M, L, Q, C, l, H, h, V, v and z ends."""
    found: list[tuple[str, float, float]] = []
    parts = re.findall(r"[A-Za-z]|-?(?:\d+\.?\d*|\.\d+)", path)
    command, x, y, start = "", 0.0, 0.0, (0.0, 0.0)
    while parts:
        command = parts.pop(0) if parts[0].isalpha() else command
        if command == "z":
            # However many lines end where z does, they are one.
            while found[-1] == ("L", *start):
                found.pop()
            found.append(("L", *start))
            x, y = start
            continue
        count = {"M": 2, "L": 2, "H": 1, "V": 1, "Q": 4, "C": 6}[command.upper()]
        values = [float(parts.pop(0)) for _ in range(count)]
        if command in "Hh":
            x = values[0] + x * command.islower()
        elif command in "Vv":
            y = values[0] + y * command.islower()
        elif command == "l":
            x, y = x + values[0], y + values[1]
        else:
            x, y = values[-2:]
        start = (x, y) if command == "M" else start
        found.append((command.upper().replace("H", "L").replace("V", "L"), x, y))
    return found


number = st.integers(-99999, 99999).map(lambda n: f"{n / 100:.2f}".rstrip("0").rstrip("."))
line = st.tuples(number, number).map(lambda p: f"L {p[0]} {p[1]} \n")
curve = st.tuples(number, number, number, number).map(lambda p: f"Q {' '.join(p)} \n")
part = st.tuples(number, number, st.lists(st.one_of(line, curve), max_size=6), st.booleans()).map(
    lambda p: f"M {p[0]} {p[1]} \n" + "".join(p[2]) + ("z\n" if p[3] else "")
)


@example("M 0 0 \nL 0 0 \nz\n")
@example("M 0 0 \nL 0 0 \nL 0 0 \nz\n")
@given(st.lists(part, min_size=1, max_size=4).map("".join))
def test_a_short_path_goes_to_the_same_places(path: str) -> None:
    short = compact.path(path)
    assert len(short) <= len(path)
    for (kind, x, y), (other, u, v) in zip(places(path), places(short), strict=True):
        assert kind == other and (x, y) == pytest.approx((u, v), abs=0.005)


def test_a_rectangle_is_five_words_and_an_unknown_command_stays() -> None:
    assert compact.path("M 1 2 \nL 5.5 2 \nL 5.5 9 \nL 1 9 \nL 1 2 \nz\n") == "M1 2h4.5v7H1z"
    assert compact.path("M 0 0 A 1 1 0 0 0 2 2") == "M 0 0 A 1 1 0 0 0 2 2"


def drawn(suffix: str) -> bytes:
    figure = Figure(figsize=(3, 2), dpi=100)
    axes = figure.subplots()
    axes.scatter(range(40), range(40), c=range(40), cmap="RdBu", rasterized=True)
    axes.set_title("bold", fontweight="bold")
    out = io.BytesIO()
    figure.savefig(out, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
    return out.getvalue()


def test_a_small_svg_keeps_texts_names_that_are_used_and_its_images() -> None:
    text = drawn("svg").decode()
    small = compact.svg(text)
    assert len(small) < 0.8 * len(text) and compact.svg(text) == small
    assert re.findall("<!-- (.*?) -->", small) == re.findall("<!-- (.*?) -->", text)
    assert small.count("<use ") == text.count("<use ")
    assert "DejaVu" not in small and small.count("<g") == small.count("</g>")
    ids, used = re.findall(r'\sid="([^"]+)"', small), set(re.findall(r'(?:href="#|url\(#)([^")]+)', small))
    assert set(ids) == used and len(ids) == len(used) and {"s", "b"} <= {name[0] for name in used}
    before, after = (re.search(r"base64,([^\"]+)", each) for each in (text, small))
    images = [Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGBA") for found in (before, after)]
    assert images[0].size == images[1].size


def test_a_small_png_looks_the_same() -> None:
    data = drawn("png")
    small = compact.png(data)
    assert len(small) < 0.7 * len(data) and compact.png(data) == small
    before, after = (Image.open(io.BytesIO(each)).convert("RGB") for each in (data, small))
    difference = ImageChops.difference(before, after).convert("L")
    assert before.size == after.size and max(i for i, n in enumerate(difference.histogram()) if n) < 32


def test_committed_pictures_and_report_are_small() -> None:
    assert max(path.stat().st_size for path in PICTURES) < 400e3
    assert max(path.with_suffix(".png").stat().st_size for path in PICTURES) < 200e3
    assert all("\n  " not in path.read_text() for path in PICTURES), "not written by figures: make figures"
    whole = [*HERE.glob("*.svg"), *HERE.glob("*.png"), *HERE.glob("*.html")]
    assert sum(path.stat().st_size for path in whole) < 9.5e6
