"""Trains while one peer is slow. straggling.py FOLDER PEER

A policy measures how fast the peers are, and only says what it would do. A step of PEER takes 150 ms more, and one of
the others 15 ms, until the file FOLDER/hurry is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import kungfu as kf
from kungfu.policies import replace_stragglers
from tests.jobs.programs.paced import train


def main(folder: Path, slow: int) -> None:
    watching = kf.shadow(replace_stragglers(every=1_000_000))
    train(folder, [watching], epochs=1_000_000, pause_s=lambda peer: 0.15 if peer == slow else 0.015)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
