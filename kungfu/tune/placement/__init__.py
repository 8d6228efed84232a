"""Placing trials on nodes: from an allocation to GPUs, with few moves."""

from kungfu.tune.placement.controller import place
from kungfu.tune.placement.layout import Allocation, Nodes, Placement, Slot, moves, unplaced
from kungfu.tune.placement.scale_down import Shrunk, shrink

__all__ = ["Allocation", "Nodes", "Placement", "Shrunk", "Slot", "moves", "place", "shrink", "unplaced"]
