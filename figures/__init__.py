"""The pictures: one small module a figure. They read committed results alone and never measure.

Each module has `draw(results) -> Figure`, which raises `MissingRun` where an experiment has no finished run.
"""

NAMES = (
    "schedule",
    "schedule_real",
    "speedup",
    "intensity",
    "roofline",
    "headline",
    "timeline",
    "timeline_split",
    "regressions",
    "ablations",
    "averages",
    "compiled",
    "grid",
    "waves",
    "swizzle",
    "rounding",
    "landscape",
    "chosen",
    "win_map",
    "regret",
    "resources",
    "hot_loop",
    "drift",
    "lineage",
)
