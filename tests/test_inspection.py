"""Reading machine code: kinds, loops, resources, barriers before locks; on small texts and on real kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import variants
from common import compiled, machine_code
from common.architectures import ARCHITECTURES, architecture, parse_architectures
from common.card import read_card
from common.errors import UnsupportedProblem
from common.inspection import Inspection, lock_barriers, ptxas_resources
from common.machine_code import detail, hot_loops, kind, loops, parse_amdgcn, parse_sass
from common.normalise import normalise

SASS = """
	.section	.nv.info,"",@"SHT_CUDA_INFO"
	.section	.text.other,"ax",@progbits
        /*0000*/                   NOP ;
	.section	.text.toy,"ax",@progbits
toy:
.text.toy:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDGSTS.E.BYPASS.128 [R2], [R4.64] ;
.L_x_1:
        /*0020*/                   HMMA.16816.F32 R8, R8, R10, R8 ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/              @!P1 BRA `(.L_x_0) ;
.L_x_2:
        /*0060*/                   ATOMG.E.CAS.STRONG.GPU PT, R0, [R2], R4, R5 ;
        /*0070*/               @P2 BRA `(.L_x_2) ;
        /*0080*/                   EXIT ;
.L_x_3:
        /*0090*/                   BRA `(.L_x_3);
        /*00a0*/                   NOP;
"""


def test_loops_of_a_kernel_nest_and_the_hot_one_holds_the_matrix_instructions() -> None:
    code = parse_sass(SASS, "toy")
    assert code.size == 11 * 16 and len(code.instructions) == 9
    assert [(loop.depth, len(loop.members), loop.innermost_matrix) for loop in loops(code)] == [
        (1, 5, False),
        (2, 2, True),
        (1, 2, False),
    ]
    (hot,) = hot_loops(code)
    assert machine_code.part(code, hot).mix() == {"matrix": 1, "branch": 1}
    assert code.mix()["async_copy"] == code.mix()["atomic"] == code.mix()["barrier"] == 1


def test_code_of_another_kernel_is_no_code() -> None:
    with pytest.raises(ValueError, match="no code of absent"):
        parse_sass(SASS, "absent")
    with pytest.raises(ValueError, match="no code"):
        parse_amdgcn("; nothing\n")


def test_a_loop_entered_in_its_middle_is_found() -> None:
    text = SASS.replace("MOV R1, c[0x0][0x28] ;", "BRA `(.L_x_1) ;")
    assert [loop.depth for loop in loops(parse_sass(text, "toy"))] == [1, 2, 1]


@pytest.mark.parametrize(
    ("opcode", "name", "more"),
    [
        ("HGMMA.64x128x16.F32", "matrix", "matrix HGMMA 64x128x16 F32"),
        ("UTCHMMA", "matrix", "matrix UTCHMMA"),
        ("LDGSTS.E.BYPASS.LTC128B.128", "async_copy", "async_copy 128"),
        ("LDG.E.U16", "global_load", "global_load 16"),
        ("STG.E", "global_store", "global_store 32"),
        ("LDSM.16.MT88.4", "shared_load", "shared_load 128"),
        ("STL.64", "local_store", "local_store 64"),
        ("LDL.LU", "local_load", "local_load 32"),
        ("RED.E.ADD.F16x2.RN.STRONG.GPU", "reduction", "reduction ADD F16x2 GPU"),
        ("ATOMG.E.EXCH.STRONG.GPU", "atomic", "atomic EXCH GPU"),
        ("MEMBAR.ALL.GPU", "fence", "fence MEMBAR ALL GPU"),
        ("CCTL.IVALL", "cache_invalidation", "cache_invalidation CCTL IVALL"),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier", None),
        ("LDGDEPBAR", "wait", None),
        ("IMAD.WIDE", "integer", None),
        ("FMUL.FTZ", "float", None),
        ("F2FP.F16.F32.PACK_AB", "float", None),
        ("v_mfma_f32_32x32x8_f16", "matrix", "matrix v_mfma_f32_32x32x8_f16"),
        ("global_load_dwordx4", "global_load", "global_load 128"),
        ("buffer_wbl2", "fence", "fence buffer_wbl2"),
        ("s_barrier", "barrier", None),
    ],
)
def test_kinds_and_details(opcode: str, name: str, more: str | None) -> None:
    assert kind(opcode) == name
    assert detail(opcode) == more


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'toy' for 'sm_86'
ptxas info    : Function properties for toy
    112 bytes stack frame, 120 bytes spill stores, 124 bytes spill loads
ptxas info    : Used 254 registers, used 1 barriers, 96 bytes smem, 440 bytes cmem[0]
"""


def test_resources_are_read_from_the_words_of_ptxas() -> None:
    found = ptxas_resources(LOG, "toy")
    assert found == {"registers": 254, "stack": 112, "spill_stores": 120, "spill_loads": 124, "shared": 96}
    with pytest.raises(ValueError, match="nothing of other"):
        ptxas_resources(LOG, "other")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["st.global.v4.b32 [%rd1], {};", "bar.sync 0;", "atom.global.acq_rel.gpu.exch.b32 %r1, [%rd2], %r3;"], [True]),
        (["bar.sync 0;", "@%p1 st.global.v4.b32 [%rd1], {};", "atom.global.gpu.acq_rel.exch.b32 %r1;"], [False]),
        (["bar.sync 0;", "st.global.v4.b32 [%rd1], {};", "@%p1 st.global.b32 [%rd2], {%r1};"], [False]),
        (["st.global.v4.b32 [%rd1], {};", "// bar.sync 0;", "atom.global.exch.b32 %r1;"], [False]),
        (["st.global.v4.b32 [%rd1], {};", "atom.global.gpu.acq_rel.cas.b32 %r1;"], []),
    ],
)
def test_a_barrier_counts_only_between_the_data_and_the_lock(lines: list[str], expected: list[bool]) -> None:
    assert lock_barriers("\n".join(lines)) == expected


def test_an_occupancy_that_the_vendor_states() -> None:
    # 128 registers, 4 warps: 65,536 / (128 * 128) = 4 on any of them; 96 KiB of shared memory leave 1 of 100 KiB.
    assert [ARCHITECTURES[name].resident_programs(128, 0, 4) for name in ("sm_80", "sm_86", "sm_90")] == [4, 4, 4]
    assert architecture("sm_86").resident_programs(128, 96 * 1024, 4) == 1
    assert architecture("sm_86").resident_programs(128, 100 * 1024, 4) == 0
    assert architecture("gfx942").resident_programs(169, 32768, 4) == 2
    assert architecture("gfx942").resident_programs(512, 0, 4) == 1


def test_unknown_architectures_get_the_nearest() -> None:
    with pytest.raises(UnsupportedProblem, match="sm_90"):
        parse_architectures("sm_80,sm_91")
    assert [a.name for a in parse_architectures("all")] == list(ARCHITECTURES)
    assert [a.name for a in parse_architectures("sm_80, sm_80")] == ["sm_80"]


@pytest.mark.parametrize(
    ("level", "one", "two"),
    [
        (
            "ttir",
            "  %5 = arith.addi %arg3, %c1 : i32 loc(#loc7)\n#loc7 = loc(unknown)",
            "  %x = arith.addi %y, %z : i32",
        ),
        ("llir", "  %7 = add i32 %5, 3, !dbg !12\n!12 = !{}", "  %8 = add i32 %2, 3"),
        ("ptx", "\t.loc 1 5 3\n\tadd.s32 %r9, %r8, %r8; // x.py:5:3\n", "$L__tmp1:\n\tadd.s32 %r1, %r4, %r4;"),
        (
            "sass",
            "        /*0010*/                   IADD3 R4, R7, R7, RZ ;",
            "        /*0fe0*/    IADD3 R0, R1, R1, RZ ;",
        ),
    ],
)
def test_texts_that_differ_in_names_and_places_alone_become_equal(level: str, one: str, two: str) -> None:
    assert [line.text for line in normalise(one, level)] == [line.text for line in normalise(two, level)]
    assert normalise(one, level)


def test_normalising_keeps_which_operand_is_which() -> None:
    one, two = (normalise(f"        /*0010*/  IADD3 R4, {operands}, RZ ;", "sass") for operands in ("R7, R8", "R7, R7"))
    assert one[0].text != two[0].text
    assert one[0].shape == two[0].shape


@pytest.mark.parametrize("name", [*variants.all_names(), *variants.ablation_names()])
def test_a_card_read_from_the_source_is_the_card(name: str) -> None:
    assert read_card(variants.source_path(name).read_text()) == variants.get(name).card


def test_a_source_without_a_card_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0"):
        read_card("x = 1\n")
    with pytest.raises(ValueError, match="literals"):
        read_card("CARD = Card(idea=secret)\n")


def job(name: str, arch: str, version: str | None = None, **changes: object) -> compiled.Job:
    return compiled.jobs_of(name, variants.source_path(name), [architecture(arch)], changes, version)[0]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiled, "CACHE", tmp_path / "kernels")
    return tmp_path / "kernels"


def test_a_tile_matmul_is_read_on_every_architecture() -> None:
    records = compiled.inspect([job("data_parallel", arch) for arch in ARCHITECTURES])
    for record in records:
        assert record.status == "ok", record.error
        assert record.registers > 32 and record.code_bytes > 0 and record.programs_per_sm >= 1
        assert record.hot_loops == 1 and record.hot_mix["matrix"] > 0
        assert record.spill_store_bytes == record.stack_bytes == 0
        assert (
            not record.mix.get("atomic", 0) or record.architecture == "sm_100"
        )  # tensor memory is allocated by atomics
    by_name = {record.architecture: record for record in records}
    assert "matrix HMMA 16816 F32" in by_name["sm_80"].details
    assert any(found.startswith("matrix HGMMA") for found in by_name["sm_90"].details)
    assert any("mfma" in found for found in by_name["gfx942"].details)
    assert by_name["sm_80"].hot_mix["async_copy"] == 8


def test_the_cache_answers_without_compiling_and_a_damaged_entry_is_made_again(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = job("data_parallel", "sm_80", block=(64, 64, 32))
    (first,) = compiled.inspect([wanted])
    started = Counter()
    monkeypatch.setattr(compiled, "_Workers", lambda *_: pytest.fail("compiled again"))
    assert compiled.inspect([wanted]) == [first]
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "CACHE", own_cache)
    wanted.record_file.write_text('{"variant": "half a rec')
    assert compiled.cached(wanted) is None
    wanted.texts_file.unlink()
    assert "HMMA" in compiled.texts(wanted)["sass"]
    assert compiled.inspect([wanted]) == [first]
    assert not started


def test_another_source_config_or_triton_is_another_entry(tmp_path: Path) -> None:
    one = job("data_parallel", "sm_80")
    copy = tmp_path / "data_parallel.py"
    copy.write_text(one.path.read_text() + "\n# changed\n")
    others = [
        dataclasses.replace(one, path=copy),
        dataclasses.replace(one, config=one.config.replace(num_stages=4)),
        dataclasses.replace(one, triton="2.1.0"),
        dataclasses.replace(one, architecture="sm_86"),
    ]
    assert len({one.key, *(other.key for other in others)}) == 5


def test_a_kernel_that_does_not_compile_is_a_record_with_the_reason(own_cache: Path, tmp_path: Path) -> None:
    good = job("data_parallel", "sm_80")
    broken = tmp_path / "data_parallel.py"
    broken.write_text(good.path.read_text().replace("tl.dot(", "tl.no_such_thing("))
    (record,) = compiled.inspect([dataclasses.replace(good, path=broken)])
    assert record.status == "failed" and "no_such_thing" in record.error
    assert record.registers == 0


def test_a_compiler_finds_the_triton_that_pythonpath_gives_and_no_other_passes_for_it(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = job("data_parallel", "sm_80")
    facts = tmp_path / "triton-3.1.4.dist-info" / "METADATA"
    facts.parent.mkdir()
    facts.write_text("Metadata-Version: 2.1\nName: triton\nVersion: 3.1.4\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (record,) = compiled.inspect([wanted])
    assert record.status == "failed"
    assert f"Triton {wanted.triton} was asked for and this process finds 3.1.4" in record.error


def test_an_interrupted_command_keeps_no_failure_and_leaves_no_files(tmp_path: Path) -> None:
    code = (
        "import pathlib, variants\nfrom common import compiled\nfrom common.architectures import ARCHITECTURES\n"
        f"compiled.CACHE = pathlib.Path({str(tmp_path)!r}, 'kernels')\n"
        "jobs = compiled.jobs_of('v05', variants.source_path('v05'), ARCHITECTURES.values())\n"
        # A suite that runs in the background of a shell has its children ignore Ctrl-C.
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print('ready', flush=True)\ncompiled.inspect(jobs)\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TMPDIR": str(scratch)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 60
    while not list(scratch.glob("stream-k-zoo-*/*/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, "it was done before it was interrupted"
    compilers = with_in_environment(str(scratch)) - {process.pid}
    assert compilers and all(os.getsid(pid) != process.pid for pid in compilers), "Ctrl-C would reach an assembler"
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=20) != 0
    assert not with_in_environment(str(scratch)), "a compiler goes on"
    assert list(scratch.iterdir()) == []
    kept = [json.loads(path.read_text()) for path in tmp_path.glob("kernels/*.json")]
    assert all(record["status"] == "ok" for record in kept)


def with_in_environment(word: str) -> set[int]:
    """Living processes whose environment holds a word."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found |= {int(path.parent.name)} if word.encode() in path.read_bytes() else set()
    return found


def test_an_old_triton_never_finds_what_it_made_for_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    from common import legacy_triton
    from common.launcher import KernelCall

    places: list[str] = []

    def compiler(*_: object, **__: object) -> SimpleNamespace:
        places.append(os.environ["TRITON_CACHE_DIR"])
        assert not os.listdir(places[-1])
        Path(places[-1], "made").touch()
        texts = dict.fromkeys(("ttir", "ttgir", "llir", "ptx"), "")
        return SimpleNamespace(asm=texts, metadata={"shared": 0, "name": "toy"})

    monkeypatch.setattr(legacy_triton, "_specialised", lambda call: ({}, {}, None))
    monkeypatch.setattr(legacy_triton, "_without_launcher", lambda: compiler)
    monkeypatch.setattr(legacy_triton, "_assemble", lambda *_: (b"", ""))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    call = KernelCall(lambda: None, 1, (), {"num_warps": 4, "num_stages": 3})
    for arch in ("sm_86", "sm_80"):
        legacy_triton.compile_call(call, architecture(arch), "ptxas")
    assert len(set(places)) == 2


def test_a_record_survives_being_written() -> None:
    record = Inspection("v", "k", "sm_80", "3.9.0", {"block": [1, 2, 3], "num_warps": 4, "num_stages": 3})
    record.loops = [(1, 20, True)]
    assert Inspection.from_dict(record.as_dict()) == record
    assert record.launch_label == "1x2x3 w4 s3"


@pytest.mark.gpu
@pytest.mark.parametrize("name", [n for n in variants.all_names() if variants.get(n).card.kernels])
def test_what_is_compiled_offline_is_what_a_launch_compiles(name: str, device: str) -> None:
    from common.launcher import compiled_kernel, prepare
    from common.problem import Problem, make_inputs

    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}"
    if arch not in ARCHITECTURES:
        pytest.skip(f"{arch} is not among the architectures")
    v = variants.get(name)
    a, b = make_inputs(Problem(*compiled.SIZE), device=device)
    # The grid is not compiled in; with this one every program touches two tiles at most, and whole tiles remain.
    config = v.card.default.replace(programs=512) if v.card.contract.most_tiles else v.card.default
    launched = {call.name: compiled_kernel(call) for call in prepare(v, a, b, config=config).record()}
    jobs = compiled.jobs_of(v.name, variants.source_path(name), [architecture(arch)])
    for wanted, record in zip(jobs, compiled.inspect(jobs), strict=True):
        kernel = launched[record.kernel]
        texts = compiled.texts(wanted)
        levels = ("ttgir", "ptx") if v.card.language == "gluon" else ("ttir", "ttgir", "ptx")
        for level in levels:
            offline, launch = (stripped(text[level]) for text in (texts, kernel.asm))
            difference = list(difflib.unified_diff(offline, launch, "offline", "launched", lineterm="", n=0))
            assert not difference, "\n".join([level, *difference[:40]])
        assert record.registers == kernel.n_regs
        assert record.n_spills == kernel.n_spills
        assert record.dynamic_shared_bytes == kernel.metadata.shared


def stripped(text: str) -> list[str]:
    """The lines without places in files, which differ with the folder."""
    text = re.sub(r"\.file.*|\.loc.*|\.b8.*|//.*|#loc.*", "", text)
    lines = re.sub(r"\s*loc\([^\n]*", "", text).splitlines()
    return [line.rstrip() for line in lines if line.strip()]
