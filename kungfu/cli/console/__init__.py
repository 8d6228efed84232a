"""The console of a running job: its output and status on the screen, and the summary at its end."""

from kungfu.cli.console.run_console import RunConsole, make_console
from kungfu.cli.console.screen_state import ScreenState
from kungfu.cli.console.screens import LiveScreen, PlainScreen

__all__ = ["LiveScreen", "PlainScreen", "RunConsole", "ScreenState", "make_console"]
