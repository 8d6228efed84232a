"""The description of the distribution: README.md without the pictures and links that only the sources have.

Everything else is in pyproject.toml. A registry's page shows no file of the sources, and this project has no address.
"""

import re
from pathlib import Path

from setuptools import setup

_OURS = r"(?!https?:)"  # the start of a relative address


def description(readme: str) -> str:
    """The text of a README without relative pictures, and with the words of relative links."""
    without = re.sub(rf'<a href="{_OURS}[^"]*"><img [^>]*></a>|!\[[^\]]*\]\({_OURS}[^)]*\)\n*', "", readme)
    return re.sub(rf"\[([^\]]+)\]\({_OURS}[^)]*\)", r"\1", without)


setup(
    long_description=description((Path(__file__).parent / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
