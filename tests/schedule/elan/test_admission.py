"""When a job may start: hard limit, free GPUs, and the two futures compared."""

from __future__ import annotations

import numpy as np
import pytest

from kungfu.schedule import Job
from kungfu.schedule.elan.admission import admissible, does_not_delay, spare_gpus
from kungfu.schedule.elan.crew import Crew, Setting, prepared
from kungfu.schedule.elan.forecast import estimated_opening, opening, sum_of_ends_s
from kungfu.schedule.state import tabulated
from tests.schedule.instances import rows

FLAT = tuple(Job(str(index), 0, 1, runs, min_gpus=1, max_gpus=1) for index, runs in enumerate((4.0, 10.0, 3.0)))


def _setting(jobs: tuple[Job, ...], gpus: int) -> Setting:
    return prepared(tabulated(jobs, gpus=gpus), gpus)


def _crew(setting: Setting, *, held: dict[int, int]) -> Crew:
    jobs = np.array(list(held), dtype=np.int64)
    rates = setting.workload.rates[setting.workload.kind[jobs], setting.workload.gpus[jobs]]
    return Crew(jobs, setting.workload.duration_s[jobs] * rates, np.array(list(held.values()), dtype=np.int64))


def test_nobody_is_admitted_beyond_the_sum_of_the_fewest() -> None:
    setting = _setting(FLAT, 2)
    crew = _crew(setting, held={0: 1, 1: 1})
    assert spare_gpus(crew, setting=setting) == 0
    assert not admissible(crew, job=2, setting=setting, exact_up_to=9)


def test_exactly_enough_free_gpus_are_enough() -> None:
    setting = _setting(FLAT, 2)
    assert admissible(_crew(setting, held={0: 1}), job=1, setting=setting, exact_up_to=9)


def test_futures_by_hand() -> None:
    # One GPU each: ends at 4 and 10. With a third GPU the newcomer would end at 3.
    setting = _setting(FLAT, 3)
    crew = _crew(setting, held={0: 1, 1: 1})
    assert sum_of_ends_s(crew, setting=setting) == 14
    opens = opening(crew, wanted=2, setting=setting)
    assert (opens.time_s, opens.ends_s, opens.crew.jobs.tolist()) == (4, 4, [1])
    assert estimated_opening(crew, wanted=3, setting=setting).time_s == 10


@pytest.mark.parametrize(("runs_s", "admitted"), [(1.0, True), (100.0, False)])
def test_a_short_job_may_take_gpus_from_a_long_one_and_a_long_one_may_not(runs_s: float, admitted: bool) -> None:
    # Two GPUs, perfect scaling. The first needs 10 s on both. Admitting the second now costs the first one GPU:
    # short: ends at 1 and 10.5 now, at 10 and 10.5 if it waits. Long: (20, 60) now, (10, 60) if it waits.
    setting = _setting(rows((0, 2, 10.0), (0, 1, runs_s)), 2)
    for exact_up_to in (0, 9):
        assert admissible(_crew(setting, held={0: 2}), job=1, setting=setting, exact_up_to=exact_up_to) is admitted


def test_backfilling_may_not_move_the_heads_opening() -> None:
    # Four GPUs, two of them busy until 10. The head wants three. A job on the others for 5 s does not matter, one
    # that needs both of them until 30 does.
    stiff = tuple(
        Job(str(index), 0, gpus, runs, min_gpus=gpus, max_gpus=gpus)
        for index, (gpus, runs) in enumerate([(2, 10.0), (3, 5.0), (1, 5.0), (2, 30.0)])
    )
    setting = _setting(stiff, 4)
    crew = _crew(setting, held={0: 2})
    for exact_up_to in (0, 9):
        assert does_not_delay(crew, job=2, head=1, setting=setting, exact_up_to=exact_up_to)
        assert not does_not_delay(crew, job=3, head=1, setting=setting, exact_up_to=exact_up_to)
