"""What the kernels beyond the thread are to reach, and what committed runs on shapes not used for fitting say.

Two goals are asked of documents: `host_time-*.json` (microseconds on the host of a call of `variants.matmul` like one
before: a record a problem, `us` its samples) and `fix_up-*.json` (microseconds that putting a tile together takes: a
record a number of `peers`, `us` its samples).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common import documents, rows
from common.documents import Document
from common.rows import Run
from experiments.overheads import FIXERS, peers_of
from figures import corpus, regret
from figures import goal_answers as answers
from figures.goal_answers import Found

Standing = Literal["reached", "missed", "not decided", ""]


@dataclass(frozen=True)
class Goal:
    """`on`: the experiment or document that decides. `ask`: of its newest one, None where it does not hold the answer.
    `least`, `most`: the bound, None where the number is only reported."""

    what: str
    on: str
    ask: Callable[[Run], Found | None] | Callable[[Document], Found | None]
    least: float | None = None
    most: float | None = None
    share: bool = False

    def standing(self, found: Found) -> Standing:
        """An interval across the bound decides nothing."""
        low, high = found.value.low, found.value.high
        if self.least is not None:
            return "reached" if low >= self.least else "missed" if high < self.least else "not decided"
        if self.most is not None:
            return "reached" if high <= self.most else "missed" if low > self.most else "not decided"
        return ""

    @property
    def bound(self) -> str:
        limit, sign = (self.least, "≥") if self.least is not None else (self.most, "≤")
        return "" if limit is None else f"{sign} {limit:.0%}" if self.share else f"{sign} {limit:.2f}"


def _of_corpus(name: str) -> tuple[Goal, ...]:
    where = f"`variants.matmul` over `torch.matmul`, {corpus.CORPORA[name]}"
    return (
        Goal(f"{where}: geometric mean", name, answers.whole, least=1.05),
        Goal(f"{where}: share of shapes won", name, answers.won, least=0.65, share=True),
        Goal(f"{where}: worst shape", name, answers.worst, least=0.8),
        Goal(f"{where}: more than {corpus.COMPUTE_BOUND} flop/byte", name, answers.compute_bound, least=1.03),
        Goal(f"{where}: 132 to 527 tiles, K >= 2048", name, answers.few_waves, least=1.05),
    )


GOALS = (
    *_of_corpus("corpus_128"),
    *_of_corpus("corpus_8"),
    Goal(
        "`variants.matmul` over `torch.matmul`, the thread's population: geometric mean",
        "thread_modern",
        answers.whole,
        least=1.0,
    ),
    Goal("time of the choice over the best candidate's", regret.EXPERIMENT, answers.regrets),
    Goal("v09 over v08 with relaxed atomics, one configuration each", "corpus_strata", answers.over_v08, least=1.3),
    Goal(
        "v09 over v08 with relaxed atomics, v09's configuration chosen by the model",
        "portable",
        answers.choice_over_v08,
        least=1.3,
    ),
    Goal("v09's error over cuBLAS's, which adds in fp32", "accumulation", answers.error, most=1.2),
    *(
        Goal(f"fix-up of {fixer}, up to {peers} peers, µs", "fix_up", answers.fix_up(fixer, peers), most=most)
        for fixer in FIXERS
        for peers, most in ((4, 2.0), (max(peers_of(fixer)), 4.0))
    ),
    Goal("host time of a call like one before, µs", "host_time", answers.host_time, most=20.0),
)
DOCUMENTS = ("fix_up", "host_time")


Newest = dict[str, Run | Document | None]


def newest(results: Path) -> Newest:
    """The newest run or document of everything that a goal asks, None where there is none."""
    return {
        name: documents.newest(results, name) if name in DOCUMENTS else rows.newest_run(results, name)
        for name in dict.fromkeys(goal.on for goal in GOALS)
    }


def asked(there: Newest) -> list[tuple[Goal, Found | None, str]]:
    """Every goal with what was found, None where nothing was, and the id of what it was found in."""
    told = []
    for goal in GOALS:
        on = there[goal.on]
        found = goal.ask(on) if on is not None else None
        told.append((goal, found, on.id if on is not None and found else ""))
    return told
