"""Controls a job as its leader: decides on events, performs commands, calls peers, and finds root causes."""
