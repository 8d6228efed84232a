"""Two devices on a machine without a GPU, where variables and ops are placed as they are beside one.

TensorFlow runs ops on a GPU unless they are told another device, keeps variables of most types there, and those of
int32 say on the CPU; kungfu's own are where it says. Here the second of two logical CPUs stands for the GPU.

``python -m tests.two_devices PROGRAM ...`` runs a program so, and ``-p tests.two_devices`` the tests of a pytest.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context  # the device of the scope, which no public function tells
from tensorflow.python.ops import resource_variable_ops  # a creator scope is one thread's, and clear_session() ends it

HOST, ACCELERATOR = "CPU:0", "CPU:1"
_THERE = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int64, tf.bool)


def simulate() -> None:
    """From now on variables, and the ops of this thread, are placed so; to be called before TensorFlow runs an op."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    plain = resource_variable_ops._variable_handle_from_shape_and_dtype

    def placed(shape: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        there = tf.as_dtype(dtype) in _THERE and not (context.context().device_name or "").endswith(HOST)
        with tf.device(ACCELERATOR if there else HOST):
            return plain(shape, dtype, *args, **kwargs)

    resource_variable_ops._variable_handle_from_shape_and_dtype = placed
    tf.device(ACCELERATOR).__enter__()
    devices = [tf.Variable(one).device[-len(HOST) :] for one in (1.0, 1)]
    assert devices == [ACCELERATOR, HOST], devices


def pytest_configure(config: Any) -> None:
    simulate()


if __name__ == "__main__":
    simulate()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
