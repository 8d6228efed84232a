"""What a simulation wrote down, the figures made of it, and how they are shown."""

from kungfu.schedule.outcome.ledger import Result, Timeline, Usage
from kungfu.schedule.outcome.metrics import SIZE_CLASSES, Figures, Summary, reduction, summary, summary_as_dict
from kungfu.schedule.outcome.plot import save_plot
from kungfu.schedule.outcome.table import summary_table

__all__ = [
    "SIZE_CLASSES",
    "Figures",
    "Result",
    "Summary",
    "Timeline",
    "Usage",
    "reduction",
    "save_plot",
    "summary",
    "summary_as_dict",
    "summary_table",
]
