"""The error of the tracking client."""


class MlflowException(Exception):  # noqa: N818 - its name in MLflow
    pass
