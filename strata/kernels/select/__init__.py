"""Page scoring and selection (contract and reference in `ref`)."""

from strata.kernels.select.ref import count_selected, select_pages, update_bounds

__all__ = ["count_selected", "select_pages", "update_bounds"]
