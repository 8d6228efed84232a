"""Planning a hyperparameter search: how many GPUs each stage should hold, and what that takes and costs."""

from kungfu.tune.model import *
from kungfu.tune.simulate import *
