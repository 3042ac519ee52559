"""Tests of the forms of a kernel: PTX, SASS and instruction counts, with and without a disassembler."""

import pytest

from tilewright.codegen.backends import backend_for
from tilewright.codegen.cuda.compile.compiler import compiled
from tilewright.codegen.cuda.inspect import disassemble
from tilewright.codegen.cuda.inspect.disassemble import machine_code
from tilewright.codegen.cuda.inspect.instructions import CLASSES, classify, count_instructions
from tilewright.core.target import Target
from tilewright.tests.codegen.cuda.launches import LAUNCHES

SM90A = Target("cuda", "sm_90a", (), 132, 16)
BACKEND = backend_for(SM90A)
needs_disassembler = pytest.mark.skipif(disassemble.disassembler() is None, reason="no nvdisasm here")


def counted(name: str) -> dict[str, int]:
    kernel = LAUNCHES[name]
    artifacts = BACKEND.artifacts(BACKEND.emit(BACKEND.passes(kernel)[-1][1], SM90A), SM90A)
    assert [layer.title for layer in artifacts.layers] == ["PTX", "SASS"]
    return {name: count for name, count in artifacts.instructions.items() if count}


@needs_disassembler
def test_a_row_kernel_moves_data_in_the_widest_accesses() -> None:
    counts = counted("softmax_float16")
    assert counts["global_load_128"] == counts["global_store_128"] == 4
    assert counts["shuffle"] == 10
    assert not {"global_load_narrow", "global_store_narrow", "local_memory"} & set(counts)


@needs_disassembler
def test_a_transpose_has_wide_accesses_on_both_sides() -> None:
    counts = counted("transpose_float16")
    assert (counts["global_load_128"], counts["global_store_128"], counts["shared_store_128"]) == (2, 2, 2)
    assert counts["shared_load_narrow"] == 16


@needs_disassembler
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("matrix_float16", {"matrix": 2, "matrix_load": 3}),
        ("bulk_float16", {"bulk_copy": 3}),
        ("copied_float16", {"async_copy": 1}),
        ("cluster_sum_2", {"cluster_load": 2}),
    ],
)
def test_special_instructions_are_there(name: str, wanted: dict[str, int]) -> None:
    counts = counted(name)
    for kind, least in wanted.items():
        assert counts.get(kind, 0) >= least, (kind, counts)


@needs_disassembler
def test_sass_that_is_disassembled_with_its_lines_is_that_of_the_binary() -> None:
    source = BACKEND.emit(BACKEND.passes(LAUNCHES["matrix_float16"])[-1][1], SM90A)
    assert BACKEND.artifacts(source, SM90A).layers[1].text == BACKEND.assembly(source, SM90A)
    assert machine_code(compiled(source, SM90A).cubin) == machine_code(
        compiled(source, SM90A, line_information=True).cubin
    )


def test_without_a_disassembler_the_last_layer_is_ptx_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disassemble, "disassembler", lambda: None)
    source = BACKEND.emit(LAUNCHES["shuffles_float32"], SM90A)
    artifacts = BACKEND.artifacts(source, SM90A)
    (layer,) = artifacts.layers
    assert layer.language == "ptx"
    assert "cannot be shown: no nvdisasm" in layer.text and ".visible .entry tw_shuffles" in layer.text
    assert artifacts.instructions == {}
    assert artifacts.resources["tw_shuffles"].registers > 0


@pytest.mark.parametrize(
    ("mnemonic", "kind"),
    [
        ("LDG.E.NA.128.CONSTANT", "global_load_128"),
        ("LDG.E.U16.CONSTANT", "global_load_narrow"),
        ("STG.E.EF.64", "global_store_64"),
        ("LDS.128", "shared_load_128"),
        ("STS.U16", "shared_store_narrow"),
        ("HMMA.16816.F32", "matrix"),
        ("HGMMA.64x256x16.F32", "matrix_group"),
        ("LDSM.16.MT88.4", "matrix_load"),
        ("MUFU.EX2", "special_function"),
        ("FFMA.FTZ", "fma_f32"),
        ("STL.64", "local_memory"),
        ("SHFL.BFLY", "shuffle"),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier"),
        ("IMAD.MOV.U32", "integer"),
        ("UNHEARD.OF", "other"),
    ],
)
def test_instructions_fall_into_classes(mnemonic: str, kind: str) -> None:
    assert classify(mnemonic) == kind
    assert kind in CLASSES
    assert count_instructions(f"        /*0000*/                   @!P0 {mnemonic} R1, R2 ;")[kind] == 1
