"""A GEMM with wgmmas in flight, TMA stores and multicast loads: results, faults, instructions."""

import numpy as np
import pytest

from tilewright.codegen.backends import backend_for
from tilewright.codegen.lowering import build_kernel, finish
from tilewright.codegen.memory_traffic import accessed_bytes, matrix_operations
from tilewright.core.errors import KernelFault
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.tests.ir.wgmma_gemm import (
    CLUSTER_FAULTS,
    FAULTS,
    FORMS,
    K_TILES,
    TILE_M,
    TILE_N,
    TILES,
    GemmForm,
    data,
    wgmma_gemm,
)

H200 = Target("cuda", "sm_90a", (), threads=132, vector_bytes=16)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_they_give_the_product(form: GemmForm) -> None:
    inputs, wanted = data(form)
    result = interpret(finish(wgmma_gemm(form), H200), inputs)["C"]
    np.testing.assert_array_equal(result.astype(np.float32), wanted)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    with pytest.raises(KernelFault, match=FAULTS[fault]):
        interpret(wgmma_gemm(GemmForm(), fault), data(GemmForm())[0])


@pytest.mark.parametrize("fault", CLUSTER_FAULTS)
def test_faults_of_clusters_are_found(fault: str) -> None:
    form = GemmForm(cluster=2)
    with pytest.raises(KernelFault, match=CLUSTER_FAULTS[fault]):
        interpret(wgmma_gemm(form, fault), data(form)[0])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_wgmmas_stay_in_flight_in_the_machine_code(form: GemmForm) -> None:
    """Compiling refuses what the assembler warns of: wgmmas that it had to serialise, registers that it could not
    give."""
    kernel, backend = wgmma_gemm(form), backend_for(H200)
    (taken,) = build_kernel(kernel, H200).resources.values()
    assert taken.spill_bytes == 0
    sass = backend.assembly(backend.emit(finish(kernel, H200), H200), H200)
    assert sass.count("HGMMA.64x128x16.F32.BF16") == 4
    assert sass.count("UTMALDG.2D") == (3 if form.cluster > 1 else 4)
    assert sass.count("MULTICAST") == (1 if form.cluster > 1 else 0)
    assert sass.count("UTMASTG.2D") == 2 and sass.count("STSM.16.M88.4") == 8 and sass.count("USETMAXREG") == 2
    assert ("tnspA" in sass, "tnspB" in sass) == (form.a_transposed, form.b_transposed)


@pytest.mark.parametrize("form", [FORMS["both K-major"], FORMS["cluster"]], ids=["alone", "cluster"])
def test_what_they_ask_of_the_hardware_is_counted(form: GemmForm) -> None:
    kernel = wgmma_gemm(form)
    assert matrix_operations(kernel) == 2 * (2 * TILE_M) * (TILES * TILE_N) * (K_TILES * 64)
    boxes = 2 * TILES * K_TILES * (4 if form.cluster == 1 else 3) + 2 * TILES * 4
    assert accessed_bytes(kernel) == boxes * 64 * 64 * 2
