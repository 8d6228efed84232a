"""What a person sees while a job runs."""

from kungfu.cli.console.board import Board
from kungfu.cli.console.live import LiveScreen
from kungfu.cli.console.plain import PlainScreen
from kungfu.cli.console.run_console import RunConsole, make_console
from kungfu.cli.console.status import Status

__all__ = ["Board", "LiveScreen", "PlainScreen", "RunConsole", "Status", "make_console"]
