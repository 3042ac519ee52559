"""Tests of compilation: for every architecture, from the cache, through the gates on resources, and of what it
refuses."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.benchmarks.one_launch import case_of
from tilewright.codegen import lowering
from tilewright.codegen.backend import LaunchConfig, Resources, Source
from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile import nvrtc
from tilewright.codegen.cuda.compile.cache import CompileCache, key_of
from tilewright.codegen.cuda.compile.compiler import compiled, options
from tilewright.codegen.cuda.compile.nvrtc import Compiled
from tilewright.codegen.cuda.compile.resources import check_launches, check_log, parse_log
from tilewright.codegen.cuda.inspect.launcher import with_launcher
from tilewright.core.cache_folder import cache_folder
from tilewright.core.dtypes import float16, float32
from tilewright.core.errors import CompileError, ResourcesExceeded, UnsupportedTarget
from tilewright.core.streams import stream
from tilewright.core.target import Target
from tilewright.ir.buffer import Buffer, MemoryScope
from tilewright.ir.build import Writer
from tilewright.ir.expr import Load, Ramp, index
from tilewright.ir.stmt import HardwareAxis, Kernel, Launch, Store
from tilewright.schedule.sketches import SKETCHES
from tilewright.tests.codegen.cuda.launches import LAUNCHES

_GLOBAL = re.compile(r"(?<!\.)\b(LDG|LDGSTS|STG|RED|ATOM(?!S\b)\w*|LD|ST|UBLKCP|UTMALDG|UTMASTG)\b")
"""It matches instructions that may access global memory."""
SM90A, SM100A = Target("cuda", "sm_90a", (), 132, 16), Target("cuda", "sm_100a", (), 148, 16)
BACKEND = backend_for(SM90A)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def emitted(kernel: Kernel, target: Target = SM90A) -> Source:
    return BACKEND.emit(BACKEND.passes(kernel)[-1][1], target)


def many_registers(values: int, threads: int) -> Kernel:
    """Return a kernel whose threads hold ``values`` numbers at once."""
    result = Buffer("O", (values, threads), float32)
    w = Writer()
    with w.launch("hold", [("t", threads, HardwareAxis.THREAD)]) as (t,):
        x = w.allocate("x", (values,), float32, MemoryScope.REGISTER)
        with w.unrolled("i", values) as i:
            w.store(x, (i,), Load(result, (i, t)))
        w.barrier()
        with w.unrolled("j", values) as j:
            w.store(result, (j, t), Load(x, (j,)) + Load(x, (index(values - 1) - j,)))
    return Kernel("hold", (), (result,), (), w.finish())


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", ["softmax_bfloat16", "transpose_float16", "matrix_float16", "copied_float32"])
def test_kernels_compile_for_every_architecture(arch: str, name: str) -> None:
    target = Target("cuda", arch, (), 100, 16)
    binary = BACKEND.compile(emitted(LAUNCHES[name], target), target)
    assert binary.format == "cubin"
    (grid,) = binary.launches
    taken = binary.resources[grid.function]
    assert 8 <= taken.registers <= 255
    assert taken.spill_bytes == taken.stack_bytes == 0


@pytest.mark.parametrize("name", ["cluster_sum_2", "bulk_float16"])
def test_what_came_with_hopper_is_refused_before_it(name: str) -> None:
    with pytest.raises(CompileError, match="sm_90 and later have"):
        emitted(LAUNCHES[name], Target("cuda", "sm_89", (), 128, 16))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_launch_whose_blocks_meet_is_cooperative_and_fits_the_device(arch: str) -> None:
    kernel = LAUNCHES["grid_share"]
    target = Target("cuda", arch, (), 5, 16)
    binary = BACKEND.compile(emitted(kernel, target), target)
    assert [config.cooperative for config in binary.launches] == [True]
    assert not any(config.cooperative for config in emitted(LAUNCHES["two_launches"]).launches)
    assert "  run_cooperatively(tw_grid_share, dim3(5, 1, 1), 64, 0, " in with_launcher(emitted(kernel, target), arch)
    with pytest.raises(CompileError, match=r"grid_share has 5 blocks that meet; .* has room for 4 at once"):
        emitted(kernel, replace(target, threads=4))
    twice = replace(kernel, body=replace(kernel.launches[0], min_blocks=2))
    assert emitted(twice, replace(target, threads=4)).launches[0].cooperative


@pytest.mark.parametrize("arch", ["sm_70", "sm_999", "gfx942", "sm_90b", ""])
def test_an_architecture_that_the_compiler_does_not_know_is_named_with_those_it_does(arch: str) -> None:
    target = Target("cuda", arch, (), 1, 16)
    with pytest.raises(UnsupportedTarget, match=r"does not know .*; it knows .*sm_80, .*sm_90"):
        BACKEND.toolchain(target)
    with pytest.raises(UnsupportedTarget, match="does not know"):
        BACKEND.compile(emitted(LAUNCHES["softmax_float16"]), target)


def test_a_kernel_that_spills_is_refused_with_the_figures() -> None:
    with pytest.raises(ResourcesExceeded, match=r"tw_hold spills \d+ bytes with 64 registers a thread"):
        BACKEND.compile(emitted(many_registers(120, 1024)), SM90A)


def test_what_a_refused_kernel_takes_can_still_be_looked_at() -> None:
    artifacts = BACKEND.artifacts(emitted(many_registers(120, 1024)), SM90A)
    assert artifacts.resources["tw_hold"].spill_bytes > 0
    assert artifacts.instructions["local_memory"] > 0


def test_too_much_shared_memory_is_refused() -> None:
    result = Buffer("O", (32,), float32)
    w = Writer()
    with w.launch("large", [("t", 32, HardwareAxis.THREAD)]) as (t,):
        tile = w.allocate("tile", (60_000,), float32, MemoryScope.SHARED)
        w.store(tile, (t,), Load(tile, (t,)))
        w.store(result, (t,), Load(tile, (t,)))
    with pytest.raises(ResourcesExceeded, match="240000 bytes of shared memory a block; sm_90a has 232448"):
        BACKEND.compile(emitted(Kernel("large", (), (result,), (), w.finish())), SM90A)


def test_warnings_of_the_assembler_refuse_a_kernel() -> None:
    log = "ptxas info    : (C7517) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    with pytest.raises(ResourcesExceeded, match="C7517"):
        check_log({}, log)


def test_static_shared_memory_and_registers_have_limits() -> None:
    with pytest.raises(ResourcesExceeded, match="50000 bytes of static shared memory; at most 49152"):
        check_log({"f": Resources(32, 0, 0, 50_000)}, "")
    with pytest.raises(ResourcesExceeded, match="128 registers in each of 1024 threads"):
        check_launches([LaunchConfig("f", (1, 1, 1), 1024)], {"f": Resources(128)}, SM90A)


def test_the_log_of_the_assembler_is_read() -> None:
    log = """ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    24 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 4096 bytes smem, 400 bytes cmem[0]"""
    assert parse_log(log) == {"f": Resources(40, 32, 24, 4096)}


def test_a_compiler_error_says_what_the_compiler_said() -> None:
    with pytest.raises(CompileError, match='identifier "nonsense" is undefined'):
        BACKEND.compile(Source("cuda-c++", "void f() { nonsense; }", "f", ()), SM90A)


def test_a_second_compilation_comes_from_the_cache() -> None:
    source = emitted(LAUNCHES["two_launches"])
    first = compiled(source, SM90A)
    (entry,) = cache_folder("cuda").iterdir()
    kept = entry.read_bytes()
    assert compiled(source, SM90A) == first
    assert entry.read_bytes() == kept
    compiled(source, Target("cuda", "sm_80", (), 108, 16))
    assert len(list(cache_folder("cuda").iterdir())) == 2


def test_a_damaged_entry_is_made_again() -> None:
    source = emitted(LAUNCHES["two_launches"])
    first = compiled(source, SM90A)
    (entry,) = cache_folder("cuda").iterdir()
    entry.write_bytes(b"torn")
    assert compiled(source, SM90A).cubin == first.cubin
    assert entry.read_bytes() != b"torn"


def test_the_cache_is_bounded_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "c", most_bytes=3000)
    noise = [stream(5, "noise", i).bytes(900) for i in range(6)]
    for i, code in enumerate(noise):
        cache.put(f"f{i}", Compiled(code, "ptx", "log"))
        os.utime(tmp_path / "c" / f"f{i}.kernel", (1000 + i, 1000 + i))
    assert cache.get("f0") == Compiled(noise[0], "ptx", "log")
    cache.trim()
    left = sorted(p.stem for p in (tmp_path / "c").iterdir())
    assert "f0" in left and "f1" not in left
    assert sum(p.stat().st_size for p in (tmp_path / "c").iterdir()) <= 3000


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiled(emitted(LAUNCHES["two_launches"]), SM90A).cubin


def test_keys_tell_texts_options_and_compilers_apart() -> None:
    keys = {key_of("a", ["-x"], "13.0"), key_of("b", ["-x"], "13.0"), key_of("a", ["-y"], "13.0")}
    assert len(keys | {key_of("a", ["-x"], "13.1")}) == 4


def test_an_index_of_a_register_buffer_that_varies_is_refused() -> None:
    result = Buffer("O", (8,), float16)
    x = Buffer("x", (8,), float16, MemoryScope.REGISTER)
    w = Writer()
    with w.launch("varies", [("t", 8, HardwareAxis.THREAD)]) as (t,):
        w.allocate("x", (8,), float16, MemoryScope.REGISTER)
        w.store(x, (Ramp(index(0), 1, 8),), Load(result, (Ramp(index(0), 1, 8),)))
        w.store(result, (t,), Load(x, (t,)))
    with pytest.raises(CompileError, match="register buffer x is accessed at an index that varies"):
        BACKEND.emit(Kernel("varies", (), (result,), (), w.finish()), SM90A)


def test_a_kernel_without_launches_is_refused() -> None:
    result = Buffer("O", (8,), float32)
    with pytest.raises(CompileError, match="made of launches, not of Store"):
        BACKEND.emit(Kernel("none", (), (result,), (), Store(result, (index(0),), Load(result, (index(1),)))), SM90A)


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ([("t", 2048, HardwareAxis.THREAD)], "2048 threads a block; at most 1024"),
        ([("b", 70_000, HardwareAxis.GRID_Y), ("t", 32, HardwareAxis.THREAD)], "70000 blocks along y; at most 65535"),
    ],
)
def test_launches_beyond_the_hardware_are_refused(bounds: list[tuple[str, int, HardwareAxis]], match: str) -> None:
    result = Buffer("O", (70_000,), float32)
    w = Writer()
    with w.launch("large", bounds) as variables:
        w.store(result, (variables[0],), Load(result, (variables[0],)))
    body = w.finish()
    assert isinstance(body, Launch)
    with pytest.raises(CompileError, match=match):
        BACKEND.emit(Kernel("large", (), (result,), (), body), SM90A)


def test_offsets_beyond_32_bits_are_computed_in_64() -> None:
    many = 3_000_000_000
    source, result = Buffer("A", (many // 8, 8), float16), Buffer("O", (many // 8, 8), float16)
    w = Writer()
    with w.launch("far", [("b", many // 2048, HardwareAxis.GRID_X), ("t", 256, HardwareAxis.THREAD)]) as (b, t):
        at = (b * 256 + t, Ramp(index(0), 1, 8))
        w.store(result, at, Load(source, at))
    text = emitted(Kernel("far", (source,), (result,), (), w.finish())).text
    assert "(long long)b * 2048" in text
    assert "const int b" in text


def test_a_machine_without_nvrtc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(nvrtc, "import_module", missing)
    nvrtc._library.cache_clear()
    try:
        with pytest.raises(UnsupportedTarget, match=r"cannot be loaded here .*pip install 'tilewright\[cuda\]'"):
            BACKEND.toolchain(SM90A)
    finally:
        nvrtc._library.cache_clear()


def test_the_compiler_gives_the_same_bytes_each_time() -> None:
    source = emitted(LAUNCHES["softmax_float16"])
    first, second = (nvrtc.compile_program(source.text, "kernel.cu", options(SM90A)) for _ in range(2))
    assert (first.cubin, first.ptx) == (second.cubin, second.ptx)


@pytest.mark.parametrize("sketch", [name for name in SKETCHES if name.startswith("cuda_")])
def test_nothing_is_read_or_written_before_the_earlier_launch_has_ended(sketch: str) -> None:
    """The compiler would move loads of what it takes for constant ahead of the wait, whatever stands in the source."""
    target = SM100A if sketch.endswith("tcgen05") else SM90A
    workload, schedule = case_of(sketch, target, seed=0)
    kernel = lowering.finish(lowering.lower(workload, target, schedule), target)
    source = BACKEND.emit(kernel, target)
    functions = BACKEND.assembly(source, target).split("/*0000*/")[1:]
    assert len(functions) == len(source.launches)
    assert all(config.programmatic_dependent_launch for config in source.launches)
    for text in functions:
        before, wait, after = text.partition("ACQBULK")
        assert wait and _GLOBAL.search(after) and not _GLOBAL.search(before)
