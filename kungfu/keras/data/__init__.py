"""The data of ``fit`` as samples that the peers of a job share: one module for each kind of data."""
