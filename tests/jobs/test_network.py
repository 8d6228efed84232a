"""Jobs on hosts of an emulated network whose links are cut; Horovod averages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.convex_runs import NO_QUORUM_CODE, training
from tests.jobs.harness import networked

pytestmark = pytest.mark.skipif(
    find_spec("horovod") is None, reason="horovod is not installed; `python -m kungfu.native.horovod` builds it"
)

HOROVOD = ("--attachment", "horovod", "--deadline", 60)


def test_the_leading_host_is_cut_off_and_the_others_go_on(tmp_path: Path) -> None:
    with networked(3) as net, training(tmp_path, *HOROVOD, slots=(1, 1, 1), size=3, epochs=10, within=net) as run:
        run.hosts[1].steps(10)
        net.part([0], [1, 2])
        run.hosts[1].event("recovered", to=2)
        run.hosts[0].end(code=NO_QUORUM_CODE)
        _, *others = run.ends(NO_QUORUM_CODE, 0, 0, tells=1)
    for ended in others:
        assert "Timed out waiting" not in ended.output, "no engine waits until its deadline"
        assert ended.sizes == [3, 2]
        assert [event["host"] for event in ended.all_of("host lost")] == [0]
