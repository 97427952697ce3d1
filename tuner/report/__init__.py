"""Show a study: one summary of plain numbers, from which page and terminal table are made."""

from strata.tuner.report.page import write_report
from strata.tuner.report.summary import summarise

__all__ = ["summarise", "write_report"]
