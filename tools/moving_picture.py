"""Takes the moving picture of the README from a real job: a terminal beside the job's page.

Two peers train scikit-learn's digits with ``fit``. ``kungfu resize 4`` adds two peers, then ``kill -9`` ends one of
them, and the job replaces it. A browser photographs the page meanwhile; the terminal shows the commands and the lines
that ``kungfu-run`` printed. The film is faster than the job, and says by how much. A sleep represents the device time
of a step.

Run by ``make moving-picture``, on an idle machine. Look at the picture before committing it.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from tools.chromium import chromium, look_at
from tools.screenshots import DEADLINE_S, address, awaited, kungfu, newest, running

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "kungfu.gif"
MOST_BYTES = 1_000_000
FILM_S, FRAME_S = 8.0, 0.2
HEIGHT, TERMINAL, PAGE = 620, 520, 600  # pixels
# The page is photographed larger than it is shown, so that its first chart fits.
SHRUNK = 0.7
# Seconds of the job that the film shows before the first command, and after each change.
SETTLED_S = 6.0
PROGRAM = """
import time

import keras
from sklearn.datasets import load_digits

import kungfu as kf

digits = load_digits()
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")])
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

training = kf.keras.attach(model)


class Device(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.16 / training.size)  # the device time of a slice of the batch


x, y = digits.data[:1792] / 16.0, digits.target[:1792]
model.fit(x, y, batch_size=256, epochs=1000, verbose=0, callbacks=[Device()])
"""
_BACKGROUND, _TEXT, _FAINT, _PROMPT = "#16191d", "#d7dbe0", "#8b929c", "#7ee787"


@dataclass
class Film:
    """The frames so far: a photograph of the page and the lines of the terminal, ``at`` seconds of the job."""

    began: float = field(default_factory=time.monotonic)
    at: list[float] = field(default_factory=list)
    pages: list[bytes] = field(default_factory=list)
    terminals: list[list[str]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def take(self, page: bytes, console: Path) -> None:
        """Adds a frame with the page and the present lines of the terminal."""
        self.at.append(time.monotonic() - self.began)
        self.pages.append(page)
        self.terminals.append([*printed(console), "", *self.commands])


def main() -> None:
    """Runs the job and its changes, and writes the moving picture."""
    with tempfile.TemporaryDirectory(prefix="kungfu-film-") as work, ExitStack() as opened:
        folder, console = Path(work), Path(work) / "console.txt"
        (folder / "train.py").write_text(PROGRAM)
        log = folder / "run"
        job = opened.enter_context(running(launcher(log), console))
        page = awaited(lambda: address(console, r"http://[^/\s]+/(?=\s)"), what="the address of the page")
        awaited(lambda: newest(log).get("size") == 2, what="the first steps")
        driver = opened.enter_context(chromium(folder / "profile"))
        look_at(driver, (round(PAGE / SHRUNK), round(HEIGHT / SHRUNK)))
        driver.get(page)
        awaited(lambda: driver.execute_script("return document.querySelectorAll('canvas').length > 2"), what="curves")
        film = Film()

        def record(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                film.take(driver.get_screenshot_as_png(), console)
                time.sleep(0.3)

        def record_until(size: int, what: str) -> None:
            deadline = time.monotonic() + DEADLINE_S
            while newest(log).get("size") != size:
                if time.monotonic() > deadline:
                    sys.exit(f"waited {DEADLINE_S:g} s for {what}")
                record(0.3)
            record(SETTLED_S)

        record(SETTLED_S)
        film.commands.append("$ kungfu resize 4")
        resize = opened.enter_context(running(kungfu("resize", "4", str(log)), folder / "resize.txt"))
        record_until(4, "four peers")
        film.commands.append((folder / "resize.txt").read_text().strip())
        resize.wait(60)
        record(2.0)
        pid = peer_process(log, rank=3)
        film.commands.append(f"$ kill -9 {pid}")
        os.kill(pid, signal.SIGKILL)
        record_until(3, "the loss of a peer")
        record_until(4, "its replacement")
        subprocess.run(kungfu("stop", str(log)), cwd=ROOT, check=True, capture_output=True)
        job.wait(60)
        write(film)


def launcher(log: Path) -> list[str]:
    """The command line of the job."""
    options = ["-np", "2", "--max", "4", "--page", "0", "--report-every", "3600", "--logdir", str(log)]
    return [sys.executable, "-m", "kungfu.cli.run", *options, "python", "train.py"]  # the page shows this command


def peer_process(log: Path, *, rank: int) -> int:
    """The id of the process of the peer with this rank."""
    told = subprocess.run(kungfu("status", "--json", str(log)), cwd=ROOT, check=True, capture_output=True, text=True)
    [pid] = [int(peer["pid"]) for peer in json.loads(told.stdout)["peers"] if peer["rank"] == rank]
    return pid


def printed(console: Path) -> list[str]:
    """The lines that ``kungfu-run`` has printed, below its command."""
    lines = console.read_text(errors="replace").splitlines()
    return [
        "$ kungfu-run -np 2 --max 4 --page python train.py",
        *(re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines),
    ]


def write(film: Film) -> None:
    """Writes the frames as one picture that plays in ``FILM_S`` seconds, with as many colours as its limit allows."""
    speed = film.at[-1] / FILM_S
    count = round(FILM_S / FRAME_S)
    shown = [
        min(range(len(film.at)), key=lambda nth: abs(film.at[nth] - n * speed * FRAME_S)) for n in range(count + 1)
    ]
    frames = [drawn(film, nth, speed) for nth in shown]
    for colours in (128, 64, 32, 16):
        palette = frames[-1].quantize(colours, dither=Image.Dither.NONE)
        packed = io.BytesIO()
        first, *rest = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
        durations = [round(FRAME_S * 1000)] * count + [2500]
        first.save(packed, "GIF", save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)
        if packed.tell() < MOST_BYTES:
            TARGET.write_bytes(packed.getvalue())
            print(f"{TARGET}: {packed.tell() / 1000:.0f} kB, {colours} colours, {speed:.1f} times as fast as the job")
            return
    sys.exit(f"the picture has {packed.tell():,} bytes, at most {MOST_BYTES:,} are wanted")


def drawn(film: Film, nth: int, speed: float) -> Image.Image:
    """A frame: the terminal on the left, the page on the right."""
    frame = Image.new("RGB", (TERMINAL + PAGE, HEIGHT), _BACKGROUND)
    page = Image.open(io.BytesIO(film.pages[nth])).convert("RGB")
    frame.paste(page.resize((PAGE, HEIGHT), Image.Resampling.LANCZOS), (TERMINAL, 0))
    pen, font = ImageDraw.Draw(frame), monospace(13)
    width, rows = (TERMINAL - 24) // 8, (HEIGHT - 50) // 19
    lines = [row for line in film.terminals[nth] for row in wrapped(line, width)][-rows:]
    for row, line in enumerate(lines):
        colour = _PROMPT if line.startswith("$ ") else _TEXT
        pen.text((12, 12 + 19 * row), line, font=font, fill=colour)
    pen.text((12, HEIGHT - 24), f"{film.at[nth]:3.0f} s, shown {speed:.0f} times as fast", font=font, fill=_FAINT)
    return frame


def wrapped(line: str, width: int) -> list[str]:
    """A line of the terminal, broken at its width."""
    return [line[start : start + width] for start in range(0, max(len(line), 1), width)]


def monospace(size: int) -> ImageFont.FreeTypeFont:
    """The font of matplotlib for code."""
    return ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"), size)


if __name__ == "__main__":
    main()
