"""The service by which people and schedulers watch and change a running job, and its client."""
