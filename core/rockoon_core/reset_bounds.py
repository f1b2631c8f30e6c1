"""Bounds on the resets that the offset service keeps. The oldest reset is removed first; the newest
one is always kept."""

# Plans, and the sum of their offsets.
PLANS_MAX = 1_000
PLANNED_OFFSETS_MAX = 500_000
# Applied resets, which can be undone, and the sum of their offsets.
RESETS_MAX = 1_000
RESET_OFFSETS_MAX = 100_000
