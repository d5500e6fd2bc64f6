"""Figures of the claims: from committed rows alone, the same twice, nothing without rows; the numbers in them."""

from __future__ import annotations

import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from common import documents, rows, style
from common.decomposition import Schedule
from common.model import Constants
from common.rows import Run
from experiments import claims, verdicts
from figures import averages, claims_table, code_tables, compiled, grid, regressions, rounding, source, swizzle, waves
from figures.__main__ import HERE, RESULTS, main, render
from figures.source import MissingRun

READS = {
    "regressions": ("ablations", "grids_do_bench", "thread_sampled", "compiled", "estimates", "interpreted"),
    "ablations": ("ablations",),
    "averages": ("grids", "grids_do_bench", "thread_sampled"),
    "compiled": ("compiled",),
    "grid": ("grid_sweep",),
    "waves": ("waves",),
    "swizzle": ("order", "counters", "estimates"),
    "rounding": ("facts",),
}
DOCUMENTS = ("compiled", "counters", "estimates", "facts", "interpreted")


def newest(name: str) -> str:
    """The id of the newest committed run or document."""
    found = documents.newest(RESULTS, name) if name in DOCUMENTS else rows.newest_run(RESULTS, name)
    assert found is not None, name
    return found.id


@pytest.mark.parametrize("name", READS)
def test_the_same_rows_give_the_committed_bytes_and_name_their_source(name: str, tmp_path: Path) -> None:
    svg, _ = render(name, RESULTS, tmp_path)
    assert b"<dc:date>" not in svg.read_bytes()
    committed = (HERE / f"{name}.svg").read_text()
    assert [x for x in READS[name] if newest(x) not in committed] == [], f"{name}.svg is stale: make figures"
    again, _ = render(name, RESULTS, tmp_path / "again")
    assert svg.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("name", READS)
def test_without_rows_nothing_is_drawn(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingRun):
        render(name, tmp_path, tmp_path)
    assert not list(tmp_path.glob("*.svg"))


def test_one_claim_without_rows_leaves_the_overview_undrawn(tmp_path: Path) -> None:
    for path in RESULTS.glob("*"):
        if not path.name.startswith("ablations-"):
            shutil.copy(path, tmp_path)
    with pytest.raises(MissingRun, match="C01"):
        render("regressions", tmp_path, tmp_path)


def test_every_claim_has_a_figure_that_exists() -> None:
    for claim in claims.load().claims:
        assert claim.figure in READS
        assert (HERE / f"{claim.figure}.svg").exists(), claim.id


def test_the_steps_of_the_average_are_of_the_same_problems() -> None:
    runs = [source.require(RESULTS, name) for name in ("grids_do_bench", "grids")]
    called, device = averages.common_problems(runs)
    assert {r.problem for r in called.rows} == {r.problem for r in device.rows}
    steps = averages.chain(called, device)
    assert len({step.interval.count for step in steps}) == 1
    assert steps[0].interval.value > steps[1].interval.value  # a choice on the reported samples flatters
    assert averages.luck(called).value > 1


def test_what_selection_alone_changes_is_drawn_with_its_own_paired_interval() -> None:
    runs = [source.require(RESULTS, name) for name in ("grids_do_bench", "grids")]
    called, device = averages.common_problems(runs)
    steps = averages.chain(called, device)
    selection, mean, host, _ = averages.changes(steps)
    apart = steps[0].interval.high / steps[1].interval.low
    for change, (x, y) in ((selection, (0, 1)), (mean, (1, 2)), (host, (3, 2))):
        assert change.interval.value == pytest.approx(steps[x].interval.value / steps[y].interval.value)
    assert 1 < selection.interval.low < selection.interval.high < apart
    with pytest.raises(MissingRun, match="other problems"):
        averages.changes([steps[0], replace(steps[1], speedups=steps[1].speedups[1:]), *steps[2:]])
    assert averages.do_bench_told(called).startswith("do_bench: 2 ms of warm-up, 8 ms measured; Triton's defaults")


def test_the_averages_say_of_how_many_samples_and_candidates_each_is_the_best() -> None:
    called = source.require(RESULTS, "grids_do_bench")
    few = Run(called.path, called.header | {"rounds": 5, "candidates": called.candidates[:3]}, called.rows)
    assert averages.halves(few) == (3, 2) and averages.counted(few, source.BASELINE) == 2
    drawn = averages.draw(RESULTS)
    texts = " ".join(" ".join(text.get_text().split()) for text in drawn.axes[0].get_yticklabels())
    grids = sum(c["variant"] == averages.VARIANT for c in called.candidates)
    assert f"best of up to {grids} grids" in texts and "chosen on 1 of each grid's samples" in texts
    notes = drawn.texts[-1].get_text()
    assert notes.count("grids_do_bench-") == 1 and "Also read: thread_sampled-" in notes
    plt.close(drawn)


def test_every_verdict_has_a_line_and_the_band_is_drawn() -> None:
    drawn = regressions.draw(RESULTS)
    axes = drawn.axes[0]
    lines = [o for answer in verdicts.committed(RESULTS)[0] for o in answer.deciding]
    assert len(axes.get_yticks()) == len(lines) > 16
    shown = [text.get_text() for text in axes.texts]
    assert sum(text in regressions.COLOURS for text in shown) == len(lines)
    assert {o.band for o in lines if regressions.has_interval(o)} <= set(shown)
    words = [text for text in axes.texts if text.get_color() == style.FAINT and "\n" in text.get_text()]
    drawn.canvas.draw()
    ratios = [text.get_window_extent() for text in axes.texts if text.get_text() in {o.shown for o in lines}]
    bands = [text.get_window_extent() for text in axes.texts if text.get_text() in {o.band for o in lines if o.band}]
    assert max(box.x1 for box in ratios) < min(box.x0 for box in bands)
    assert max(box.x1 for box in bands) < drawn.bbox.x1
    line_at_one = next(line for line in axes.lines if list(line.get_xdata()) == [1, 1])
    assert words and all(text.get_zorder() > line_at_one.get_zorder() for text in words)
    plt.close(drawn)


def test_defects_are_told_from_their_rows() -> None:
    told = claims_table.facts_told(source.require_document(RESULTS, "facts"))
    assert "`v03_incremental_pointers` 18 % of C wrong (3 tiles, refused by its guard)" in told
    assert "`v04_hoisted_segments` 0 % of C wrong" in told
    carry, clean = told.split("not finite: ")[1].split("; none in ")
    assert [name in carry for name in ("v00", "v01", "v03")] == [True] * 3 and "v04" in clean and "v02" in clean


def test_wrong_results_are_in_no_figure_of_speed(tmp_path: Path) -> None:
    run = source.require(RESULTS, "ablations_wrong")
    wrong = [row for row in run.rows if row.status == "incorrect"]
    assert wrong and all(row.samples for row in wrong)
    label = "v00_stores_for_atomics 64x64x64"
    assert run.medians(label) == {} == run.speedups(label)
    with pytest.raises(verdicts.Missing):
        verdicts.ratio(run, claims.Ratio(kind="ratio", experiment="x", slow=label, fast="v00_monolithic 64x64x64"))


def test_the_model_is_fitted_on_other_shapes_than_it_is_shown_on() -> None:
    run = source.require(RESULTS, "grid_sweep")
    every = grid.points(run)
    others = [point for point in every if point[0] not in grid.THREAD]
    assert grid.fitted(run, every) == grid.fitted(run, others)
    assert {shape for shape, _, _ in every} - {shape for shape, _, _ in others} == set(grid.THREAD)
    assert grid.resident_limit(every) > run.header["device"]["sms"]


def test_the_models_error_is_of_the_shapes_shown_within_its_range() -> None:
    run = source.require(RESULTS, "grid_sweep")
    sms, constants = run.header["device"]["sms"], Constants(5.0, 6.0, 0.25, 0.0)
    exact = [
        (problem, schedule, replace(row, samples=(constants.predict(schedule, sms),)))
        for problem, schedule, row in grid.points(run)
    ]
    assert grid.error(run, exact, constants)[:2] == pytest.approx((1, 1))

    def slower(problem: rows.Problem, schedule: Schedule) -> float:
        wrong = (problem in grid.THREAD) != (schedule.programs <= sms)
        return 9.0 if wrong else 0.5 if schedule.programs == sms else 1.0

    off = [(p, s, replace(row, samples=(row.median * slower(p, s),))) for p, s, row in exact]
    mean, most, count = grid.error(run, off, constants)
    assert most == pytest.approx(2) and 1 < mean < 1.5 and 0 < count < len(off)
    assert f"{grid.error(run, grid.points(run), grid.fitted(run, grid.points(run)))[1]:.2f}x at most" in "".join(
        text.get_text() for text in grid.draw(RESULTS).texts
    )


def test_a_drift_is_no_step_behind_a_wave() -> None:
    run = waves_run({"a": {2: 1.0, 4: 1.0, 5: 2.5, 6: 4.0, 8: 4.0, 9: 2.25}})
    tiles, speed = waves.series(run, "a")
    assert tiles.tolist() == [2, 4, 5, 6, 8, 9] and np.all(speed > 0)
    assert waves.steps(run, "a") == pytest.approx({4: -0.5, 8: 1.0})
    assert waves.drift(run, "a") == pytest.approx(0.25)


def test_a_kernel_is_found_by_its_block() -> None:
    records = [
        {"key": ["v08_while_loop", "first_wave", "sm_80", "3.9.0", block, None, None], "status": "ok", "n_spills": n}
        for n, block in ((0, None), (7, "128x256x64"))
    ]
    document = documents.Document(Path("x"), {}, records)
    assert compiled.record(document, ("v08_while_loop",), "sm_80", "3.9.0")["n_spills"] == 0
    assert compiled.record(document, ("v08_while_loop", "128x256x64"), "sm_80", "3.9.0")["n_spills"] == 7
    assert compiled.record(document, ("v08_while_loop",), "sm_86", "3.9.0") is None


def test_every_architecture_has_a_line_of_each_kernel() -> None:
    drawn = compiled.draw(RESULTS)
    for axes, kernels in zip(drawn.axes, (compiled.LOOP, compiled.LOOP, compiled.SPILLS), strict=True):
        for target in ("sm_80", "sm_86"):
            marker = compiled.TARGETS[target][1]
            of_target = [line for line in axes.lines if line.get_marker() == marker]
            assert len(of_target) == len(kernels), target
            assert all(len(line.get_xdata()) >= 3 for line in of_target)
    plt.close(drawn)


def test_no_kernel_hides_another_of_the_same_numbers() -> None:
    drawn = compiled.draw(RESULTS)
    drawn.canvas.draw()
    for axes in drawn.axes:
        lines = [line for line in axes.lines if len(line.get_xdata())]
        points = [axes.transData.transform(point) for line in lines for point in line.get_xydata()]
        apart = [np.hypot(*(x - y)) for i, x in enumerate(points) for y in points[:i]]
        assert len(points) > 10 and min(apart) > 4  # of 120 pixels an inch
    plt.close(drawn)


def test_labels_of_the_order_figure_were_measured() -> None:
    run = source.require(RESULTS, "order")
    for linear, swizzled, _ in swizzle.PAIRS.values():
        assert source.has(run, linear) and source.has(run, swizzled)
    document = source.require_document(RESULTS, "counters")
    labels = {record["label"] for record in document.records}
    assert set(swizzle.SHOWN.values()) <= labels


def test_a_legend_of_dots_is_not_among_the_dots() -> None:
    drawn = swizzle.draw(RESULTS)
    drawn.canvas.draw()
    left, _ = drawn.subfigs
    box = left.legends[0].get_window_extent()
    assert [text.get_text() for text in left.legends[0].get_texts()] == list(swizzle.PAIRS)
    assert not left.axes[0].get_legend() and not box.overlaps(left.axes[0].get_window_extent())
    plt.close(drawn)


def test_the_model_stands_in_where_there_are_no_counters(tmp_path: Path) -> None:
    for name in (source.require(RESULTS, "order").path, documents.newest(RESULTS, "estimates").path):
        shutil.copy(name, tmp_path)
    committed = source.require_document(RESULTS, "counters")
    measured = ("dram_read_bytes", "l2_hit_rate", "sm_percent")
    records = [{k: v for k, v in r.items() if k not in measured} for r in committed.records]
    head = committed.header | {"source": "none", "reason": "ncu was not found"}
    (tmp_path / "counters-20300101-000000.json").write_text(json.dumps({"header": head, "records": records}))
    drawn = swizzle.draw(tmp_path)
    assert "no counters; estimates-" in drawn.texts[-1].get_text()
    panels = [axes for axes in drawn.axes if "MB" in axes.get_xlabel()]
    assert panels and not any(axes.patches for axes in panels)
    assert any(line.get_marker() == swizzle.MARKS["RTX 3090"] for line in panels[0].lines)
    plt.close(drawn)


def test_words_of_the_order_figure_are_made_from_its_rows() -> None:
    run, counted = source.require(RESULTS, "order"), source.require_document(RESULTS, "counters")
    told = swizzle.answer(run, counted)
    rows = [r for r in counted.records if r["problem"] == [2048, 2048, 8192]]
    read = {r["label"]: r["dram_read_bytes"] / 1e6 for r in rows}
    words = f"{read['v04_hoisted_segments']:.0f} MB read by v04 against {read['tile_order']:.0f} MB by the tile matmul"
    assert f"At 2048x2048x8192 it costs it: {words}" in told
    found = swizzle.gains(run, *swizzle.PAIRS["tile matmul"][:2]).values()
    assert f"tile matmul faster at {sum(x.low > 1.02 for x in found)}, slower at" in told
    same = [r | {"dram_read_bytes": 1e6} for r in counted.records]
    assert "it does not cost it" in swizzle.answer(run, documents.Document(counted.path, counted.header, same))
    assert "even share" not in swizzle.answer(run, documents.Document(counted.path, {}, counted.records))


def waves_run(times: dict[str, dict[int, float]]) -> Run:
    header = {"run": "x", "device": {"sms": 4}, "candidates": [{"label": label} for label in times]}
    found = [
        rows.Row((128, 128 * tiles, 64), number, "ok", (time,))
        for number, table in enumerate(times.values())
        for tiles, time in table.items()
    ]
    return Run(Path("x"), header, found)


def test_words_of_the_waves_say_who_falls_and_who_rises_behind_one() -> None:
    level, fallen, risen = {4: 1.0, 5: 1.25, 8: 2.0}, {4: 1.0, 5: 2.5, 8: 2.0}, {4: 1.0, 5: 1.0, 8: 2.0}
    run = waves_run(
        {"data_parallel": fallen, "v04_hoisted_segments": level, "v05_cas_lock": level, "v06_two_state_lock": risen}
    )
    assert waves.steps(run, "data_parallel") == pytest.approx({4: -0.5})
    told = waves.answer(run)
    assert "Behind 4 tiles the tile matmul's throughput changes by −50 %" in told
    assert "By 5 % at most: v04, v05. Never falls by more but rises: v06 (+25 %). Falls by more: none" in told
    assert "at so many of 3 sizes: v04 1, v05 1, v06 1" in told
    committed = waves.answer(source.require(RESULTS, "waves"))
    rises = committed.split("but rises: ")[1].split(". Falls")[0]
    assert "Falls by more: v08 one-tile (−12 %)" in committed and "v08 (+29 %)" in rises and rises.count("+") == 5


def test_the_tile_matmuls_wave_is_what_its_code_leaves_room_for() -> None:
    run = source.require(RESULTS, "waves")
    held, tiles = waves.own_wave(run)
    assert tiles == held * run.header["device"]["sms"]
    row = code_tables.find(run.header["versions"]["triton"], "data_parallel", "full_tiles", "sm_90")
    assert held == int(row["programs_per_sm"]) > 1
    steps = waves.steps(run, "data_parallel")
    assert min(steps, key=steps.get) == tiles
    other = replace(run, header=run.header | {"device": run.header["device"] | {"capability": "9.9"}})
    assert waves.own_wave(other) is None


def committed_text(name: str) -> tuple[Path, str]:
    """A run's or a document's name and its text."""
    path = documents.newest(RESULTS, name) if name in DOCUMENTS else rows.newest_run(RESULTS, name)
    data = path.path.read_bytes()
    return path.path, (lzma.decompress(data) if path.path.suffix == ".xz" else data).decode()


@pytest.mark.parametrize(
    ("figure", "of", "old", "new", "word"),
    [
        ("rounding", "facts", '"rms": ', '"rmss": ', "'rms' is missing"),
        ("compiled", "compiled", '"hot_barrier": ', '"hot_barriers": ', "'hot_barrier' is missing"),
        ("swizzle", "counters", '"dram_read_bytes": ', '"dram": ', "'dram_read_bytes' is missing"),
        ("swizzle", "order", '"c":3,"s":"ok","us":[', '"c":3,"s":"ok","us":[77.0,', "pairs of rounds are needed"),
        ("waves", "waves", '"sms":', '"sm":', "'sms' is missing"),
        ("averages", "grids_do_bench", '"torch_matmul', '"other', "torch_matmul"),
    ],
)
def test_rows_that_do_not_fit_end_in_one_line(
    figure: str, of: str, old: str, new: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for path in RESULTS.glob("*"):
        shutil.copy(path, results)
    path, text = committed_text(of)
    (results / path.name).unlink()
    changed = text.replace(old, new)
    assert changed != text
    (results / path.name.removesuffix(".xz")).write_text(changed)
    with pytest.raises(SystemExit) as ended:
        main([figure], tmp_path, results)
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(said) == 1 and word in said[0], said


def test_the_defects_are_drawn() -> None:
    drawn = rounding.draw(RESULTS)
    axes = drawn.axes[2]
    names = [text.get_text() for text in axes.get_yticklabels()]
    widths = {name: bar.get_width() for name, bar in zip(names, axes.patches, strict=True)}
    assert widths["v03_incremental_pointers, 3 tiles a program"] > 10 > widths["v00_monolithic"] > 0
    assert widths["v04_hoisted_segments"] == widths["v04_hoisted_segments, 3 tiles a program"] == 0
    plt.close(drawn)


def test_curves_that_hide_one_another_are_named_and_have_their_own_colours() -> None:
    document = source.require_document(RESULTS, "facts")
    drawn = rounding.draw(RESULTS)
    lines = [line for line in drawn.axes[0].lines if line.get_label() != "cuBLAS"]
    assert len({line.get_color() for line in lines}) == len(lines) > 9
    told = rounding.told(document)
    assert "v00, v01, v03, v04, v05, v06, v07, v08, split_k (at most" in told and "; v02, v09 (at most 0.0 %" in told
    assert "plain Triton alone: not here are v10, " in told and told.strip() in drawn.texts[-1].get_text()
    plt.close(drawn)
    apart = [r | {"rms": r["rms"] * (2 if r["variant"] == "split_k" else 1)} for r in document.records if "rms" in r]
    groups = rounding.one_line(documents.Document(document.path, document.header, apart))
    assert not any("split_k" in names for names, _ in groups) and all(most <= rounding.NEAR for _, most in groups)


def test_facts_of_the_thread_hold_on_the_gpu() -> None:
    document = source.require_document(RESULTS, "facts")
    third = {r["variant"]: r for r in document.select(fact="third_tile")}
    assert third["v03_incremental_pointers"]["refused"] and third["v03_incremental_pointers"]["wrong"] > 0
    assert third["v04_hoisted_segments"]["wrong"] == 0
    spread = {r["variant"][:3] for r in document.select(fact="nan_spread") if r["spread"]}
    assert spread == {"v00", "v01", "v03"}
    assert len(rounding.LOOKS) >= len({r["variant"] for r in document.select(fact="rounding")}) - 1
