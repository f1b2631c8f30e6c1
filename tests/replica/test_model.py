"""The rules as a model, with all planned extensions of the protocol: elastic sets, all copies,
async."""

import pytest

from replica.model.__main__ import SHAPES, run
from replica.model.broken import BROKEN
from replica.model.violation import Violation
from support.seeds import seeds

# A broken rule, and a seed that finds it.
FOUND_BY = {
    "no_fence": 4,
    "volatile_promise": 122,
    "elect_first": 5,
    "elect_longest": 333,
    "small_election": 5,
    "no_epoch_entry": 12,
    "truncate_to_committed": 39,
    "no_truncation": 1,
    "config_old_only": 27,
    "config_give_up": 98,
    "add_lagging": 5,
    "unsound_counts": 473,
    "ack_unsynced": 36,
    "resumed_leader": 107,
    "read_written": 1,
    "identity_by_name": 56,
    "early_transfer": 5,
    "unchecked_read": 1,
    "no_sequences": 1,
    "epochs_deleted": 1,
    "late_transfer": 603,
    "operator_quorum": 9,
    "dropped_by_routes": 123,
    "ledger_survives": 8,
    "restored_unfrozen": 24,
    "single_resumes": 107,
}
# No counter-example in 1,500 seeds. Acknowledgements of a former session are still true in its
# epoch; a replica that has not matched has acknowledged only its own records; the replica to which
# it reported before it promised leaves it, as soon as it sees the report.
UNSEEN = {"ack_before_match", "old_session_acks", "report_unpromised"}


@pytest.mark.parametrize("seed", seeds(2 * len(SHAPES)))
def test_what_was_acknowledged_is_there_and_it_works_again(seed: int) -> None:
    assert run(seed)[1] is not False


def test_each_broken_rule_is_found_or_named() -> None:
    assert FOUND_BY.keys() | UNSEEN == BROKEN.keys()


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_rule_that_is_broken_is_found(bug: str) -> None:
    with pytest.raises(Violation):
        run(FOUND_BY[bug], bug)


@pytest.mark.soak
def test_five_thousand_runs() -> None:
    for seed in range(1, 5_001):
        assert run(seed)[1] is not False, seed
