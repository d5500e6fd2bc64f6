"""Counters, traffic and documents: the profiler's table is split into calls, and estimates count what they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from common import documents, traffic
from common.decomposition import always_two_tile, data_parallel
from common.errors import DamagedRun
from common.problem import Problem
from common.traffic import Cache
from experiments import counters, estimates, verdicts
from experiments.__main__ import HERE, RESULTS
from experiments.spec import load
from figures import lines_table

HEAD = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
SAID = "==PROF== Connected to process 7\n"


def line(number: int, kernel: str, metric: str, value: str) -> str:
    return f'"{number}","7","{kernel}","{metric}","unit","{value}"'


def profiled() -> str:
    """Two calls, the first of two kernels, with markers before them."""
    found = [SAID + HEAD]
    for number, kernel, scale in (
        (0, "empty_kernel", 99),
        (1, "first_wave_0d1d", 1),
        (2, "full_tiles", 2),
        (3, "empty_kernel", 99),
        (4, "nvjet_hsh", 4),
    ):
        found += [
            line(number, kernel, "dram__bytes_read.sum", f"{scale},000"),
            line(number, kernel, "gpu__time_duration.sum", f"{scale * 100}"),
            line(number, kernel, "lts__t_sectors_lookup_hit.sum", f"{scale * 30}"),
            line(number, kernel, "lts__t_sectors_lookup_miss.sum", f"{scale * 10}"),
            line(number, kernel, "sm__throughput.avg.pct_of_peak_sustained_elapsed", f"{scale * 10}"),
        ]
    return "\n".join(found) + "\n==PROF== Disconnected\n"


def test_a_profile_is_split_into_calls_and_added_up() -> None:
    calls = list(counters.split_calls(counters.parse(profiled())))
    assert [len(call) for call in calls] == [2, 1]
    first, second = (counters.aggregate(call) for call in calls)
    assert (first["dram_read_bytes"], first["ns"], first["kernels"]) == (3000, 300, 2)
    assert first["l2_hit_rate"] == 0.75
    assert first["sm_percent"] == pytest.approx((10 * 100 + 20 * 200) / 300, abs=0.01)
    assert (second["dram_read_bytes"], second["kernels"]) == (4000, 1)
    assert (first["names"], second["names"]) == (["first_wave_0d1d", "full_tiles"], ["nvjet_hsh"])


def test_other_experiments_counters_do_not_take_the_place_of_the_claims() -> None:
    kinds = {name: counters.kind_of(load(HERE / f"{name}.yaml")) for name in ("counters", "off_lines")}
    assert kinds["counters"] == "counters" and not kinds["off_lines"].startswith("counters-")
    assert not Path(f"{kinds['off_lines']}-1.json").match("counters-*.json")


@pytest.mark.parametrize("text", ["", "==ERROR== no permission\n", '"not","a","table"\n"1","2","3"\n'])
def test_no_table_is_no_rows(text: str) -> None:
    assert counters.parse(text) == []


def test_a_profile_without_a_profiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert counters.profile(HERE / "counters.yaml") == ([], "ncu was not found")


def test_every_call_is_profiled_once() -> None:
    experiment = load(HERE / "counters.yaml")
    calls = counters.calls(experiment)
    assert len(calls) == len({(str(problem), candidate.label) for problem, candidate in calls}) == 4 * 8
    assert not {c.variant for _, c in calls} & {"empty"}


def gpu(sms: int, size: int, parts: int = 1) -> estimates.Machine:
    return estimates.Machine("x", sms, Cache(size, parts))


def test_the_library_has_no_estimate_and_a_schedule_has_one() -> None:
    library, *others = (c for _, c in counters.calls(load(HERE / "counters.yaml"))[:8])
    problem = Problem(512, 512, 256)
    assert estimates.estimated(problem, library, gpu(4, 1 << 20)) is None
    found = estimates.estimated(problem, others[0], gpu(4, 1 << 30))
    assert found.missed == found.read == 2 * 2 * 512 * 256
    assert found.requested == 16 * 8 * 2 * 128 * 32 * 2


def test_an_endless_cache_misses_each_block_once_and_none_misses_all() -> None:
    schedule = data_parallel(4, 4, 8)
    for parts in (1, 2):
        once = traffic.estimate(schedule, (32, 32, 32), 2, 0, 16, Cache(1 << 30, parts))
        assert once.missed == 2 * 4 * 8 * 32 * 32 * 2
        assert once.requested == 16 * 8 * 2 * 32 * 32 * 2
        never = traffic.estimate(schedule, (32, 32, 32), 2, 0, 16, Cache(0, parts))
        assert never.missed == never.requested and never.hit_rate == 0


def test_skewed_k_ranges_reuse_less_than_programs_in_step() -> None:
    block, cache = (32, 32, 32), Cache(32 * 32 * 2 * 40)
    tiled = traffic.estimate(data_parallel(4, 4, 64), block, 2, 0, 16, cache)
    shared = traffic.estimate(always_two_tile(4, 4, 64, 13), block, 2, 0, 16, cache)
    assert tiled.requested == shared.requested
    assert shared.missed > 1.5 * tiled.missed
    assert tiled.c_missed == 0 < shared.c_missed


def test_what_all_sms_read_is_held_in_both_parts() -> None:
    schedule, block = data_parallel(4, 4, 64), (32, 32, 32)
    rows_of_blocks = 32 * 32 * 2 * 64
    whole, halved = (traffic.estimate(schedule, block, 2, 0, 4, Cache(6 * rows_of_blocks, parts)) for parts in (1, 2))
    assert halved.missed > whole.missed


def test_two_kernels_begin_with_empty_caches() -> None:
    schedule = always_two_tile(6, 4, 16, 7)
    assert schedule.sk_tiles and schedule.dp_tiles
    together, apart = (
        traffic.estimate(schedule, (32, 32, 32), 2, 0, 14, Cache(1 << 30), apart=apart) for apart in (False, True)
    )
    assert together.requested == apart.requested and apart.missed > together.missed


def test_the_model_is_as_far_off_as_is_said(tmp_path: Path) -> None:
    head = documents.header(source="ncu")
    head["device"] = {"name": "x"}
    calls = [{"label": label, "problem": [1, 2, 3]} for label in "ab"]
    counted = [call | {"dram_read_bytes": 100.0} for call in calls]
    guessed = [call | {"read_bytes": n, "device": "x"} for call, n in zip(calls, (150, 40), strict=True)]
    kinds = {"counters": counted, "estimates": guessed}
    read = {kind: documents.read(documents.write(tmp_path, kind, head, records)) for kind, records in kinds.items()}
    factor, count = verdicts.model_error(read["counters"], read["estimates"])
    assert (factor, count) == (pytest.approx(2.5), 2)
    assert verdicts.model_error(None, read["estimates"]) == (float("inf"), 0)


def test_the_committed_model_is_within_a_factor_of_two_of_every_committed_counter() -> None:
    counted, guessed = (documents.newest(RESULTS, kind) for kind in ("counters", "estimates"))
    factor, count = verdicts.model_error(counted, guessed)
    assert count == 28 and 1 < factor < 2


def test_documents_come_back_and_dry_runs_are_none(tmp_path: Path) -> None:
    head = documents.header(dry_run=False)
    path = documents.write(tmp_path, "facts", head, [{"fact": "a", "value": 1}, {"fact": "b"}])
    found = documents.newest(tmp_path, "facts")
    assert found is not None and found.path == path
    assert found.select(fact="a") == [{"fact": "a", "value": 1}]
    documents.write(tmp_path, "facts", head | {"date": "2099-01-01T00:00:00+00:00", "dry_run": True}, [])
    assert documents.newest(tmp_path, "facts").path == path
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("text", ["[1]", '{"header": {},\n"records": [', '{"header": [], "records": []}', "\xff\xfe"])
def test_a_document_that_cannot_be_read_is_named_and_no_older_one_takes_its_place(text: str, tmp_path: Path) -> None:
    documents.write(tmp_path, "facts", documents.header(), [])
    (tmp_path / "facts-29990101-000000.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedRun, match=r"facts-29990101-000000\.json:"):
        documents.newest(tmp_path, "facts")


def test_traffic_off_lines_is_told_for_the_fastest_and_for_the_least(tmp_path: Path) -> None:
    assert "not measured" in lines_table.render(tmp_path)
    kernels = {"v10 a": (9e6, 20.0), "torch_matmul": (5e6, 25.0), "v16 b": (6e6, 30.0)}
    found = [
        {"problem": [8, 16, 24], "label": label, "names": [label], "l2_hit_sectors": sectors, "l2_miss_sectors": 1e6}
        | {"ns": 1e3 * us}
        for label, (sectors, us) in kernels.items()
    ]
    head = documents.header() | {"device": {"name": "NVIDIA H200"}}
    documents.write(tmp_path, lines_table.DOCUMENT, head, found)
    cells = lines_table.render(tmp_path).splitlines()[2].split(" | ")
    assert cells[0] == "| 8x16x24" and cells[2] == "6.0 M, 25.0 µs"
    assert cells[3:] == ["v10 a", "10.0 M, 20.0 µs", "v16 b", "7.0 M, 30.0 µs |"]
