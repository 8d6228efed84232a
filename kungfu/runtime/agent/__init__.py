"""The agent of a host: processes, their output, the job's folder."""
