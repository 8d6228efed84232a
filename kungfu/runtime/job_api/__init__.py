"""The service with which people and schedulers watch and change a running job, and its client."""
