"""Writes docs/examples.md: the examples, each with its command and its actual output. Run by ``make examples``.

Each command runs in an empty folder with the examples, by the programs of this environment. Titles on the command line
select the examples to run; the others are unchanged on the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "examples.md"
DEADLINE_S = 600.0
LINES = 36  # the most lines of an output that is not shortened
TOLD = 10  # the most lines in the middle of a shortened output
LETTERS = 150  # the most letters of a line

HEAD = """# Examples

Each example is a complete program in one file, on data that comes with scikit-learn (`pip install scikit-learn`) or
Python. Its output was recorded on a machine with two cores (`...` stands for omitted lines); times and losses differ
from run to run. `make examples` writes this page, and `make soak` runs all examples.
"""


@dataclass(frozen=True)
class Example:
    """A program, and the command that starts it.

    Args:
        title: The title of the example's section.
        file: The file in examples/.
        text: The description of the example.
        command: The command, as lines for a shell.
        shows: Regular expressions, each for lines of the output of which the first and the last are always shown.
    """

    title: str
    file: str
    text: str
    command: str
    shows: tuple[str, ...]


EXAMPLES = (
    Example(
        "Keras' fit",
        "keras/digits.py",
        "A convolutional network with BatchNorm on images, by `model.fit` with one added line and a policy.",
        "kungfu-run -np 2 --max 4 python examples/keras/digits.py --epochs 150",
        (r"gns_batch wants \d peers instead of 2", r": 2 -> \d peers", r"accuracy on 360 held-out images: 0\.\d+"),
    ),
    Example(
        "A GAN",
        "keras/gan.py",
        "A custom `train_step` with two optimizers: each application of gradients is one message.",
        "kungfu-run -np 2 python examples/keras/gan.py --epochs 3",
        (r"mean squared distance of 200 images to the nearest real one: 0\.\d+",),
    ),
    Example(
        "Text with an embedding",
        "keras/text.py",
        "A small transformer that predicts the next character of Python's own source, with a mask over lines of "
        "different lengths.",
        "kungfu-run -np 2 python examples/keras/text.py --epochs 2 --lines 1000",
        (r"accuracy on held-out lines: 0\.\d+ of the characters",),
    ),
    Example(
        "A straggler",
        "straggler.py",
        "A peer that is four times slower than the others is detected and replaced while the others train.",
        "kungfu-run -np 3 python examples/straggler.py",
        (r"peer 3 joined, peer 1 left", r"trained 20 epochs"),
    ),
    Example(
        "Autoscale",
        "autoscale.py",
        "The job grows while each additional peer contributes enough throughput.",
        "kungfu-run -np 1 --max 4 python examples/autoscale.py",
        (r": 1 -> 2 peers", r"trained 40 epochs, at the end with \d peers"),
    ),
    Example(
        "Utility",
        "utility.py",
        "A job with a deadline and a price per peer uses the peers that it needs to end in time.",
        "kungfu-run -np 1 --max 4 python examples/utility.py",
        (r": 1 -> 2 peers", r"trained 40 epochs in \d+ s for a deadline of 60 s"),
    ),
    Example(
        "Listing 1",
        "listing_1.py",
        "Listing 1 of the KungFu paper, line by line: a hook adapts the size to the gradient noise scale.",
        "kungfu-run -np 2 --min 2 --max 4 python examples/listing_1.py --epochs 40 --device-ms 20",
        (r"listing_1 was called with noise scale", r": 2 -> \d peers"),
    ),
    Example(
        "Resume",
        "resume.py",
        "Checkpoints during training, and a second job that resumes from the newest one with another number of peers.",
        "kungfu-run -np 2 --logdir first python examples/resume.py --epochs 3\n"
        "kungfu-run -np 3 --logdir second --resume first/checkpoints python examples/resume.py --epochs 5",
        (r"up to step 87 of the job", r"up to step 145 of the job"),
    ),
    Example(
        "Several hosts",
        "keras/digits.py",
        "Two hosts, here two addresses of one machine: the same command on each, and a shared secret.",
        "export KUNGFU_SECRET=$(python -c 'import secrets; print(secrets.token_hex(32))')\n"
        "job='-H 127.0.0.1:1,127.0.0.2:2 --port 28317 -np 2'\n"
        "kungfu-run $job --self 127.0.0.2 --logdir b python examples/keras/digits.py --epochs 3 > b.txt &\n"
        "kungfu-run $job --self 127.0.0.1 --logdir a python examples/keras/digits.py --epochs 3; wait",
        (r"host 1 \(127\.0\.0\.2\) is in", r"accuracy on 360 held-out images: 0\.\d+"),
    ),
)


def output_of(example: Example, folder: Path) -> str:
    """The output of the example's command in an empty folder; exits this program if the command fails."""
    (folder / "examples").symlink_to(ROOT / "examples")
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    told = {**os.environ, "PATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    words = ["bash", "-euo", "pipefail", "-c", example.command]
    ran = subprocess.run(
        words, cwd=folder, env=told, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    if ran.returncode or not all(re.search(one, ran.stdout) for one in example.shows):
        sys.exit(f"{example.command}\ngave {ran.returncode}:\n{ran.stdout}")
    return ran.stdout.replace(str(folder), "/home/user")


def shortened(example: Example, output: str) -> list[str]:
    """The lines of an output; if long, its beginning, its end, the first and the last line of each pattern of
    ``shows``, and some decisions and changes."""
    lines = [line if len(line) <= LETTERS else f"{line[:LETTERS]} ..." for line in output.rstrip().splitlines()]
    if len(lines) <= LINES:
        return lines
    matched = [[number for number, line in enumerate(lines) if re.search(one, line)] for one in example.shows]
    always = {number for numbers in matched for number in (*numbers[:1], *numbers[-1:])}
    shown: list[str] = []
    told = 0
    for number, line in enumerate(lines):
        is_end = number < LINES // 4 or number >= len(lines) - LINES // 4
        if is_end or number in always or (line.startswith("kungfu: ") and " | " not in line and told < TOLD):
            shown.append(line)
            told += not is_end
        elif shown[-1] != "...":
            shown.append("...")
    return shown


def section(example: Example, output: str) -> str:
    """The Markdown section of an example on the page."""
    shown = "\n".join([*(f"$ {line}" for line in example.command.splitlines()), *shortened(example, output)])
    source = f"[`examples/{example.file}`](../examples/{example.file})"
    return f"## {example.title}\n\n{example.text} {source}\n\n```console\n{shown}\n```\n"


def main() -> None:
    """Runs the examples, one after the other, and writes the page."""
    wanted = sys.argv[1:] or [example.title for example in EXAMPLES]
    kept = dict(re.findall(r"(?ms)^(## .*?)\n\n(.*?^```console\n.*?^```\n)", PAGE.read_text())) if sys.argv[1:] else {}
    sections = []
    for example in EXAMPLES:
        if example.title not in wanted:
            sections.append(f"## {example.title}\n\n{kept[f'## {example.title}']}")
            continue
        print(example.title, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            sections.append(section(example, output_of(example, Path(folder))))
    PAGE.write_text("\n".join([HEAD, *sections]))


if __name__ == "__main__":
    main()
