"""The importance of knobs: what was planted is found, and what is rare is not mistaken for what matters."""

import numpy as np
import pytest

from tilewright.core.streams import stream
from tilewright.cost_model.importance import MIN_TRIALS, knob_importance, top_count


def test_the_knob_that_decides_the_time_is_found() -> None:
    draws = stream(1, "importance")
    tile = draws.choice([8, 16, 32, 64], 400).tolist()
    order = draws.choice(["ijk", "ikj"], 400).tolist()
    unroll = draws.choice([1, 2, 4], 400).tolist()
    seconds = [t * (1.5 if o == "ijk" else 1.0) for t, o in zip(tile, order, strict=True)]
    noisy = (np.array(seconds) * draws.lognormal(0.0, 0.05, 400)).tolist()
    shares = knob_importance([tile, order, unroll], noisy)
    assert shares is not None and sum(shares) == pytest.approx(1.0)
    assert shares[0] > shares[1] > 5 * shares[2]


def test_a_number_that_is_different_in_each_trial_does_not_matter_for_that() -> None:
    draws = stream(2, "importance")
    tile = draws.choice([8, 16, 32, 64], 300).tolist()
    serial = draws.permutation(300).tolist()
    shares = knob_importance([serial, tile], (np.array(tile) * draws.lognormal(0.0, 0.1, 300)).tolist())
    assert shares is not None and shares[1] > 5 * shares[0]


def test_nothing_is_said_without_trials_or_without_an_effect() -> None:
    few = MIN_TRIALS - 1
    assert knob_importance([[1, 2] * few], [1.0] * few) is None
    assert knob_importance([[4] * 100], [float(i) for i in range(100)]) is None
    assert knob_importance([], [float(i) for i in range(100)]) is None
    assert (top_count(16), top_count(100), top_count(1000)) == (8, 10, 100)
