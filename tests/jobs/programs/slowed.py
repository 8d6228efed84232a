"""Trains beside a peer that is slow. slowed.py FOLDER PEER [STEP SIZE]

Before each step that peer sleeps for 0.6 s while the file FOLDER/slow is there, and every other one for 0.05 s.
With STEP and SIZE a schedule asks for so many peers at that step; a peer that joins waits for the file FOLDER/come
before it attaches. Nobody sleeps once the file FOLDER/hurry is there; until then a step of the last quarter takes a
second, so that the job does not end before.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from kungfu.policies import replace_stragglers, schedule
from tests.jobs.programs.paced import train

FOUNDERS = json.loads(os.environ["KUNGFU_SETTINGS"])["checkpoints"]["founders"]


def main(folder: Path, slow: int, sizes: dict[int, int]) -> None:
    while sizes and not FOUNDERS and not (folder / "come").exists():
        time.sleep(0.05)
    growing = [schedule(sizes)] if sizes else []
    replacing = replace_stragglers(every=10, threshold=0.5, alpha=0.2)

    def pause_s(peer: int) -> float:
        return 0.6 if peer == slow and (folder / "slow").exists() else 0.05

    train(folder, [*growing, replacing], epochs=200, pause_s=pause_s)


if __name__ == "__main__":
    words = list(map(int, sys.argv[2:]))
    main(Path(sys.argv[1]), words[0], dict([words[1:]]) if words[1:] else {})
