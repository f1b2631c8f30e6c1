"""Members of one log under a hostile scheduler: no acknowledged record is lost in any event."""

from pathlib import Path

import pytest

from replica.simulation.__main__ import run, run_with_stores
from replica.simulation.broken import NAMES
from replica.simulation.truth import Violation
from replica.simulation.world import CHANGING, SHAPES
from support.seeds import seeds

# Found: a first leader without a follower could never vote again (2048), a leader that was the only
# voter and was to be replaced refused appends for ever (44), a session whose process was gone.
KNOWN = (44, 1623, 2048)
# Found: a copy that continued alone in a shared epoch had a different log of that epoch.
KNOWN_ALONE = (144, 228)
# A broken rule, and a seed that finds it.
FOUND_BY = {
    "no_fence": 330,
    "elect_first": 16,
    "elect_longest": 58,
    "small_election": 20,
    "no_epoch_record": 1,
    "truncate_to_committed": 5,
    "no_truncation": 1,
    "config_old_only": 584,
    "config_new_only": 341,
    "config_given_up": 1024,
    "propose_lagging": 714,
    "ack_unsynced": 50,
    "commit_unsynced": 7,
    "resumed_leader": 69,
    "alone_for_ever": 69,
    "early_hand_over": 15,
    "volatile_promise": 2,
    "demotion_in_memory": 22,
    "no_sequences": 1,
    "operator_writes": 5,
    "hand_over_resumes": 645,
    "unchecked_read": 44,
    "identity_by_name": 243,
    "cut_all": 479,
    "restored_unfrozen": 56,
    "unsound_counts": 2510,
    "alone_unasked": 1,
    "alone_in_its_epoch": 39,
    "deletes_as_the_leader": 38,
    "joins_without_files": 279,
    "damaged_may_win": 40,
    "leading_repairs": 5,
    "old_disk_counts": 40,
}
# Not drawn by the seed.
SHAPE_OF = dict.fromkeys(("alone_unasked", "alone_in_its_epoch"), CHANGING)
# The same, for runs with stores.
FOUND_IN_STORES = {"own_topics": 6}
# Found by the model. Here a member does not append again before it knows a later version.
UNSEEN = {"hand_over_unversioned"}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", seeds(4, KNOWN))
def test_logs_are_equal_and_nothing_is_lost_taken_back_or_read_too_early(
    seed: int, shape: str
) -> None:
    run(seed, shape)


@pytest.mark.parametrize("nameserver", [False, True])
@pytest.mark.parametrize("seed", seeds(4, KNOWN_ALONE))
def test_it_holds_while_copies_come_and_go_as_operators_wish(seed: int, nameserver: bool) -> None:
    """Three become one, which continues as a broker of one copy, and becomes one of three again."""
    run(seed, CHANGING, nameserver=nameserver)


@pytest.mark.parametrize("seed", seeds(10, (1623,)))
def test_it_holds_with_what_nameservers_make_of_calls(seed: int) -> None:
    run(seed, nameserver=True)


@pytest.mark.parametrize("seed", seeds(6))
def test_whoever_leads_has_what_was_deleted_in_a_generation(seed: int) -> None:
    """Leaders make generations of compacted topics; others receive them late or never."""
    run(seed, generations=True)


@pytest.mark.parametrize("nameserver", [False, True])
@pytest.mark.parametrize("seed", seeds(4))
def test_it_holds_while_bits_flip_on_one_disk_after_the_other(seed: int, nameserver: bool) -> None:
    """The damaged copy leads only if no intact one has as many records; all are repaired in the
    end."""
    run(seed, flips=True, nameserver=nameserver)


@pytest.mark.parametrize("nameserver", [False, True])
@pytest.mark.parametrize("seed", seeds(6))
def test_a_disk_that_is_put_back_to_an_older_snapshot_loses_nothing(
    seed: int, nameserver: bool
) -> None:
    """No election waits for an operator either: regular ones find the recorded ends of leaders."""
    run(seed, nameserver=nameserver, old_disks=True)


@pytest.mark.parametrize("seed", seeds(3))
def test_it_holds_with_real_stores(seed: int, tmp_path: Path) -> None:
    """Queues equal a rebuild, if all of a log is committed."""
    run(seed, nameserver=True, root=tmp_path, steps=500)


@pytest.mark.parametrize("seed", seeds(3))
def test_it_holds_with_real_journals(seed: int, tmp_path: Path) -> None:
    """Ledgers equal a rebuild from the committed records."""
    run(seed, nameserver=True, root=tmp_path, journals=True, steps=500)


def test_each_broken_rule_is_found_or_named() -> None:
    assert FOUND_BY.keys() | FOUND_IN_STORES.keys() | UNSEEN == set(NAMES)


@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_rule_that_is_broken_is_found(bug: str) -> None:
    with pytest.raises((Violation, ValueError, AssertionError)):
        run(FOUND_BY[bug], SHAPE_OF.get(bug), bug)


@pytest.mark.parametrize("bug", FOUND_IN_STORES)
def test_a_rule_that_is_broken_is_found_in_stores(bug: str) -> None:
    with pytest.raises(Violation):
        run_with_stores(FOUND_IN_STORES[bug], bug=bug)


@pytest.mark.soak
def test_ten_thousand_runs() -> None:
    for seed in range(1, 10_001):
        run(seed)
        if seed % 10 == 0:
            run(seed, CHANGING, nameserver=seed % 20 == 0)
            run(seed, generations=True, nameserver=seed % 20 == 0)
            run(seed, flips=True, nameserver=seed % 20 == 0)
            run(seed, old_disks=True, nameserver=seed % 20 == 0)
