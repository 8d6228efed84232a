"""A tracking client of MLflow with the methods, the limits and the errors of the real one, in a file.

The URI is ``file://FOLDER``: the runs are in ``FOLDER/runs.json``, and the client fails while there is a file
``FOLDER/down``.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from types import SimpleNamespace

from mlflow.exceptions import MlflowException


class MlflowClient:
    def __init__(self, tracking_uri):
        self._folder = Path(tracking_uri.removeprefix("file://"))

    def _runs(self):
        if (self._folder / "down").exists():
            raise MlflowException("API request to http://tracking failed\nwith code 503")
        path = self._folder / "runs.json"
        return json.loads(path.read_text()) if path.exists() else []

    def _write(self, runs):
        (written := self._folder / "runs.new").write_text(json.dumps(runs))
        written.replace(self._folder / "runs.json")  # others read it meanwhile

    def search_runs(self, experiment_ids, filter_string):
        name, value = re.fullmatch(r"tags\.`(.*?)` = '(.*?)'", filter_string).groups()
        return [_run(one) for one in self._runs() if one["experiment"] in experiment_ids and one["tags"][name] == value]

    def get_experiment_by_name(self, name):
        known = {one["experiment"] for one in self._runs()}
        return SimpleNamespace(experiment_id=name) if name in known else None

    def create_experiment(self, name):
        return name

    def create_run(self, experiment_id, start_time, tags, run_name):
        runs = self._runs()
        run = {"id": f"run{len(runs)}", "experiment": experiment_id, "start": start_time, "tags": tags, "params": {},
               "name": run_name, "metrics": [], "artifacts": {}, "status": "RUNNING", "end": None}  # fmt: skip
        self._write([*runs, run])
        return _run(run)

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        assert len(metrics) + len(params) + len(tags) <= 1000
        runs = self._runs()
        run = next(one for one in runs if one["id"] == run_id)
        for metric in metrics:
            assert re.fullmatch(r"[/\w.\- ]{1,250}", metric.key), metric.key
            assert posixpath.normpath(metric.key) == metric.key
            run["metrics"].append([metric.key, metric.value, metric.timestamp, metric.step])
        for one in params:
            assert run["params"].setdefault(one.key, one.value) == one.value
        run["tags"] |= {one.key: one.value for one in tags}
        self._write(runs)

    def log_text(self, run_id, text, artifact_file):
        runs = self._runs()
        next(one for one in runs if one["id"] == run_id)["artifacts"][artifact_file] = text
        self._write(runs)

    def log_artifact(self, run_id, local_path):
        self.log_text(run_id, Path(local_path).read_text(), Path(local_path).name)

    def set_terminated(self, run_id, status, end_time):
        runs = self._runs()
        next(one for one in runs if one["id"] == run_id).update(status=status, end=end_time)
        self._write(runs)


def _run(run):
    info = SimpleNamespace(run_id=run["id"])
    return SimpleNamespace(info=info, data=SimpleNamespace(params=run["params"], tags=run["tags"]))
