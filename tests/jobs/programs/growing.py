"""Trains until its policy has brought a peer. growing.py FOLDER [utility]

A hook that asks for nothing is called beside it in every second step. With the word "utility" the program makes that
policy itself, since a worth is no literal of the command line: each second sooner is worth something, and a peer costs
nothing. A step takes some milliseconds until the file FOLDER/hurry is there, and a second in the last quarter of the
training.
"""

# ruff: noqa: E402  # what is loaded at the top is to be seen
from __future__ import annotations

import sys
from pathlib import Path

print("keras is loaded already:", "keras" in sys.modules)  # by a process on standby

import kungfu as kf
from kungfu.policies import utility
from tests.jobs.programs.paced import train


def ignore(control) -> None:
    """Asks for nothing."""


def policies(words: list[str]) -> list[kf.Policy]:
    """What the program brings itself."""
    calling = kf.Policy("calling", lambda training: kf.control.always().call(ignore))
    if words != ["utility"]:
        return [calling]
    return [calling, utility(worth=kf.worth.linear(1e6, zero_at_s=1e5), price_per_hour=0, max_peers=2, every=5)]


def main(folder: Path, words: list[str]) -> None:
    train(folder, policies(words), epochs=100, pause_s=lambda peer: 0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
