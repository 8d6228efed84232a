"""The reports of a peer to the job's journal: decisions and steps for people, every number of a step for a replay."""
