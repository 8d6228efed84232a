"""The life of a run in a loop: attached, stepped, held at barriers, recovered, ended."""
