"""Signatures as bytes, and the memory of used ones."""

import random
import time

import pytest

from rockoon_core.clock import steady_clock
from rockoon_core.signature import (
    CLUSTER_KEY_ID,
    AccessKey,
    Credentials,
    Signature,
    client_key_of,
    new_secret,
    verifier_of,
    xor,
)
from rockoon_runtime.access.authentication import COUNTS_REMEMBERED, NoRoom, UsedSignatures
from support.seeds import seeds

METHOD = "/rockoon.v1.Broker/Pull"
KEY = AccessKey("shop", "the secret of shop, for tests")


def parsed(text: str) -> Signature:
    signature = Signature.parse(text)
    assert signature is not None
    return signature


def test_a_signature_holds_for_what_was_signed_and_nothing_else() -> None:
    text = Credentials(KEY, lambda: 1_000).sign(METHOD, "ab" * 8, 7, "host:1", b"body")
    verifier = verifier_of(KEY.secret)
    assert parsed(text).holds_for(verifier, METHOD, b"body")
    assert not parsed(text).holds_for(verifier, METHOD, b"bodY")
    assert not parsed(text).holds_for(verifier, METHOD, None)
    assert not parsed(text).holds_for(verifier, METHOD + "2", b"body")
    assert not parsed(text).holds_for(verifier_of("another secret"), METHOD, b"body")
    fields = text.split(";")
    for place, other in enumerate(["1", "shop2", "1001", "cd" * 8, "8", "host:2", "0" * 64]):
        if place:
            changed = ";".join([*fields[:place], other, *fields[place + 1 :]])
            assert not parsed(changed).holds_for(verifier, METHOD, b"body"), place


def test_who_has_read_the_verifier_alone_cannot_sign() -> None:
    """The form in etcd is neither a secret, nor the key that is derived from a secret."""
    verifier = verifier_of(KEY.secret)
    good = parsed(Credentials(KEY, lambda: 1_000).sign(METHOD, "ab" * 8, 7, "", b""))
    mask = xor(good.proof, client_key_of(KEY.secret))
    for claimed in (verifier, bytes(32)):
        forged = Signature("shop", 1_000, "ab" * 8, 7, "", xor(claimed, mask))
        assert not forged.holds_for(verifier, METHOD, b"")


def test_no_text_of_a_key_shows_its_secret() -> None:
    for shown in (KEY, Credentials(KEY), [KEY]):
        assert KEY.secret not in f"{shown} {shown!r}"
    assert KEY.secret not in Credentials(KEY).sign(METHOD, "ab" * 8, 7, "", b"")


@pytest.mark.parametrize(
    "key", [AccessKey("", "x" * 24), AccessKey("a;b", "x" * 24), AccessKey("shop", "x" * 23)]
)
def test_a_key_that_cannot_be_one_is_refused_before_any_call(key: AccessKey) -> None:
    with pytest.raises(ValueError, match="access key"):
        Credentials(key)


def test_secrets_are_never_the_same_and_long_enough() -> None:
    assert len({new_secret() for _ in range(100)}) == 100
    assert not AccessKey("shop", new_secret()).fault


def test_the_clock_of_signatures_is_the_wall_clock_at_its_start() -> None:
    assert abs(steady_clock()() - time.time_ns() // 1_000_000) < 30_000


def test_each_signature_is_admitted_once_in_any_order_within_the_window() -> None:
    used = UsedSignatures(300_000)
    counters = [5, 3, 4, 1, 2, 100, 99, 6]
    assert all(used.admit("k", "i", counter, 0, 0) for counter in counters)
    assert not any(used.admit("k", "i", counter, 0, 0) for counter in counters)
    assert used.admit("k", "another instance", 5, 0, 0)
    assert used.admit("another key", "i", 5, 0, 0)


def test_what_is_below_the_window_is_refused_used_or_not() -> None:
    used = UsedSignatures(300_000)
    assert used.admit("k", "i", COUNTS_REMEMBERED + 10, 0, 0)
    assert used.admit("k", "i", 11, 0, 0)
    assert not used.admit("k", "i", 10, 0, 0)


def test_a_huge_count_takes_no_memory() -> None:
    used = UsedSignatures(300_000)
    assert used.admit("k", "i", 1, 0, 0)
    assert used.admit("k", "i", 10**15, 0, 0)
    assert not used.admit("k", "i", 1, 0, 0)
    assert used.admit("k", "i", 10**15 - 1, 0, 0)


def test_a_channel_is_forgotten_when_all_that_it_signed_is_stale() -> None:
    used = UsedSignatures(10_000)
    used.admit("k", "old", 1, 1_000, 1_000)
    used.admit("k", "young", 1, 9_000, 9_000)
    used.admit("k", "sweeps", 1, 11_000, 11_000)
    assert len(used) == 3
    used.admit("k", "sweeps", 2, 12_300, 12_300)
    assert len(used) == 2
    # Its clock was ahead: by ours it is old, but its signature has not expired yet.
    used.admit("k", "ahead", 1, 20_000, 12_300)
    used.admit("k", "sweeps", 3, 29_000, 29_000)
    assert not used.admit("k", "ahead", 1, 20_000, 29_000)


def test_without_room_new_channels_are_refused_and_none_is_forgotten_for_them() -> None:
    used = UsedSignatures(10_000, channels_max=3, key_channels_max=2)
    assert used.admit("greedy", "1", 1, 0, 0)
    assert used.admit("greedy", "2", 1, 0, 0)
    with pytest.raises(NoRoom):
        used.admit("greedy", "3", 1, 0, 0)
    assert used.admit("other", "1", 1, 0, 0)
    with pytest.raises(NoRoom):
        used.admit("third", "1", 1, 0, 0)
    assert not used.admit("greedy", "1", 1, 0, 0)
    assert used.admit("greedy", "1", 2, 0, 0)
    # Later there is space again, also for the caller that had used too much.
    assert used.admit("greedy", "3", 1, 20_000, 20_000)
    assert len(used) == 1


@pytest.mark.parametrize("seed", seeds(3))
def test_whatever_the_order_and_the_clock_no_signature_passes_twice(seed: int) -> None:
    chance = random.Random(seed)
    window_ms = 5_000
    used = UsedSignatures(window_ms, channels_max=8, key_channels_max=8)
    passed: set[tuple[str, int, int]] = set()
    made: list[tuple[str, int, int]] = []
    now_ms, counts = 100_000, dict.fromkeys("abcdefghijkl", 0)
    for _ in range(5_000):
        now_ms += chance.randrange(0, 40)
        if made and chance.random() < 0.5:
            signature = chance.choice(made[-2_000:])
        else:
            instance = chance.choice("abcdefghijkl")
            counts[instance] += chance.choice([1, 1, 1, 1, 700])
            signed_ms = now_ms + chance.randrange(-window_ms, window_ms)
            signature = (instance, counts[instance], signed_ms)
            made.append(signature)
        instance, counter, signed_ms = signature
        if abs(now_ms - signed_ms) > window_ms:
            continue
        try:
            admitted = used.admit("k", instance, counter, signed_ms, now_ms)
        except NoRoom:
            continue
        assert not (admitted and signature in passed), signature
        if admitted:
            passed.add(signature)
        assert len(used) <= 8
    assert len(passed) > 500


def test_keys_that_take_all_room_leave_some_for_the_services_and_their_operator() -> None:
    used = UsedSignatures(300_000, channels_max=4, key_channels_max=2)
    for key_id in ("a", "b"):
        for instance in ("1", "2"):
            assert used.admit(key_id, instance, 1, 0, 0)
    with pytest.raises(NoRoom):
        used.admit("c", "1", 1, 0, 0)
    for instance in ("1", "2"):
        assert used.admit(CLUSTER_KEY_ID, instance, 1, 0, 0)
    # Bounded as for every caller.
    with pytest.raises(NoRoom):
        used.admit(CLUSTER_KEY_ID, "3", 1, 0, 0)
