"""Takes the pictures of docs/screenshots: pages of jobs, TensorBoard, Grafana's panels, the site, and `kungfu draw`.

A job trains the network of ``examples/digits.py`` on two to four peers, like ``make demo``. Meanwhile a browser shows
the job's page, and Debian's Prometheus scrapes its metrics. Grafana is in none of the registries that the project uses:
the expressions of each panel in ``docs/grafana.json`` are evaluated by Prometheus and drawn by matplotlib. Two more
jobs show the pages and pictures of 20 and of 100,000 steps; the steps of the long job are cheap.

Run by ``make screenshots``; ``python -m tools.screenshots site`` takes only the pictures of the site, and "job",
"short" and "long" those of a job. Look at the pictures before committing them.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from selenium import webdriver

from kungfu.cli.png import blank_figure, png_of
from kungfu.runtime.job_api.job_file import read_job_file
from tools.chromium import chromium, look_at, serving

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "screenshots"
WIDE, NARROW = (1280, 1400), (390, 1700)
MOST_BYTES = 150_000
EPOCHS, DEVICE_MS, THREE_FROM = 40, 40, 900
# Steps of the first pictures of the page. Later, after the job has grown, the preview of a resize is taken.
FIRST_AFTER = 200
DEADLINE_S = 900.0
LONG_DEADLINE_S = 3 * 3600.0
# A linear model, so that a step takes some 3 ms: 4,300 epochs of 28 steps, or of 19 while three peers train.
LONG_PROGRAM = """
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

import kungfu as kf

keras.utils.set_random_seed(0)
digits = load_digits()
x, y = (digits.data[:1792] / 16.0).astype("float32"), digits.target[:1792]
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(0.002)
follow_noise = kf.policies.gns_batch(max_peers=3, every=2000)
limits = kf.policies.schedule({0: 2, 30_000: 3, 70_000: 2})
training = kf.attach(model, optimizer, policies=[kf.at_most(follow_noise, limits)], seed=0)


@training.step
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


for batch in training.batches((x, y), batch_size=64, epochs=4300, seed=0):
    train_step(*batch)
"""
_DRAWN = """
  const drawn = document.querySelectorAll("figure.chart canvas").length > 3
  return drawn && !document.body.innerText.includes("is being read")
"""
_CARDS = "return document.querySelectorAll('scalar-card').length > 3"
_LOADED = "return document.readyState === 'complete' && [...document.images].every((one) => one.complete)"
_NO_SETTINGS = """
  [...document.querySelectorAll('button')].find((one) => one.textContent.includes('Settings'))?.click()
"""
_COLOURS = ("#1f6fb4", "#d9730d", "#2b8a3e", "#b3261e", "#6f42c1", "#0b7285")


def main() -> None:
    """Takes the pictures of the parts on the command line, or of all parts."""
    TARGET.mkdir(exist_ok=True)
    for part in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory(prefix="kungfu-screenshots-") as work:
            PARTS[part](Path(work))


# ---- the parts -------------------------------------------------------------------------------------------------------


def job_pictures(folder: Path) -> None:
    """Runs the job with all observers: its page, a preview, Grafana's panels and TensorBoard."""
    console = folder / "console.txt"
    with ExitStack() as opened:
        job = opened.enter_context(running(launcher(folder), console))
        page = awaited(lambda: address(console, r"http://[^/\s]+/(?=\s)"), what="the address of the page")
        metrics = awaited(lambda: address(console, r"http://([^/\s]+)/metrics"), what="the address of the metrics")
        prometheus = opened.enter_context(scraping(folder, metrics))
        began = time.time()
        with chromium(folder / "profile") as driver:
            awaited(lambda: newest(folder / "digits").get("step", 0) >= FIRST_AFTER, what=f"{FIRST_AFTER} steps")
            pictures(driver, page, f"page-{FIRST_AFTER}-steps", shows=_DRAWN)
            awaited(lambda: newest(folder / "digits").get("size", 0) > 3, what="four peers")
            preview_picture(driver, page, secret=read_job_file(folder / "digits").secret)
        print("waiting for the job to end")
        if code := job.wait(DEADLINE_S):
            sys.exit(f"the job ended with exit code {code}:\n{console.read_text()}")
        write("grafana-panels", Image.open(io.BytesIO(grafana_picture(prometheus, began, time.time()))))
        tensorboard_picture(folder)


def short_pictures(folder: Path) -> None:
    """Runs a job of 20 steps, and takes the picture that ``kungfu draw`` makes of it."""
    program = ["-m", "examples.digits", "--epochs", "1", "--batch-size", "72", "--device-ms", str(DEVICE_MS)]
    run_to_end(folder, program, name="short")
    drawn_picture(folder / "short", "draw-20-steps")


def long_pictures(folder: Path) -> None:
    """Runs a job of 100,000 steps, and takes its page and the picture that ``kungfu draw`` makes of it."""
    (folder / "train.py").write_text(LONG_PROGRAM)
    run_to_end(folder, ["train.py"], "--min", "2", "--max", "3", name="long")
    record_pictures(folder / "long", "100000-steps")


def record_pictures(run: Path, name: str) -> None:
    """Takes the page of a recorded run, and the picture that ``kungfu draw`` makes of it."""
    drawn_picture(run, f"draw-{name}")
    console = run.parent / "page.txt"
    with running(kungfu("page", run.name), console, end=signal.SIGINT):
        page = awaited(lambda: address(console, r"http://[^/\s]+/(?=[;\s])"), what="the address of the page")
        with chromium(run.parent / "profile") as driver:
            pictures(driver, page, f"page-{name}", shows=_DRAWN)


def site_pictures(folder: Path) -> None:
    """Builds the site, and takes its landing page, the README and the page of Keras' ``fit``."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder / "site")]
    subprocess.run(build, cwd=ROOT, check=True)
    with serving(folder / "site") as site, chromium(folder / "profile") as driver:
        for page, name in (("index", "landing"), ("readme", "readme"), ("keras", "fit")):
            pictures(driver, f"{site}{page}.html", name, shows=_LOADED)


PARTS: Mapping[str, Callable[[Path], None]] = {
    "job": job_pictures, "short": short_pictures, "long": long_pictures, "site": site_pictures,
}  # fmt: skip


# ---- the jobs --------------------------------------------------------------------------------------------------------


def launcher(folder: Path) -> list[str]:
    """The command line of the job, with all observers."""
    options = ["-np", "2", "--max", "4", "--logdir", str(folder / "digits"), "--tensorboard", str(folder / "board")]
    program = ["-m", "examples.digits", "--epochs", str(EPOCHS), "--device-ms", str(DEVICE_MS)]
    # The page shows this command: without the paths of this machine.
    more = ["--three-from", str(THREE_FROM), "--results", "results"]
    (folder / "results").mkdir()
    return [sys.executable, "-m", "kungfu.cli.run", *options, "--page", "0", "--metrics-port", "0",
            Path(sys.executable).name, *program, *more]  # fmt: skip


def run_to_end(folder: Path, program: Sequence[str], *options: str, name: str) -> None:
    """Runs a job of two peers to its end, with its record in the folder ``name``."""
    command = [sys.executable, "-m", "kungfu.cli.run", "-np", "2", *options, "--logdir", str(folder / name)]
    print(f"waiting for the {name} job to end", flush=True)
    with running([*command, Path(sys.executable).name, *program], folder / "console.txt") as job:
        if code := job.wait(LONG_DEADLINE_S):
            sys.exit(f"the job ended with exit code {code}:\n{(folder / 'console.txt').read_text()}")


def kungfu(*arguments: str) -> list[str]:
    """The command line of one of kungfu's commands."""
    return [sys.executable, "-m", "kungfu.cli.main", *arguments]


@contextmanager
def running(
    command: Sequence[str], console: Path, *, end: signal.Signals = signal.SIGTERM
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program in the folder of its output, and ends it by a signal after the block."""
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with console.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=console.parent, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **paths}
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(end)
            process.wait(60)


def address(console: Path, pattern: str) -> str:
    """The address that a program has printed; empty if there is none yet."""
    found = re.search(pattern, console.read_text(errors="replace"))
    return "" if found is None else found[found.lastindex or 0]


def newest(log: Path) -> dict[str, float]:
    """The newest whole line of the job's ``metrics.jsonl``; empty if there is none."""
    path = log / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-2]) if len(lines) > 1 else {}


def awaited(look: Callable[[], Any], *, what: str) -> Any:
    """Waits until ``look`` returns a true result, and returns the result."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            sys.exit(f"waited {DEADLINE_S:g} s for {what}")
        time.sleep(0.2)
    return found


# ---- pictures by a browser -------------------------------------------------------------------------------------------


def pictures(driver: webdriver.Chrome, page: str, name: str, *, shows: str) -> None:
    """Takes a page on a desktop and on a phone, light and dark, once a script says that all is shown."""
    for size in (WIDE, NARROW):
        taken = []
        for scheme in ("light", "dark"):
            look_at(driver, size, scheme=scheme)
            driver.get(page)
            driver.execute_script("localStorage.clear()")  # the site remembers the scheme of the first visit
            driver.refresh()
            awaited(lambda: driver.execute_script(shows), what=f"the contents of {name}")
            taken.append(photograph(driver))
        write(f"{name}-{size[0]}", joined(taken, below=size is WIDE))


def photograph(driver: webdriver.Chrome) -> Image.Image:
    """The picture of a browser's window."""
    return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")


def joined(taken: Sequence[Image.Image], *, below: bool) -> Image.Image:
    """Pictures of one size as one picture, each below or beside the picture before it."""
    width, height = taken[0].size
    count = len(taken)
    whole = Image.new("RGB", (width, height * count) if below else (width * count, height))
    for nth, one in enumerate(taken):
        whole.paste(one, (0, nth * height) if below else (nth * width, 0))
    return whole


def drawn_picture(run: Path, name: str) -> None:
    """Takes the picture that ``kungfu draw`` makes of a run."""
    subprocess.run(kungfu("draw", str(run)), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    write(name, Image.open(run / "run.png"))


def preview_picture(driver: webdriver.Chrome, page: str, *, secret: str) -> None:
    """Takes the preview of a resize on the page of a running job."""
    look_at(driver, (1280, 800))
    driver.get(page)
    awaited(lambda: driver.execute_script(_DRAWN), what="the curves on the page")
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
    write("page-plan", photograph(driver))


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
            write("tensorboard", photograph(driver))


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


def write(name: str, picture: Image.Image) -> None:
    """Writes a picture with the most colours that its size limit allows."""
    picture = picture.convert("RGB")
    for colours in (256, 128, 64, 32):
        packed = io.BytesIO()
        picture.quantize(colours, method=Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE).save(
            packed, "PNG", optimize=True
        )
        if packed.tell() < MOST_BYTES:
            break
    (TARGET / f"{name}.png").write_bytes(packed.getvalue())
    print(f"{TARGET / name}.png: {packed.tell() / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
