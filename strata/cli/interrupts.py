"""Answer Ctrl-C at every moment of a command, imports and the parser's own pages included.

A KeyboardInterrupt that is raised while a module is imported may be taken for a failed import:
torch's own modules go on without what they tried, and the command runs to its end as if nobody
had asked. So nothing is raised there. While nothing can be lost the process ends at once; where
something can, the interrupt waits until the import is over. Imports nothing large itself.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130
AGAIN_S = 0.02
_SHOW_CURSOR = "\r\x1b[2K\x1b[?25h"
"""Takes a progress bar off the line and gives the cursor back."""

_raises = 0
"""How many commands run that make a sentence of a KeyboardInterrupt; 0 outside of them."""
_holding = 0
"""How many blocks run whose end has something to keep or to end."""


def install() -> None:
    """Answer SIGINT from now on, unless whoever started this process has it ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _answer)


def ignore() -> None:
    """Take no SIGINT any more: the result stands, and only the interpreter is left to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def raising() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside; outside it ends the process at once."""
    global _raises
    _raises += 1
    try:
        yield
    finally:
        _raises -= 1


@contextmanager
def holding() -> Iterator[None]:
    """Let Ctrl-C inside wait for the end of an import: what there is must be kept."""
    global _holding
    _holding += 1
    try:
        yield
    finally:
        _holding -= 1


def _answer(number: int, frame: FrameType | None) -> None:
    if _raises and not _is_dropped(frame):
        raise KeyboardInterrupt
    if _holding:
        again = threading.Timer(AGAIN_S, _thread.interrupt_main)
        again.daemon = True
        again.start()
        return
    text = "interrupted\n"
    if sys.stderr is not None and sys.stderr.isatty():
        text = _SHOW_CURSOR + text
    try:
        os.write(2, text.encode())
    finally:
        os._exit(EXIT_INTERRUPTED)


def _is_dropped(frame: FrameType | None) -> bool:
    """Return whether an exception raised in `frame` may end in a module's import or a __del__."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
