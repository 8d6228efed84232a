"""The course of a job: what its leader knows of it, decides, and has done."""
