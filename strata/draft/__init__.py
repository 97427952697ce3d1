"""Drafters: what proposes the tokens that a verify window checks."""

from strata.draft.base import Drafter
from strata.draft.mtp import MtpDrafter
from strata.draft.null import NullDrafter

__all__ = ["Drafter", "MtpDrafter", "NullDrafter"]
