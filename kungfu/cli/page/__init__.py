"""The page of a job: what it does, live in a browser, and what may be asked of it."""
