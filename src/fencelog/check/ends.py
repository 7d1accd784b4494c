"""Checks the final offsets of partitions: their order, and hanging transactions."""

import itertools

from fencelog.check.facts import Facts
from fencelog.check.tables import End
from fencelog.check.verdict import Findings

ORDER = ("log_start", "last_stable", "high_watermark", "log_end")


def check_ends(facts: Facts, found: Findings) -> None:
    """Check the four offsets at every ``end``, and for a hanging transaction at the last."""
    for key, ends in facts.history.ends.items():
        name = facts.history.keys.all[key]
        for end in ends:
            told = [(each, getattr(end, each)) for each in ORDER if getattr(end, each) is not None]
            for (lower, low), (upper, high) in itertools.pairwise(told):
                if low > high and found.more("end-order"):
                    found.keep(
                        "end-order",
                        f"{name} at {end.time:.3f}: {lower} {low} is above {upper} {high}",
                        key=key,
                        offsets=(low, high),
                    )
        if _hangs(ends[-1]) and found.more("hanging-lso"):
            stable, high = ends[-1].last_stable, ends[-1].high_watermark
            assert stable is not None
            assert high is not None
            found.keep(
                "hanging-lso",
                f"{name} at {ends[-1].time:.3f}: last stable offset {stable}, "
                f"high watermark {high}",
                key=key,
                offsets=(stable, high),
            )


def _hangs(end: End) -> bool:
    return (
        end.last_stable is not None
        and end.high_watermark is not None
        and end.last_stable < end.high_watermark
    )
