"""Pure functions of values: views, barriers, the lifecycle of peers, slices of data and root causes."""
