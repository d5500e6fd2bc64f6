"""Bytes that L2 fetches for a load of the TMA: who may ask for what, and which descriptors say it."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import triton

import variants
from common import l2_promotion
from common.card import Config
from common.errors import UnsupportedProblem
from common.l2_promotion import MAP_BYTES, PROMOTIONS, promoting
from common.launcher import check_config


class Map:
    """As large as its descriptor and Python's own words for it."""

    __slots__ = tuple(f"word{n}" for n in range(MAP_BYTES // 8))


class Driver:
    """Records what it is asked to encode, and marks the descriptor's bytes."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def cuTensorMapEncodeTiled(self, at: Any, dtype: Any, rank: Any, address: Any, *rest: Any) -> int:
        sizes, steps, boxes, ones, *modes = rest
        plain = [x.value for x in (dtype, rank, address, *modes)]
        self.asked.append((plain, list(sizes), list(steps), list(boxes), list(ones)))
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    utils = SimpleNamespace(fill_tma_descriptor_tiled=lambda *arguments: Map())
    monkeypatch.setattr(l2_promotion, "_driver", lambda: found)
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=SimpleNamespace(utils=utils)))
    return found


def fill() -> Any:
    """As Triton's launcher does it: 24 rows of 40 elements, 48 apart, in boxes of 16 by 32."""
    utils = triton.runtime.driver.active.utils
    return utils.fill_tma_descriptor_tiled(4096, 3, 2, 6, [16, 32], [24, 40], [48, 1], 0)


def test_a_descriptor_says_what_was_asked_for_and_tritons_stays_as_it_is(driver: Driver) -> None:
    with promoting(128):
        fill()
    assert driver.asked == []
    for l2_bytes in (256, 0):
        with promoting(l2_bytes):
            fill()
        modes = [0, 3, PROMOTIONS[l2_bytes], 0]
        assert driver.asked.pop() == ([6, 2, 4096, *modes], [40, 24], [96], [32, 16], [1, 1])
    fill()
    assert driver.asked == []


def test_another_thread_and_an_inner_launch_ask_for_themselves(driver: Driver) -> None:
    with promoting(256):
        thread = threading.Thread(target=fill)
        thread.start()
        thread.join()
        assert driver.asked == []
        with promoting(64):
            fill()
        fill()
    assert [asked[0][5] for asked in driver.asked] == [PROMOTIONS[64], PROMOTIONS[256]]


def test_what_the_driver_refuses_is_an_error(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", lambda *arguments: 1, raising=False)
    with promoting(256), pytest.raises(RuntimeError, match=r"error 1 for \(24, 40\) in boxes of \(16, 32\)"):
        fill()


def test_only_a_kernel_that_loads_by_the_tma_can_be_asked() -> None:
    with pytest.raises(UnsupportedProblem, match="0, 64, 128 or 256"):
        Config(l2_bytes=512)
    with pytest.raises(UnsupportedProblem, match="does not load by the TMA"):
        check("v08", l2_bytes=256)
    check("v09", l2_bytes=256, tma=True)
    for name in ("v10", "v20"):
        check(name, l2_bytes=256)


def check(name: str, **changes: Any) -> None:
    variant = variants.get(name)
    check_config(variant, variant.card.default.replace(**changes))


def test_the_map_ends_the_object_that_holds_it() -> None:
    assert Map.__basicsize__ - MAP_BYTES == object.__basicsize__
    assert ctypes.sizeof(ctypes.c_uint64) * 16 == MAP_BYTES
