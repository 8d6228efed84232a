"""The record of a job on this host: its files, and its display while the job runs."""
