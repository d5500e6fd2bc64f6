"""What a main loop's iteration should take: counts by hand, problems of one tile a program, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common import documents
from common.launcher import check_config, plan
from common.rows import read_run
from experiments import main_loop, overheads
from experiments.main_loop import LOOPS, Loop
from figures import loops_table, rings_table


def loop(variant: str, block: tuple[int, int], warps: int) -> Loop:
    (found,) = [
        x for x in LOOPS if (x.variant, x.changes["block"][:2], x.changes["num_warps"]) == (variant, block, warps)
    ]
    return found


@pytest.mark.parametrize(
    ("variant", "block", "warps", "tensor", "kibibytes"),
    [
        # Read by each wgmma: 8 KiB for 64 rows, 16 KiB for 128 columns; written: all rows and columns once.
        ("v10", (64, 128), 4, 256, 8 + 16 + 24),
        ("v10", (128, 128), 8, 512, 2 * (8 + 16) + 32),
        ("v10", (128, 256), 8, 1024, 2 * (8 + 32) + 48),
        ("v17", (64, 192), 4, 384, 2 * 8 + 24 + 32),
        ("v21", (64, 192), 4, 384, 8 + 24 + 32),
        ("v17", (160, 64), 4, 320, 2 * 8 + 20 + 28),
        ("v21", (192, 128), 8, 768, 2 * 8 + 2 * 24 + 40),
    ],
)
def test_clocks_are_those_counted_by_hand(
    variant: str, block: tuple[int, int], warps: int, tensor: int, kibibytes: int
) -> None:
    found = loop(variant, block, warps)
    assert found.tensor_clocks() == tensor and found.shared_clocks() == kibibytes * 1024 / 128


@pytest.mark.parametrize("number", range(len(LOOPS)))
@pytest.mark.parametrize("programs", [1, 132])
def test_each_tile_is_one_programs_and_only_k_is_longer(number: int, programs: int) -> None:
    variant, config = LOOPS[number].resolved
    check_config(variant, config)
    short, long = main_loop.problems(LOOPS[number], programs)
    assert (short.m, short.n) == (long.m, long.n) and long.k - short.k == 64 * config.block[2]
    for problem in (short, long):
        schedule = plan(variant.card, problem.m, problem.n, problem.k, config, 132)
        assert schedule.tiles == programs and overheads.one_a_program(schedule, 1)


def test_the_table_tells_clocks_and_which_part_is_larger(tmp_path: Path) -> None:
    assert loops_table.render(tmp_path).count("| not measured yet | not measured yet |") == len(LOOPS)
    record = {"variant": "v21_register_rows", "config": "64x192x64 w4 s5", "widths": [128, 64], "in_registers": True}
    record |= {"tensor_clocks": 384.0, "shared_clocks": 512.0}
    head = {
        "date": "2030-01-01T00:00:00+00:00",
        "device": {"name": "NVIDIA H200"},
        "versions": {"torch": "2.11", "triton": "3.9.0"},
    }
    found = [record | {"programs": p, "us": [us] * 3, "mhz": mhz} for p, us, mhz in ((132, 0.3, None), (1, 0.25, 2000))]
    documents.write(tmp_path, main_loop.KIND, head, found)
    told = loops_table.render(tmp_path).splitlines()[2]
    assert "| 384 | **512** | 500 (0.250 µs) | 0.300 µs |" in told and "128 + 64 columns, rows in registers" in told


def test_the_table_of_rings_compares_what_differs_in_stages_alone(tmp_path: Path) -> None:
    assert rings_table.render(tmp_path).startswith("not measured yet")
    header = {
        "run": "stages_training-20300101-000000",
        "experiment": "stages_training",
        "dtype": "float16",
        "rounds": 5,
    }
    header |= {"device": {"name": "NVIDIA H200", "sms": 132}, "versions": {"torch": "2.11", "triton": "3.9.0"}}
    configs = {6: (1, 4.0), 5: (1, 5.0), 7: (2, 2.0)}
    header["candidates"] = [
        {
            "label": f"v10 s{stages}",
            "variant": "v10_warp_specialised",
            "config": {"block": [64, 64, 64], "num_stages": stages, "split": split},
        }
        for stages, (split, _) in configs.items()
    ]
    lines: list[dict] = [header]
    shapes = [(64 * (1 + number), 64, 64) for number in range(20)] + [
        (64, 72, 64 * (1 + number)) for number in range(20)
    ]
    for shape in shapes:
        for index, (_, us) in enumerate(configs.values()):
            wrong = shape == shapes[0] and index == 0
            lines.append({"p": shape, "c": index, "s": "incorrect" if wrong else "ok", "us": [us] * 5, "e": 1e-4})
    lines.append({"finished": {"wall_s": 1.0}})
    path = tmp_path / "stages_training-20300101-000000.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(rings_table.pairs(read_run(path))) == [(1, 0)]
    (told,) = [line for line in rings_table.render(tmp_path).splitlines() if line.startswith("| `v10`")]
    assert (
        told.startswith("| `v10` | 64x64x64 | 5 → 6 | 1.250")
        and told.count("1.250") == 3 * 3
        and "too few shapes" in told
    )


@pytest.mark.gpu
def test_on_a_gpu_an_iteration_takes_no_less_than_the_tensor_cores(tmp_path: Path) -> None:
    for record in documents.read(main_loop.measure(tmp_path, lambda _: None)).records:
        assert min(record["us"]) * 2100 > 0.9 * record["tensor_clocks"]
