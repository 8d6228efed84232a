"""Pure functions of values: views, barriers, the life of peers, slices of data, root causes."""
