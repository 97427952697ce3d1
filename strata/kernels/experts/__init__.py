"""Routing and the grouped expert product (contract and reference in `ref`)."""

from strata.kernels.experts.ref import expert_product, grouped_product, route

__all__ = ["expert_product", "grouped_product", "route"]
