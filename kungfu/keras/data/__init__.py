"""The data of ``fit`` as samples that the peers of a job share: one module for each kind of data."""

from kungfu.keras.data.choose import fit_data
from kungfu.keras.data.fit_data import FitData
from kungfu.keras.data.indexed import arguments_alone

__all__ = ["FitData", "arguments_alone", "fit_data"]
