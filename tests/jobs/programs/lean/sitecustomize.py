"""Keras imports matplotlib and scikit-learn where they are installed: a third of a start, and no test needs them."""

import os
import sys

if "KUNGFU_SETTINGS" in os.environ:  # a peer; the agent draws with matplotlib
    sys.modules |= dict.fromkeys(("matplotlib", "sklearn"))  # type: ignore[arg-type] # None: not installed
