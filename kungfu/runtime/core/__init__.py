"""The pure functions of the runtime: views, barriers, the lifecycle of peers, slices of data and root causes."""
