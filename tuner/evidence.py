"""What of a study's trials is evidence: the runs of its plan, each held against all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.errors import StoreError
from strata.tuner.arms import DECODE
from strata.tuner.passages import text_of
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord
from strata.tuner.sweep import count_pairs

if TYPE_CHECKING:
    import pandas as pd

    from strata.models.samples import Samples


def evidence_of(store: TrialStore, study: StudyRecord) -> pd.DataFrame:
    """Return the decoding trials that the plan of a study names, wrong output marked as such.

    `text` is the identity of a passage's text. Raises StoreError for a trial that belongs to no
    pair of the plan: it would widen the sample that was agreed on before anything was measured.
    """
    from strata.models.outputs import hold_outputs

    held = hold_outputs(store.frame(study.study))
    texts = {name: text_of(name) for name in held["passage"].unique()}
    return held.assign(text=held["passage"].map(texts))


def samples_of_study(store: TrialStore, study: StudyRecord) -> Samples:
    """Return what the plan of a study asked for, and how many of its decoding pairs are there."""
    from strata.models.samples import Samples

    passages = study.read_plan().passages
    done, total = count_pairs(study, store, purpose=DECODE)
    return Samples(
        search=len(passages.search),
        fresh=len(passages.fresh),
        done_pairs=done,
        total_pairs=total,
    )


def refuse_partial(store: TrialStore, study: StudyRecord) -> None:
    """Raise StoreError where pairs of the plan are still to be measured."""
    if so_far := samples_of_study(store, study).so_far:
        raise StoreError(
            f"study {study.study} ({study.name}) is {so_far}; `strata tune PLAN --resume` measures "
            "the rest; --partial judges what there is"
        )
