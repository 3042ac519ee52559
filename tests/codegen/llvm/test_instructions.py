"""Instruction counts are tested on a line of assembly for each class, and on a whole kernel."""

import pytest

from tilewright.codegen.llvm.instructions import CLASSES, classify, count_instructions, total


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vfmadd231ps (%rcx,%rsi), %zmm13, %zmm11", "vector_fma"),
        ("vfmadd213pd %ymm1, %ymm2, %ymm3", "vector_fma"),
        ("vfnmadd231ss %xmm1, %xmm2, %xmm3", "scalar_fma"),
        ("vdpbf16ps %zmm1, %zmm2, %zmm3", "vector_fma"),
        ("vaddps %zmm1, %zmm2, %zmm3", "vector_arithmetic"),
        ("vmaxps (%rax), %zmm2, %zmm3 {%k1}", "vector_arithmetic"),
        ("vaddss %xmm0, %xmm1, %xmm2", "scalar_fp"),
        ("vucomiss %xmm0, %xmm1", "scalar_fp"),
        ("vmovups (%rdx), %zmm14", "vector_load"),
        ("vmovups %zmm0, 704(%rax)", "vector_store"),
        ("vmovups %zmm0, (%rax) {%k1}", "vector_store"),
        ("vmovups (%rax), %zmm0 {%k1} {z}", "vector_load"),
        ("vmovaps %zmm1, %zmm0", "other"),
        ("vbroadcastss 1024(%rcx,%rsi), %zmm12", "broadcast"),
        ("vpbroadcastq %rax, %zmm3", "broadcast"),
        ("vgatherdps (%rax,%zmm1,4), %zmm0 {%k1}", "gather"),
        ("vpscatterqd %ymm0, (%rax,%zmm1) {%k1}", "scatter"),
        ("vpermt2ps %zmm1, %zmm2, %zmm3", "shuffle"),
        ("vcvtdq2ps %zmm1, %zmm2", "convert"),
        ("vpmovsxbd (%rax), %zmm1", "convert"),
        ("vpaddd %zmm1, %zmm2, %zmm3", "vector_integer"),
        ("vxorps %xmm0, %xmm0, %xmm0", "vector_integer"),
        ("tdpbf16ps %tmm1, %tmm2, %tmm3", "matrix"),
        ("addq $64, %rdi", "integer"),
        ("leaq 8(%rsp), %rsi", "integer"),
        ("movq (%rdi), %rcx", "scalar_load_store"),
        ("movq %rdi, %rcx", "integer"),
        ("vmovss %xmm0, (%rax)", "scalar_load_store"),
        ("callq tilewright_parallel_for@PLT", "call"),
        ("jne .LBB0_1", "branch"),
        ("retq", "branch"),
        ("vzeroupper", "other"),
    ],
)
def test_classes(line: str, expected: str) -> None:
    mnemonic, _, operands = line.partition(" ")
    assert classify(mnemonic, operands) == expected


def test_labels_directives_and_comments_are_no_instructions() -> None:
    text = "\t.text\nmain:\n# a comment\n\tvaddps\t%zmm0, %zmm1, %zmm2  # fused\n.LBB0_1:\n\tjne\t.LBB0_1\n"
    counts = count_instructions(text)
    assert list(counts) == list(CLASSES)
    assert {name: n for name, n in counts.items() if n} == {"vector_arithmetic": 1, "branch": 1}
    assert total(counts) == 2


def test_masked_instructions_count_beside_their_class() -> None:
    counts = count_instructions("\tvmovups\t(%rax), %zmm0 {%k1} {z}\n")
    assert (counts["masked"], counts["vector_load"], total(counts)) == (1, 1, 1)
