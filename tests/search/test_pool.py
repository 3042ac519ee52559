"""The candidate pool finds the settings that it holds."""

import numpy as np

from tilewright.schedule.space.knob import Knob
from tilewright.schedule.space.space import Space
from tilewright.search.pool import CandidatePool

SAME_NUMBER = np.array([142, 73, 16, -63, -158, 0, -23, 97])
"""What two rows of codes differ by that have the same number: a short vector of the lattice of such differences."""


def test_settings_with_the_same_number_are_all_found() -> None:
    low, high = np.maximum(-SAME_NUMBER, 0), np.maximum(SAME_NUMBER, 0)
    codes = np.array([low, high, high + 1], np.int16)
    knobs = tuple(Knob(f"knob_{n}", tuple(range(200)), "a number") for n in range(codes.shape[1]))
    pool = CandidatePool([Space("sketch", 1, knobs, codes)])
    illegal = np.concatenate([codes[:2] + 2, codes])
    assert pool.rows_with(0, codes).tolist() == [0, 1, 2]
    assert pool.rows_with(0, illegal[::-1].astype(np.int16)).tolist() == [2, 1, 0]
    assert pool.rows_with(0, codes[:0]).tolist() == []
