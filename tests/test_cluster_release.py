"""Cluster barriers that release shared memory alone: which of them, in which kernels, and nobody else's."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace

import pytest
import triton

import variants
from common.architectures import architecture
from common.cluster_release import ARRIVAL, KEY, READ, RESTRICTED, release_shared_memory_alone, restricted, rewriting
from common.compiled import jobs_of, texts
from common.errors import UnsupportedTriton

CLUSTER = SimpleNamespace(num_ctas=2)


def code(*lines: str) -> str:
    return "\n".join(f"\t{line}" for line in lines)


def test_an_arrival_after_reads_of_the_others_memory_stays_but_for_the_last() -> None:
    ptx = code(ARRIVAL, f"{READ}.b32 a", ARRIVAL, ARRIVAL, f"{READ}.b32 a", "st.global c", ARRIVAL, "ret;", ARRIVAL)
    found = restricted(ptx)
    assert found.replace(RESTRICTED, ARRIVAL) == ptx
    kept = [line.strip() for line in found.split("\n") if ARRIVAL in line or "relaxed" in line]
    relaxed = RESTRICTED.rpartition("\t")[2]
    assert kept == [relaxed, ARRIVAL, relaxed, relaxed, relaxed]


@pytest.mark.parametrize(
    "ptx",
    [
        code("ret;"),
        code(ARRIVAL),
        code("ret;", ARRIVAL),
        code("st.shared::cluster.b32 [%r1], %r2;", ARRIVAL, "ret;"),
        code("@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];", ARRIVAL, "ret;"),
        code("cp.async.bulk.tensor.2d.shared::cluster.global.multicast::cluster [%r1];", ARRIVAL, "ret;"),
    ],
)
def test_code_that_is_not_as_triton_writes_it_is_refused(ptx: str) -> None:
    with pytest.raises(UnsupportedTriton, match="writes it otherwise"):
        restricted(ptx)


def compile_with_the_hook(options: object) -> str:
    """What Triton would get from the stage of PTX, with the hook as it is now."""
    stages = {"ptx": lambda source, metadata: code(ARRIVAL, "ret;")}
    hook = triton.knobs.runtime.add_stages_inspection_hook
    if hook is not None:
        hook(None, stages, options, None, 90)
    return stages["ptx"](None, None)


def test_only_marked_kernels_on_this_thread_are_rewritten_and_have_a_key_of_their_own() -> None:
    marked = release_shared_memory_alone(SimpleNamespace())
    with rewriting(SimpleNamespace()):
        assert triton.knobs.runtime.add_stages_inspection_hook is None
    with rewriting(marked):
        assert "relaxed" in compile_with_the_hook(CLUSTER)
        assert "relaxed" not in compile_with_the_hook(SimpleNamespace(num_ctas=1))
        assert triton.knobs.runtime.add_stages_inspection_hook() == (KEY, KEY)
        elsewhere: list[object] = []
        thread = threading.Thread(
            target=lambda: elsewhere.extend(
                [compile_with_the_hook(CLUSTER), triton.knobs.runtime.add_stages_inspection_hook()]
            )
        )
        thread.start()
        thread.join()
        assert elsewhere == [code(ARRIVAL, "ret;"), ("", "")]
    assert triton.knobs.runtime.add_stages_inspection_hook is None


def test_threads_that_are_within_at_once_leave_in_any_order() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with rewriting(release_shared_memory_alone(SimpleNamespace())):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    with rewriting(release_shared_memory_alone(SimpleNamespace())):
        leave.set()
        thread.join()
        assert "relaxed" in compile_with_the_hook(CLUSTER)
    # The first to enter was the first to leave: nothing of either may be left for later kernels.
    assert triton.knobs.runtime.add_stages_inspection_hook is None


def test_a_hook_that_came_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", None)

    def theirs(*compilation: object) -> tuple[str, str]:
        return "theirs", "digest"

    with rewriting(release_shared_memory_alone(SimpleNamespace())):
        triton.knobs.runtime.add_stages_inspection_hook = theirs
    assert triton.knobs.runtime.add_stages_inspection_hook is theirs


def test_a_hook_that_was_there_before_is_asked_too_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def theirs(*compilation: object) -> tuple[str, str]:
        asked.append(len(compilation))
        return "theirs", "digest"

    monkeypatch.setattr(triton.knobs.runtime, "add_stages_inspection_hook", theirs)
    with pytest.raises(ZeroDivisionError), rewriting(release_shared_memory_alone(SimpleNamespace())):
        assert triton.knobs.runtime.add_stages_inspection_hook() == ("theirs" + KEY, "digest" + KEY)
        compile_with_the_hook(CLUSTER)
        raise ZeroDivisionError
    assert asked == [0, 5] and triton.knobs.runtime.add_stages_inspection_hook is theirs


def machine_code(name: str, block: tuple[int, int, int]) -> str:
    """Of a variant in clusters of two for sm_90."""
    changes = {"block": block, "num_stages": 8, "split": 2}
    (job,) = jobs_of(name, variants.source_path(name), [architecture("sm_90")], changes)
    return texts(job)["sass"]


@pytest.mark.parametrize(("block", "rounds"), [((64, 64, 64), 1), ((64, 128, 64), 2)])
def test_in_machine_code_a_fence_for_the_gpu_is_left_only_between_rounds_of_the_exchange(
    block: tuple[int, int, int], rounds: int
) -> None:
    fences = {name: machine_code(name, block).count("MEMBAR.ALL.GPU") for name in ("v11", "v20")}
    # Each round has an arrival before reads and one after; the other warps' arrival is written once.
    assert fences == {"v11": 2 * rounds + 1, "v20": rounds - 1}


@pytest.mark.parametrize("block", [(64, 64, 64), (64, 128, 64)])
def test_in_machine_code_values_of_the_others_are_stored_before_the_last_arrival(block: tuple[int, int, int]) -> None:
    lines = machine_code("v20", block).split("\n")
    last_read = max(at for at, line in enumerate(lines) if re.search(r"\bLD\.E\b", line))
    stores = [at for at, line in enumerate(lines) if re.search(r"\bSTG\.E\b", line)]
    arrival = next(at for at, line in enumerate(lines) if at > last_read and "UCGABAR_ARV" in line)
    assert stores and last_read < stores[0] and stores[-1] < arrival
    # A store is left out by its predicate alone: what it would have stored has been computed all the same.
    assert not [line for line in lines[last_read:arrival] if re.search(r"\b(BRA|BRX|BSSY|EXIT)\b|^\.L", line)]
