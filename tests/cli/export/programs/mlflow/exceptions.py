"""The error of the tracking client."""


class MlflowException(Exception):
    pass
