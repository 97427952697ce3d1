"""The figures of one generation, as one JSON object and as the block that ends a run."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from strata.generation import Generation
from strata.session import PrefillStats, Session
from strata.units import format_bytes


def stats_object(session: Session, prefill: PrefillStats, done: Generation) -> dict[str, Any]:
    """Return everything that `--json` writes; rates that one token cannot give are null."""
    first_ms = (prefill.seconds + done.first_token_s) * 1e3
    return {
        "text": done.text,
        "tokens": done.tokens,
        "token_hash": done.token_hash,
        "stopped": done.stopped,
        "prompt_tokens": prefill.tokens,
        "prefill_tok_s": prefill.tokens / prefill.seconds,
        "ttft_ms": first_ms,
        "decode_tok_s": done.decode_tok_s,
        "tpot_p50_ms": done.tpot_ms(50),
        "tpot_p99_ms": done.tpot_ms(99),
        "rounds": done.rounds,
        "rounds_per_s": done.rounds_per_s,
        "tokens_per_round": done.tokens_per_round,
        "accepted": done.accepted,
        "drafted": done.drafted,
        "ring_chosen_cells": session.decision.ring_cells,
        "ring_cells": session.decision.pool_cells,
        "ring_policy": session.decision.policy,
        "ring_reason": session.decision.reason,
        "spec": session.drafts,
        "mtp_window_cells": session.mtp_window_cells,
        "kv_lookups": done.kv.lookups,
        "kv_hits": done.kv.hits,
        "kv_misses": done.kv.misses,
        "kv_bytes": done.kv.bytes,
        "kv_overflows": done.kv.overflows,
        "kv_prefetched": done.kv.prefetched,
        "kv_prefetched_used": done.kv.prefetched_used,
        "expert_slots": session.expert_slots,
        "expert_lookups": done.experts.lookups,
        "expert_misses": done.experts.misses,
        "expert_prefetched": done.experts.prefetched,
        "expert_prefetched_used": done.experts.prefetched_used,
        "ledger": session.ledger,
        "model_hash": session.model.model_hash,
        "device": str(session.model.device),
        "dtype": str(session.model.dtype).removeprefix("torch."),
    }


def stats_block(stats: dict[str, Any]) -> Table:
    """Return the block that ends a run."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row(
        "prompt",
        f"{stats['prompt_tokens']} cells at {_rate(stats['prefill_tok_s'])} tok/s, "
        f"first token after {stats['ttft_ms']:.0f} ms",
    )
    table.add_row(
        "decode",
        f"{len(stats['tokens'])} tokens at {_rate(stats['decode_tok_s'])} tok/s "
        f"= {_rate(stats['rounds_per_s'])} rounds/s x {_rate(stats['tokens_per_round'], 2)} "
        f"tokens/round ({stats['stopped']})",
    )
    table.add_row(
        "drafts",
        f"{'auto' if stats['spec'] == 'auto' else str(stats['spec']) + ' a round'}, accepted "
        f"{stats['accepted']} of {stats['drafted']} by position"
        if stats["spec"]
        else "off",
    )
    table.add_row(
        "ring",
        f"{stats['ring_cells']} cells ({stats['ring_policy']}: {stats['ring_reason']}); "
        f"{stats['kv_hits']} of {stats['kv_lookups']} pages hit, "
        f"{stats['kv_misses']} missed ({format_bytes(stats['kv_bytes'])}), "
        f"{stats['kv_overflows']} of them read in place",
    )
    table.add_row(
        "experts",
        f"{stats['expert_slots']} slots; {stats['expert_misses']} of {stats['expert_lookups']} "
        "experts missed",
    )
    if stats["kv_prefetched"] or stats["expert_prefetched"]:
        table.add_row(
            "prefetch",
            f"{stats['kv_prefetched_used']} of {stats['kv_prefetched']} pages and "
            f"{stats['expert_prefetched_used']} of {stats['expert_prefetched']} experts were used",
        )
    table.add_row(
        "ledger",
        ", ".join(f"{name} {format_bytes(size)}" for name, size in stats["ledger"].items()),
    )
    return table


def _rate(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
