"""The analytical model: constants that made the times are found again, and more programs cost what they should."""

from __future__ import annotations

import pytest

from common.decomposition import always_two_tile, data_parallel, optional_two_tile
from common.model import Constants, fit, terms

TRUE = Constants(2.0, 1.5, 0.4, 0.1)
SCHEDULES = [always_two_tile(3, 5, 40, programs) for programs in (1, 2, 4, 8, 15, 16)]
SCHEDULES += [optional_two_tile(7, 9, 24, programs) for programs in (3, 10, 16)]
SCHEDULES += [always_two_tile(1, 1, 64, programs) for programs in (4, 9, 16)]


def test_constants_come_back() -> None:
    found = fit([(s, TRUE.predict(s, 16)) for s in SCHEDULES], 16)
    assert (found.launch, found.sharing, found.iteration, found.peer) == pytest.approx((2.0, 1.5, 0.4, 0.1))


def test_no_constant_is_negative() -> None:
    found = fit([(s, 10.0 - 0.001 * s.programs) for s in SCHEDULES], 16)
    assert min(found.launch, found.sharing, found.iteration, found.peer) >= 0


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 3"):
        fit([(s, 1.0) for s in SCHEDULES[:3]], 16)


def test_terms_of_known_schedules() -> None:
    assert terms(data_parallel(4, 5, 10), 8).tolist() == [1, 0, 30, 0]
    assert terms(always_two_tile(1, 1, 32, 8), 8).tolist() == [1, 1, 4, 7]
    assert terms(always_two_tile(1, 1, 32, 16), 8).tolist() == [1, 1, 4, 15]  # half as many, two on each SM
    assert terms(always_two_tile(2, 5, 10, 8), 8).tolist() == [1, 1, 13, 1]
