"""The reports of a peer to the job's journal: decisions and steps for users, all numbers of a step for a replay."""
