"""A worker of a job of fixed size: continues from a checkpoint if there is one, and saves one when it stops."""

from __future__ import annotations

import argparse
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.elasticity import work
from benchmarks.elasticity.programs.plain import Plain
from benchmarks.elasticity.stamps import Writer


def main() -> None:
    """Trains until the file ``stop`` exists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoint and the wish to stop")
    given = work.arguments(parser)
    hvd.init()
    plain, stamps, done = Plain(given.megabytes), Writer(given.stamps), tf.Variable(0)
    checkpoint = tf.train.Checkpoint(done=done, **{f"v{n}": one for n, one in enumerate(plain.variables)})
    saved = given.folder / "checkpoint"
    if saved.with_suffix(".index").exists():
        checkpoint.read(str(saved)).assert_consumed()
    stopping = False
    while not stopping:
        count = int(done)
        with stamps.step(lambda: int(done), place=lambda: (hvd.size(), hvd.rank())):
            work.device(given.device_s)
            wish = float(hvd.rank() == 0 and (given.folder / "stop").exists())
            stopping = plain.step(count, rank=hvd.rank(), wish=wish) > 0
            done.assign_add(1)
    if hvd.rank() == 0:
        checkpoint.write(str(saved))


if __name__ == "__main__":
    main()
