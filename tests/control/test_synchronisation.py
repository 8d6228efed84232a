"""The ways of keeping replicas alike: what `average_models` accepts."""

from __future__ import annotations

import pytest

from kungfu.control import AverageModels, average_models
from kungfu.errors import PolicyError


def test_an_average_of_models_says_after_how_many_steps() -> None:
    assert average_models(every=16) == AverageModels(16)


@pytest.mark.parametrize("every", [0, -1, 2.0, True, None, "16"])
def test_a_number_of_steps_that_is_none_is_refused(every: object) -> None:
    with pytest.raises(PolicyError, match=r"average_models\(every=.*whole number of steps, at least 1"):
        average_models(every=every)
