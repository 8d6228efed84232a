"""A worker of Horovod Elastic: plain variables, Horovod's state class, a commit every N steps."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import horovod.tensorflow as hvd

from benchmarks.elasticity import work
from benchmarks.elasticity.programs.plain import Plain
from benchmarks.elasticity.stamps import Writer


def main() -> None:
    """Trains until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit-every", type=int, default=10, help="steps")
    given = work.arguments(parser)
    hvd.init()
    plain, stamps = Plain(given.megabytes), Writer(given.stamps)
    # Horovod's class for plain variables does not send them under TensorFlow 2. Its class for Keras models does, and
    # only reads the variables of a model and an optimizer.
    model, optimizer = SimpleNamespace(variables=plain.variables), SimpleNamespace(variables=list)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TensorFlowKerasState) -> None:
        while True:
            with stamps.step(lambda: state.step, place=lambda: (hvd.size(), hvd.rank())):
                work.device(given.device_s)
                plain.step(state.step, rank=hvd.rank())
                state.step += 1
                if state.step % given.commit_every == 0:
                    state.commit()

    train(state)


if __name__ == "__main__":
    main()
