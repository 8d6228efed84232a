"""The start of a program of a test, without libraries that nothing in it needs; see ``tests/lean_start.py``.

TensorFlow loads Keras where it is installed, and Keras loads matplotlib and scikit-learn: half of a start.
"""

import gc
import os
import sys

without = os.environ.get("KUNGFU_TEST_WITHOUT", "").split()
sys.modules |= dict.fromkeys(without)  # type: ignore[arg-type] # None: not installed
gc.set_threshold(50_000, 20, 50)  # as in the process of the tests: what is loaded stays
