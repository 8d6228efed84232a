"""Takes the pictures of docs/screenshots from a real job: the job's page, TensorBoard, and Grafana's panels.

The job trains the network of ``examples/digits.py`` on two to four peers, like ``make demo``. Meanwhile a browser shows
the job's page, and Debian's Prometheus scrapes its metrics. Grafana is in none of the registries that the project uses:
the expressions of each panel in ``docs/grafana.json`` are evaluated by Prometheus and drawn by matplotlib.

Run by ``make screenshots``. Look at the pictures before committing them.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from selenium import webdriver

from kungfu.cli.png import blank_figure, png_of
from kungfu.runtime.job_api.job_file import read_job_file
from tools.chromium import chromium, look_at

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "screenshots"
WIDE, NARROW = (1280, 1500), (390, 1700)
MOST_BYTES = 200_000
EPOCHS, DEVICE_MS, THREE_FROM = 40, 40, 900
# Steps after which the job has grown, and has visible curves.
SHOWN_FROM = 500
DEADLINE_S = 900.0
_DRAWN = "return document.querySelectorAll('figure.chart canvas').length > 3"
_CARDS = "return document.querySelectorAll('scalar-card').length > 3"
_NO_SETTINGS = """
  [...document.querySelectorAll('button')].find((one) => one.textContent.includes('Settings'))?.click()
"""
_COLOURS = ("#1f6fb4", "#d9730d", "#2b8a3e", "#b3261e", "#6f42c1", "#0b7285")


def main() -> None:
    """Runs the job, and writes the pictures."""
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kungfu-screenshots-") as work, ExitStack() as opened:
        folder, console = Path(work), Path(work) / "console.txt"
        job = opened.enter_context(running(launcher(folder), console))
        page = awaited(lambda: address(console, r"http://[^/\s]+/(?=\s)"), what="the address of the page")
        metrics = awaited(lambda: address(console, r"http://([^/\s]+)/metrics"), what="the address of the metrics")
        prometheus = opened.enter_context(scraping(folder, metrics))
        began = time.time()
        awaited(lambda: has_grown(folder / "digits"), what=f"{SHOWN_FROM} steps and another size")
        with chromium(folder / "profile") as driver:
            page_pictures(driver, page, secret=read_job_file(folder / "digits").secret)
        print("waiting for the job to end")
        if code := job.wait(DEADLINE_S):
            sys.exit(f"the job ended with exit code {code}:\n{console.read_text()}")
        write("grafana-panels", grafana_picture(prometheus, began, time.time()))
        tensorboard_picture(folder)


# ---- the job ---------------------------------------------------------------------------------------------------------


def launcher(folder: Path) -> list[str]:
    """The command line of the job, with all observers."""
    options = ["-np", "2", "--max", "4", "--logdir", str(folder / "digits"), "--tensorboard", str(folder / "board")]
    program = ["-m", "examples.digits", "--epochs", str(EPOCHS), "--device-ms", str(DEVICE_MS)]
    # The page shows this command: without the paths of this machine.
    more = ["--three-from", str(THREE_FROM), "--results", "results"]
    (folder / "results").mkdir()
    return [sys.executable, "-m", "kungfu.cli.run", *options, "--page", "0", "--metrics-port", "0",
            Path(sys.executable).name, *program, *more]  # fmt: skip


@contextmanager
def running(command: Sequence[str], console: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program in the folder of its output, and ends it after the block."""
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with console.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=console.parent, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **paths}
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def address(console: Path, pattern: str) -> str:
    """The address that a program has printed; empty if there is none yet."""
    found = re.search(pattern, console.read_text(errors="replace"))
    return "" if found is None else found[found.lastindex or 0]


def has_grown(log: Path) -> bool:
    """True if the job's size has changed, and the job has enough steps for curves."""
    lines = (log / "metrics.jsonl").read_text().splitlines() if (log / "metrics.jsonl").exists() else []
    return len(lines) > SHOWN_FROM and json.loads(lines[-2])["size"] > 2


def awaited(look: Callable[[], Any], *, what: str) -> Any:
    """Waits until ``look`` returns a true result, and returns the result."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            sys.exit(f"waited {DEADLINE_S:g} s for {what}")
        time.sleep(0.2)
    return found


# ---- pictures by a browser -------------------------------------------------------------------------------------------


def page_pictures(driver: webdriver.Chrome, page: str, *, secret: str) -> None:
    """Takes the page on a desktop and on a phone, light and dark, and the preview of a resize."""
    for size, name in ((WIDE, "wide"), (NARROW, "narrow")):
        for scheme in ("light", "dark"):
            look_at(driver, size, scheme=scheme)
            driver.get(page)
            awaited(lambda: driver.execute_script(_DRAWN), what="the curves on the page")
            write(f"page-{name}-{scheme}", driver.get_screenshot_as_png())
    look_at(driver, (1280, 800))
    script = """
      document.getElementById("resize-button").click();
      const [size, secret] = ["request-size", "request-secret"].map((id) => document.getElementById(id));
      size.value = 2;
      secret.value = arguments[0];
      document.getElementById("request-form").requestSubmit();
    """
    driver.execute_script(script, secret)
    seen = "return document.querySelectorAll('#request-preview li').length > 2"
    awaited(lambda: driver.execute_script(seen), what="what would follow")
    write("page-plan", driver.get_screenshot_as_png())


def tensorboard_picture(folder: Path) -> None:
    """Takes TensorBoard with the files of the job."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder / "board"), "--port", str(port)]
    with running([*command, "--load_fast", "false"], folder / "tensorboard.txt"):
        awaited(lambda: answers(f"http://127.0.0.1:{port}/data/runs"), what="TensorBoard")
        with chromium(folder / "profile-tensorboard") as driver:
            look_at(driver, (1280, 1200))
            shown = "job/(loss|size|samples)|signals/noise|markers|rescale/stop|settings"
            driver.get(f"http://127.0.0.1:{port}/?tagFilter={urllib.parse.quote(shown)}#timeseries")
            awaited(lambda: driver.execute_script(_CARDS), what="the curves of TensorBoard")
            driver.execute_script(_NO_SETTINGS)
            time.sleep(5.0)  # TensorBoard draws the charts in turn, without a sign of completion
            write("tensorboard", driver.get_screenshot_as_png())


def answers(url: str) -> bytes:
    """The response of a URL; empty if there is none yet."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


# ---- Grafana's panels ------------------------------------------------------------------------------------------------


@contextmanager
def scraping(folder: Path, target: str) -> Iterator[str]:
    """Runs Debian's Prometheus, which scrapes one target every second, and yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    scraped = {"job_name": "kungfu", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scraped]}))  # JSON is YAML
    command = [prometheus_program(folder), f"--config.file={folder}/prometheus.yml",
               f"--storage.tsdb.path={folder}/data", f"--web.listen-address={place}"]  # fmt: skip
    with running(command, folder / "prometheus.txt"):
        awaited(lambda: answers(f"http://{place}/-/ready"), what="Prometheus")
        yield place


def prometheus_program(folder: Path) -> str:
    """The path of Debian's Prometheus, unpacked into ``folder`` if it is not installed."""
    if (installed := shutil.which("prometheus")) is not None:
        return installed
    subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, check=True)
    [package] = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder / "debian"], check=True)
    return str(folder / "debian" / "usr" / "bin" / "prometheus")


def grafana_picture(prometheus: str, began: float, ended: float) -> bytes:
    """Draws the dashboard's panels with curves from Prometheus's answers; returns the picture as PNG."""
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] == "timeseries"]
    canvas = blank_figure(12.8, 2.5 * -(-len(panels) // 2))
    axes: Any = canvas.subplots(-(-len(panels) // 2), 2, squeeze=False)
    for place, panel in zip(axes.flat, panels, strict=False):
        draw_panel(place, panel, prometheus, began, ended)
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    return png_of(canvas)


def draw_panel(place: Any, panel: dict[str, Any], prometheus: str, began: float, ended: float) -> None:
    """Draws a panel with a curve for each series in Prometheus's answers."""
    place.set_title(panel["title"], fontsize=10, loc="left")
    curves = [(target, one) for target in panel["targets"] for one in series(prometheus, target["expr"], began, ended)]
    for nth, (target, one) in enumerate(curves):
        moments, values = np.array([[float(part) for part in pair] for pair in one["values"]]).T
        label = legend(target.get("legendFormat", ""), one["metric"])
        place.plot(moments - began, values, color=_COLOURS[nth % len(_COLOURS)], linewidth=1.4, label=label)
    if curves:
        place.legend(fontsize=7, frameon=False, loc="best")
    else:
        place.text(0.5, 0.5, "no data in this run", transform=place.transAxes, ha="center", color="#595f69", fontsize=9)
    place.set_xlim(0, ended - began)
    place.tick_params(labelsize=8)
    place.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    place.spines[["top", "right"]].set_visible(False)


def series(prometheus: str, expression: str, began: float, ended: float) -> list[dict[str, Any]]:
    """Prometheus's answer to an expression over the time of the job."""
    expression = expression.replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", "1m")
    query = urllib.parse.urlencode({"query": expression, "start": began, "end": ended, "step": 1})
    with urllib.request.urlopen(f"http://{prometheus}/api/v1/query_range?{query}", timeout=60) as answer:
        found: list[dict[str, Any]] = json.loads(answer.read())["data"]["result"]
    return found


def legend(form: str, labels: dict[str, str]) -> str:
    """The name of a series in Grafana's format."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda name: labels.get(name[1], ""), form) or labels.get("__name__", "value")


# ---- files -----------------------------------------------------------------------------------------------------------


def write(name: str, png: bytes) -> None:
    """Writes a picture with the most colours that its size limit allows."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32):
        packed = io.BytesIO()
        picture.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
            packed, "PNG", optimize=True
        )
        if packed.tell() < MOST_BYTES:
            break
    (TARGET / f"{name}.png").write_bytes(packed.getvalue())
    print(f"{TARGET / name}.png: {packed.tell() / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
