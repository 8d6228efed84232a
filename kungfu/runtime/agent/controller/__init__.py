"""Controls a job as its leader: decides event by event, performs commands, calls peers, finds root causes."""
