"""Choose how much of the K/V a session keeps on the device; plain Python, no torch."""

from strata.policy.asked import Asked, FreeSwitches
from strata.policy.decision import NOT_OBEYED, Gain, Refusal, RingDecision
from strata.policy.fingerprint import Fingerprint, Mode, differences
from strata.policy.request import (
    POLICIES,
    PolicyName,
    RingRequest,
    minimum_ring_cells,
    need_cells,
    parse_resident,
    round_down,
    round_up,
)
from strata.policy.resolve import (
    ResolvedPolicy,
    check_policy,
    parse_policy,
    resolve_policy,
)
from strata.policy.rules import choose_ring
from strata.policy.search import find_table, search_folders, shipped_folder, user_folder
from strata.policy.table import Declaration, Entry, PolicyTable, Verdict
from strata.policy.table_document import from_document, to_document
from strata.policy.table_file import dump_table, load_table, save_table
from strata.policy.tiers import Tier, make_tiers, tier_of

__all__ = [
    "NOT_OBEYED",
    "POLICIES",
    "Asked",
    "Declaration",
    "Entry",
    "Fingerprint",
    "FreeSwitches",
    "Gain",
    "Mode",
    "PolicyName",
    "PolicyTable",
    "Refusal",
    "ResolvedPolicy",
    "RingDecision",
    "RingRequest",
    "Tier",
    "Verdict",
    "check_policy",
    "choose_ring",
    "differences",
    "dump_table",
    "find_table",
    "from_document",
    "load_table",
    "make_tiers",
    "minimum_ring_cells",
    "need_cells",
    "parse_policy",
    "parse_resident",
    "resolve_policy",
    "round_down",
    "round_up",
    "save_table",
    "search_folders",
    "shipped_folder",
    "tier_of",
    "to_document",
    "user_folder",
]
