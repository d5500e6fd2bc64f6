"""Timelines: traced copies compute the same, record every planned segment, and their clocks meet on one axis."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib.colors
import pytest
import torch

import variants
from common import timeline
from common.card import Config
from common.decomposition import Schedule, always_two_tile
from common.errors import DamagedRun, UnsupportedProblem, WrongResult
from common.problem import Problem
from common.recording import record
from common.timeline import Timeline, aligned
from common.tracing import TracedVariant, traced, traced_source
from figures.__main__ import render
from figures.timeline import alike, measured_bars, modelled, modelled_bars, tile_colour

ROOT = Path(__file__).parent.parent
KERNELS = [n for n in (*variants.portable_names(), *variants.baselines()) if variants.get(n).card.kernels]
PROBLEM = Problem(96, 96, 96)


def small(name: str, **changes: object) -> Config:
    """Nine tiles of six iterations; with seven programs, tiles of one, two and three parts."""
    changes = {"block": (32, 32, 16), "num_warps": 4, "full_tiles_warps": 4, "programs": 7} | changes
    return variants.get(name).card.default.replace(**changes)


@pytest.mark.parametrize("name", [n for n in KERNELS if n != "v03_incremental_pointers"])
def test_every_planned_segment_is_recorded_once(name: str) -> None:
    made = record(variants.get(name), PROBLEM, small(name), rounds=3)
    assert made.facts["as_planned"]
    spans = made.spans
    assert len(spans) >= 9 and sum(s.stop - s.start for s in spans) == 9 * 6
    assert all(s.began < s.computed <= s.computed + s.waited < s.ended for s in spans)
    by_program = defaultdict(list)
    for span in spans:
        by_program[span.program].append(span)
    for mine in by_program.values():
        assert len({s.sm for s in mine}) == 1
        assert all(a.ended < b.began for a, b in itertools.pairwise(mine))


def test_a_program_of_two_tiles_is_traced_by_the_one_loop_with_changing_pointers() -> None:
    assert record(variants.get("v03"), PROBLEM, small("v03", programs=9), rounds=3).facts["as_planned"]


@pytest.mark.parametrize("name", ["v00", "v05", "v08"])
def test_the_source_stays_as_it_is_and_the_copy_only_adds(name: str) -> None:
    variant = variants.get(name)
    code = traced_source(variant.source, variant.name)
    assert "trace_" not in variant.source
    kept = "\n".join(line for line in code.splitlines() if "trace_" not in line)
    for text in ("tl.dot(", "tl.atomic_add(c_ptrs", "while tl.atomic_cas" if name != "v00" else "accumulator *= 0"):
        assert kept.count(text) == variant.source.count(text), text
    spins = variant.source.count("pass\n")
    assert code.count("trace_waited += ") == spins


def test_a_wrong_copy_is_no_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = variants.get("v04")
    broken = variant.source.replace("b_ptrs += BLOCK_K * stride_bk", "b_ptrs += 0")
    assert broken != variant.source

    def copy(_: object) -> TracedVariant:
        return traced(dataclasses.replace(variant, module=stand_in))

    stand_in = type("Module", (), {"CARD": variant.card, "launch": variant.launch, "__file__": None})
    monkeypatch.setattr("common.recording.traced", copy)
    monkeypatch.setattr("common.launcher.Variant.source", property(lambda self: broken))
    with pytest.raises(WrongResult, match="traced copy"):
        record(variant, PROBLEM, small("v04"), rounds=3)


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(UnsupportedProblem, match="torch_matmul cannot be traced"):
        record(variants.get("torch_matmul"), PROBLEM, Config())
    for nothing in (Problem(0, 256, 256), Problem(256, 0, 256), Problem(256, 256, 0)):
        with pytest.raises(UnsupportedProblem, match=f"{nothing}: nothing to trace"):
            record(variants.get("v05"), nothing, small("v05"), rounds=3)
    with pytest.raises(UnsupportedProblem, match="too many to trace"):
        record(variants.get("data_parallel"), Problem(16 * 2100, 16, 16), Config(block=(16, 16, 16), order="swizzled"))


COMPILED = """
import json, sys, variants
from common.compilation import compile_variant
from common.tracing import traced
found = {}
for name in sys.argv[1:]:
    variant = variants.get(name)
    for kind, v in (("plain", variant), ("traced", traced(variant))):
        for kernel in compile_variant(v, "sm_90"):
            ptx = kernel.asm["ptx"]
            found.setdefault(name, {}).setdefault(kernel.kernel, {})[kind] = {
                "clock64": ptx.count("%clock64"), "globaltimer": ptx.count("%globaltimer"), "smid": ptx.count("%smid"),
                "bytes": kernel.local_bytes, "registers": kernel.registers, "mma": ptx.count("wgmma.mma"),
            }
print(json.dumps(found))
"""


def test_copies_compile_for_a_gpu_and_read_its_clocks() -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", COMPILED, "v01", "v08", "v10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    # Records in the code: v01's tile end and its rest; v08's segment; v10's unit, in the warps that multiply.
    for name, kernel, reads in (("v01", "first_wave", 2), ("v08", "first_wave", 1), ("v10", "persistent_tiles", 1)):
        kinds = found[name][kernel]
        assert not any(kinds["plain"][word] for word in ("clock64", "globaltimer", "smid"))
        assert kinds["traced"]["smid"] == reads and kinds["traced"]["globaltimer"] == 2 * reads
        assert kinds["traced"]["mma"] == kinds["plain"]["mma"] > 0
        assert kinds["traced"]["bytes"] == kinds["plain"]["bytes"], "tracing makes it spill"


# The axis

RATE, STEP = 1.755, 32


def recorded(schedule: Schedule, sms: int, step: int = STEP) -> tuple[list[dict[str, int]], dict[int, tuple]]:
    """Records as a GPU of unsynchronised cycle counters and a coarse global timer would make them; the true times."""
    generator = random.Random(1)
    zero = {sm: generator.randrange(10**12) for sm in range(sms)}
    free, records, truth = [0.0] * sms, [], {}
    for program, segments in enumerate(schedule.by_program()):
        sm = min(range(sms), key=free.__getitem__)
        time = free[sm] + generator.uniform(500, 900)
        for segment in segments:
            computed = time + 300 * len(segment) * generator.uniform(0.95, 1.05)
            waited = generator.uniform(0, 3000) if segment.start else 0.0
            ended = computed + waited + 700
            truth[program, segment.tile] = (sm, time, computed, waited, ended)
            first = segment.tile * schedule.iters_per_tile
            cycles = {"began": time, "computed": computed, "ended": ended}
            timers = {"timed": time, "left": ended}
            records.append(
                {"kernel": 0, "program": program, "sm": sm, "tile": segment.tile, "waited": int(waited * RATE)}
                | {"first": first + segment.start, "last": first + segment.stop}
                | {name: int(t * RATE) + zero[sm] for name, t in cycles.items()}
                | {name: int((10**15 + t) // step * step) for name, t in timers.items()}
            )
            time = ended + 20
        free[sm] = time
    return records, truth


def made_up(variant: str, schedule: Schedule, sms: int = 8, **facts: object) -> Timeline:
    records, _ = recorded(schedule, sms)
    spans, how = aligned(records, schedule.iters_per_tile)
    known = {
        "trace": f"trace-{variant}-1536x1792x6016-20300101-000000",
        "variant": variant,
        "problem": [1536, 1792, 6016],
        "config": {"block": [128, 128, 32], "num_warps": 4},
        "iterations_per_tile": schedule.iters_per_tile,
        "device": {"name": "NVIDIA H200", "sms": sms},
        "versions": {"triton": "3.9.0"},
        "overhead": 0.02,
    }
    return Timeline(known | how | facts, spans)


@pytest.mark.parametrize("step", [1, 32, 1024])
def test_cycles_and_the_global_timer_meet_within_a_step(step: int) -> None:
    schedule = always_two_tile(5, 5, 40, 8)
    records, truth = recorded(schedule, 8, step)
    spans, how = aligned(records, schedule.iters_per_tile)
    assert how["cycles_per_ns"] == pytest.approx(RATE, rel=0.02)
    assert how["timer_step_ns"] % step == 0
    start = min(began for _, began, *_ in truth.values())
    for span in spans:
        sm, began, computed, waited, ended = truth[span.program, span.tile]
        assert span.sm == sm and span.waited == pytest.approx(waited, rel=0.03, abs=2)
        for mine, true in ((span.began, began), (span.computed, computed), (span.ended, ended)):
            assert mine == pytest.approx(true - start, abs=1.5 * step + 0.01 * true)


def test_nothing_recorded_is_said() -> None:
    with pytest.raises(ValueError, match="nothing was recorded"):
        aligned([], 4)


def test_programs_on_one_sm_at_a_time_have_lanes_of_their_own() -> None:
    base = made_up("v08_while_loop", always_two_tile(2, 2, 4, 2), sms=2).spans[0]
    times = {0: (0, 10), 1: (5, 20), 2: (12, 18), 3: (21, 30)}
    spans = tuple(
        dataclasses.replace(base, program=p, sm=0, began=a, computed=b, waited=0, ended=b)
        for p, (a, b) in times.items()
    )
    assert Timeline({}, spans).lanes() == {0: 0, 1: 1, 2: 0, 3: 0}


# The file and the picture


def test_the_file_is_a_chrome_trace_and_comes_back(tmp_path: Path) -> None:
    made = made_up("v05_cas_lock", always_two_tile(5, 5, 40, 8))
    path = made.write(tmp_path)
    again = made.write(tmp_path / "again")
    assert path.read_bytes() == again.read_bytes()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    shown = [event for event in events if event["ph"] == "X"]
    assert {"name", "ph", "ts", "dur", "pid", "tid"} <= shown[0].keys()
    assert sum(event["cat"] == "mac" for event in shown) == len(made.spans)
    assert sum(event["cat"] == "wait" for event in shown) == sum(span.waited > 0 for span in made.spans)
    tracks = defaultdict(list)
    for event in shown:
        tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for times in tracks.values():
        times.sort()
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in itertools.pairwise(times))
    back = timeline.read(path)
    assert back.summary() == pytest.approx(made.summary(), abs=0.002)
    assert [dataclasses.replace(s, began=0, computed=0, waited=0, ended=0) for s in back.spans] == [
        dataclasses.replace(s, began=0, computed=0, waited=0, ended=0) for s in made.spans
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b"not compressed", "Expecting value"),
        (gzip.compress(b"{}" * 99, mtime=0)[:-9], "ended before|incomplete"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff", "Error|invalid"),
        (b"{}", "it has no 'otherData'$"),
        (b"[]", "other JSON"),
        (gzip.compress(b'{"otherData": 1}', mtime=0), "other JSON"),
        (b'{"otherData": {"columns": [], "segments": []}}', "it has no trace, variant, problem"),
    ],
)
def test_a_file_that_is_no_timeline_is_named(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "trace-x.json.gz"
    path.write_bytes(content)
    with pytest.raises(DamagedRun, match=rf"trace-x\.json\.gz is no timeline .*({why})"):
        timeline.read(path)


def test_a_timeline_that_was_unpacked_is_one(tmp_path: Path) -> None:
    path = made_up("v05_cas_lock", always_two_tile(5, 5, 40, 8)).write(tmp_path)
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert timeline.read(plain) == timeline.read(path)
    alike([timeline.read(plain)] * 2)


def test_one_page_is_of_one_problem() -> None:
    runs = [made_up("v05_cas_lock", always_two_tile(5, 5, 40, 8), problem=sizes) for sizes in ([1, 2, 3], [4, 5, 6])]
    with pytest.raises(DamagedRun, match=r"different problems.*1x2x3.*4x5x6"):
        alike(runs)


def test_no_tile_has_the_colour_of_waits_or_one_near_it() -> None:
    """Every tile's colour is colder than a wait's: more blue or green in it than red."""
    shares = [matplotlib.colors.to_rgb(tile_colour(tile)) for tile in range(20)]
    assert all(red < max(green, blue) for red, green, blue in shares)
    assert all(tile_colour(tile) != tile_colour(tile + 1) for tile in range(20))


def test_the_newest_of_each_variant_is_drawn_and_no_interpreted_one(tmp_path: Path) -> None:
    schedule = always_two_tile(5, 5, 40, 8)
    for name, date, more in (
        ("v01_split_kernels", "20300101-000000", {}),
        ("v01_split_kernels", "20300102-000000", {}),
        ("v04_hoisted_segments", "20300101-000000", {"dry_run": True}),
    ):
        made_up(name, schedule, trace=f"trace-{name}-1536x1792x6016-{date}", **more).write(tmp_path)
    assert [t.id for t in timeline.newest(tmp_path, (1536, 1792, 6016))] == [
        "trace-v01_split_kernels-1536x1792x6016-20300102-000000"
    ]
    picture = render("timeline", tmp_path, tmp_path)[0].read_text()
    assert "20300102" in picture and "20300101" not in picture


def test_measured_and_modelled_bars_hold_the_same_work() -> None:
    schedule = always_two_tile(5, 5, 40, 8)
    made = made_up("v05_cas_lock", schedule)
    placed, unit = modelled(made)
    assert sum(len(p.segment) for p in placed) == 25 * 40
    assert unit == pytest.approx(300, rel=0.05)
    assert max(right for _, right, *_ in measured_bars(made)) == pytest.approx(made.length / 1000)
    for bars in (measured_bars(made), modelled_bars(placed, unit)):
        assert {round(bottom + height / 2) for _, _, bottom, height, _ in bars} == set(range(8))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_the_command_writes_a_file_and_says_where(tmp_path: Path) -> None:
    sizes = ("--m", "96", "--n", "96", "--k", "64", "--block", "32x32x32", "--programs", "5")
    done = command("variants", "trace", "v05", *sizes, "--interpret", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["as_planned"] and Path(report["file"]).exists()
    assert timeline.newest(tmp_path, (96, 96, 64)) == []
    drawn = command("figures.timeline", report["file"], "--out", str(tmp_path))
    assert drawn.returncode == 2 and "no times" in drawn.stderr and "ui.perfetto.dev" in drawn.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["v01", "v05", "v08"])
def test_a_gpu_shows_every_sm_and_costs_little(name: str) -> None:
    config = variants.get(name).card.default.replace(block=(128, 128, 32))
    made = record(variants.get(name), Problem(1536, 1792, 6016), config, rounds=9)
    assert made.facts["as_planned"]
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    assert made.summary()["sms_used"] == sms
    assert abs(made.facts["overhead"]) < 0.3
    assert 0.5 < made.length / 1000 / made.facts["traced_us"][made.facts["shown"]] <= 1.01
