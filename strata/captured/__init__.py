"""Rounds that a CUDA graph can hold: no decision of the host between two reads of its tokens.

`engine` orders the phases of a round, `phase` captures them, `pages` and `experts` are the parts of
a phase that depend on how K/V is read and where experts live. On a CPU the same phases run as plain
functions, which is how their logic is tested.
"""

from strata.captured.engine import CapturedEngine
from strata.captured.pages import capture_obstacle

__all__ = ["CapturedEngine", "capture_obstacle"]
