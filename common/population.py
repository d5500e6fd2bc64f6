"""Populations of shapes: which are for fitting and which for reporting, and the classes in which results are told.

A shape is (M, N, K).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import Literal

from common.decomposition import cdiv

Shape = tuple[int, int, int]
Part = Literal["training", "report"]
TRAINING_SHARE = 8
"""One shape in this many is for fitting; a constant that was fitted is never reported on a shape that it has seen."""
TILE = 128
TILES = (33, 132, 528)
"""Bounds of the classes of tiles (128 x 128): a quarter of a wave, a wave and four waves of 132 SMs."""
DEPTHS = (512, 2048)
"""Bounds of the classes of K."""
LEAST = 50
"""Shapes of each class in a stratified sample, where there are as many."""


def part_of(shape: Shape) -> Part:
    """Where a shape belongs; it follows from the shape alone, so that no two samples can mix."""
    digest = hashlib.sha256("x".join(map(str, shape)).encode()).digest()
    return "training" if digest[0] % TRAINING_SHARE == 0 else "report"


def stratum(shape: Shape) -> tuple[int, int]:
    """The class of a shape: of its tiles and of its K, each counted from 0."""
    tiles = cdiv(shape[0], TILE) * cdiv(shape[1], TILE)
    return sum(tiles >= bound for bound in TILES), sum(shape[2] >= bound for bound in DEPTHS)


def stratum_names() -> tuple[list[str], list[str]]:
    """How the classes of tiles and of K are called."""
    tiles, depths = [f"tiles < {bound}" for bound in TILES], [f"K < {bound}" for bound in DEPTHS]
    return [*tiles, f"tiles >= {TILES[-1]}"], [*depths, f"K >= {DEPTHS[-1]}"]


def stratified(shapes: Iterable[Shape], count: int, seed: int) -> list[Shape]:
    """`count` of the shapes in random order: of each class its share of them, but at least LEAST where it has them."""
    generator = random.Random(seed)
    classes: dict[tuple[int, int], list[Shape]] = {}
    for shape in shapes:
        classes.setdefault(stratum(shape), []).append(shape)
    total = sum(map(len, classes.values()))
    chosen, spare = [], []
    for name in sorted(classes):
        members = classes[name]
        generator.shuffle(members)
        wanted = max(min(LEAST, len(members)), count * len(members) // total)
        chosen += members[:wanted]
        spare += members[wanted:]
    generator.shuffle(spare)
    chosen += spare[: max(0, count - len(chosen))]
    generator.shuffle(chosen)
    return chosen[:count]
