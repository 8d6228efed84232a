"""The page of a job: shows the job live in a browser, and accepts requests to it."""
