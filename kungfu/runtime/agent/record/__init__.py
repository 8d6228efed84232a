"""The record of a job on this host: its files, and what a person sees while it runs."""
