"""What a table names is what lies there."""

from __future__ import annotations

import torch

from strata.engine import Engine
from strata.experts.cache import PooledExperts


def check_content(engine: Engine) -> None:
    """Assert that residency is whole, and that slots hold what the host has of page and expert."""
    engine.check_integrity()
    kv, g = engine.kv, engine.kv.geometry
    host, pool = (
        store.view(g.layers, -1, g.planes, g.page_cells, g.head_dim)
        for store in (kv.transfer.host, kv.transfer.pool)
    )
    for layer, table in enumerate(kv.residency.table):
        for page in (table >= 0).nonzero()[:, 0].tolist():
            cells = max(0, kv.committed - page * g.page_cells)
            mine, other = pool[layer, int(table[page])], host[layer, page]
            assert torch.equal(mine[:, :cells], other[:, :cells]), (layer, page)
    if isinstance(engine.experts, PooledExperts):
        table = engine.experts.residency.table[0]
        there = (table >= 0).nonzero()[:, 0]
        assert torch.equal(engine.experts.pool[table[there].long()], engine.experts.host[there])
