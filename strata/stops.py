"""Find stop strings in text that arrives in pieces."""

from __future__ import annotations


def open_end(text: str, word: str) -> int:
    """Return how much of the end of `text` may become `word`: the longest that begins it."""
    for size in range(min(len(word) - 1, len(text)), 0, -1):
        if text.endswith(word[:size]):
            return size
    return 0


class StopMatcher:
    """Pass text on, but never any part of a stop string.

    Text that could still become a stop string is held back until it cannot.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """Take `text` and return what may be shown; nothing follows a hit."""
        if self.hit:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.hit = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max((open_end(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """Return what was held back, now that nothing follows."""
        shown, self._held = self._held, ""
        return shown
