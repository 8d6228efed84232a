"""The course of a job: what its head knows of it, decides, and has done."""
