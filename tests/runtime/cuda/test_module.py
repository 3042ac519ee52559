"""A kernel runs on the arrays of torch, CuPy and JAX without a copy, on their stream; errors say what was wrong."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.lowering import build_kernel
from tilewright.core.errors import InvalidParameter
from tilewright.core.policy import SpacePolicy
from tilewright.core.schedule import Schedule
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.cuda.module import CudaModule
from tilewright.runtime.module import load_module
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.sketches import SKETCHES
from tilewright.te.dynamic import with_dynamic
from tilewright.te.operators import OPERATORS
from tilewright.tests.runtime.cuda.kernels import SHAPE, data, two_launches, workload

pytestmark = pytest.mark.cuda
A, B = data()
C, D = (A + B) * 2, A + B - 1


@pytest.fixture(scope="module")
def module() -> Iterator[CudaModule]:
    device = CudaDevice()
    kernel = device.load(build_kernel(two_launches(), device.target))
    yield CudaModule(workload(), Schedule("plain", 1, ()), device, kernel)


class Foreign:
    """An array of an unknown library, with one of the two protocols."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.array = array


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


def check(got: tuple[Any, ...]) -> None:
    for array, want in zip(got, (C, D), strict=True):
        np.testing.assert_allclose(array, want, rtol=1e-6, atol=1e-6)


def test_torch_in_torch_out(module: CudaModule, torch: Any) -> None:
    a, b = (torch.tensor(x, device="cuda") for x in (A, B))
    got = module(a, b)
    assert all(isinstance(x, torch.Tensor) and x.is_cuda for x in got)
    check(tuple(x.cpu().numpy() for x in got))


def test_results_go_where_they_are_asked_for(module: CudaModule, torch: Any) -> None:
    a, b = (torch.tensor(x, device="cuda") for x in (A, B))
    out = [torch.zeros(SHAPE, device="cuda") for _ in range(2)]
    got = module(a, b, out=out)
    assert got[0] is out[0] and got[1] is out[1]
    check(tuple(x.cpu().numpy() for x in out))


def test_a_call_follows_what_its_stream_has_to_do(module: CudaModule, torch: Any) -> None:
    """The inputs are ready only after half a second of other work on the stream. Nobody waits, and the result is
    right."""
    big = torch.rand(8192, 8192, device="cuda")
    a, b = (torch.zeros(SHAPE, device="cuda") for _ in range(2))
    source = [torch.tensor(x, device="cuda") for x in (A, B)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(20):
            big @ big
        a.copy_(source[0])
        b.copy_(source[1])
        assert not side.query()
        got = module(a, b)
        assert not side.query()
        copies = [x.clone() for x in got]
    side.synchronize()
    check(tuple(x.cpu().numpy() for x in copies))


@pytest.mark.parametrize("as_handle", [True, False])
def test_a_stream_can_be_given(module: CudaModule, torch: Any, as_handle: bool) -> None:
    a, b = (torch.tensor(x, device="cuda") for x in (A, B))
    stream = torch.cuda.Stream()
    got = module(a, b, stream=stream.cuda_stream if as_handle else stream)
    stream.synchronize()
    check(tuple(x.cpu().numpy() for x in got))
    with pytest.raises(InvalidParameter, match="is no stream"):
        module(a, b, stream="fast")


def test_a_call_can_be_captured_into_a_graph(module: CudaModule, torch: Any) -> None:
    a, b = (torch.zeros(SHAPE, device="cuda") for _ in range(2))
    out = [torch.zeros(SHAPE, device="cuda") for _ in range(2)]
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        module(a, b, out=out)  # This allocates the workspace of this stream.
    with torch.cuda.graph(graph, stream=stream):
        module(a, b, out=out)
    a.copy_(torch.tensor(A))
    b.copy_(torch.tensor(B))
    graph.replay()
    torch.cuda.synchronize()
    check(tuple(x.cpu().numpy() for x in out))


def test_cupy_in_cupy_out(module: CudaModule, cupy: Any) -> None:
    got = module(cupy.asarray(A), cupy.asarray(B))
    assert all(isinstance(x, cupy.ndarray) for x in got)
    check(tuple(cupy.asnumpy(x) for x in got))
    with cupy.cuda.Stream(non_blocking=True):
        check(tuple(cupy.asnumpy(x) for x in module(cupy.asarray(A), cupy.asarray(B))))


def test_jax_in_jax_out(module: CudaModule) -> None:
    jax = pytest.importorskip("jax")
    gpu = jax.devices("gpu")[0]
    a, b = (jax.device_put(x, gpu) for x in (A, B))
    got = module(a, b)
    assert all(isinstance(x, jax.Array) for x in got)
    check(tuple(np.asarray(x) for x in got))
    np.testing.assert_array_equal(np.asarray(a), A)


def test_arrays_of_an_unknown_library_need_out(module: CudaModule, cupy: Any) -> None:
    a, b = Foreign(cupy.asarray(A)), Foreign(cupy.asarray(B))
    with pytest.raises(InvalidParameter, match="make outputs like a Foreign: give out="):
        module(a, b)
    out = [Foreign(cupy.zeros(SHAPE, np.float32)) for _ in range(2)]
    module(a, b, out=out)
    check(tuple(cupy.asnumpy(x.array) for x in out))


def test_numpy_arrays_are_copied_in_and_out(module: CudaModule) -> None:
    check(module(A, B))
    check(module(np.asfortranarray(A), np.repeat(B, 2, axis=1)[:, ::2]))
    out = [np.zeros(SHAPE, np.float32) for _ in range(2)]
    assert module(A, B, out=out)[0] is out[0]
    check(tuple(out))


def test_wrong_arrays_are_named(module: CudaModule, torch: Any) -> None:
    a, b = (torch.tensor(x, device="cuda") for x in (A, B))
    rows, columns = SHAPE
    crooked = torch.zeros(rows * columns + 1, device="cuda")[1:].view(SHAPE)
    for wrong, words in (
        (b.double(), "B is float64, needed: float32"),
        (b[:1], r"B has shape \[1, 64\], needed: \[37, 64\]"),
        (b.cpu(), "B lies in the host's memory; the kernel runs on cuda device 0"),
        (torch.zeros(columns, rows, device="cuda").T, r"B is not contiguous \(strides \[1, 37\]\)"),
        (crooked, "B begins 4 bytes past a multiple of 16"),
        ([1, 2], "B is a list; allowed: arrays with __dlpack__"),
        (B, "B lies in the host's memory"),
    ):
        with pytest.raises(InvalidParameter, match=words) as caught:
            module(a, wrong)
        assert caught.value.field == "B"
    with pytest.raises(InvalidParameter, match="1 arrays given, 2 needed: A, B"):
        module(a)
    with pytest.raises(InvalidParameter, match="1 out arrays given, 2 needed: C, D"):
        module(a, b, out=[a.clone()])
    with pytest.raises(InvalidParameter, match="out is of type Tensor; allowed: a list of arrays: C, D"):
        module(a, b, out=a.clone())
    with pytest.raises(InvalidParameter, match="out C overlaps input A"):
        module(a, b, out=[a, b.clone()])
    both = torch.zeros(SHAPE, device="cuda")
    with pytest.raises(InvalidParameter, match="out D overlaps out C"):
        module(a, b, out=[both, both])


def test_threads_on_their_own_streams_do_not_disturb_each_other(module: CudaModule, torch: Any) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        a, b = data(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            x, y = torch.tensor(a, device="cuda"), torch.tensor(b, device="cuda")
            for _ in range(50):
                c, d = module(x, y)
                if not np.allclose(c.cpu().numpy(), (a + b) * 2, atol=1e-6) or not np.allclose(
                    d.cpu().numpy(), a + b - 1, atol=1e-6
                ):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_dynamic_module_takes_its_extent_from_the_arrays(torch: Any) -> None:
    softmax = with_dynamic(OPERATORS["softmax"].workload({"rows": 300, "columns": 96}))
    device = CudaDevice()
    module = load_module(softmax, default_schedule(softmax, device.target), device.target)
    assert isinstance(module, CudaModule)
    for rows in (1, 77, 300, 77):
        x = torch.randn((rows, 96), device="cuda")
        (y,) = module(x)
        torch.testing.assert_close(y, torch.softmax(x, 1))
        (on_host,) = module(x.cpu().numpy())
        np.testing.assert_allclose(on_host, y.cpu().numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidParameter, match="allowed: 1 to 300"):
        module(torch.randn((301, 96), device="cuda"))
    with pytest.raises(InvalidParameter, match="shape"):
        module(torch.randn((7, 95), device="cuda"))


@pytest.fixture(scope="module")
def layer() -> CudaModule:
    """Return a product whose rows of weights are copied to multiples of 16 bytes by a launch of their own."""
    parameters = {"m": 40, "n": 67, "k": 66, "dtype": "float16", "constant_weights": True}
    work = OPERATORS["matmul"].workload(parameters)
    device = CudaDevice()
    space = SKETCHES["cuda_gemm"].space(work, device.target, policy=SpacePolicy(prune=False))
    schedule = space.schedule(int(np.flatnonzero(space.column("repacked") == 1)[0]))
    module = load_module(work, schedule, device.target)
    assert isinstance(module, CudaModule) and module._kernel.has_prologue
    return module


def operands(seed: int) -> list[Any]:
    generator = np.random.Generator(np.random.PCG64(seed))
    return [generator.uniform(-1, 1, shape).astype(np.float16) for shape in ((40, 66), (66, 67))]


def test_constants_are_bound_once_for_many_calls(layer: CudaModule, torch: Any) -> None:
    (a, b), (a2, b2) = ([torch.tensor(x, device="cuda") for x in operands(seed)] for seed in (0, 1))
    one, other, third = layer.bind(B=b), layer.bind(B=b2), layer.bind(B=operands(0)[1])
    for given in (a, a2):
        for module, weights in ((one, b), (other, b2), (third, b)):
            torch.testing.assert_close(module(given)[0], given @ weights, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(layer(given, b2)[0], given @ b2, rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(one(operands(0)[0])[0], one(a)[0].cpu().numpy())
    before, stream = one(a)[0], torch.cuda.Stream()
    b.zero_()  # This breaks the promise, and shows that the copy is read.
    torch.cuda.synchronize()
    assert torch.equal(one(a, stream=stream)[0], before)


def test_wrong_constants_are_explained(layer: CudaModule, module: CudaModule, torch: Any) -> None:
    a, b = (torch.tensor(x, device="cuda") for x in operands(0))
    with pytest.raises(InvalidParameter, match="constants given: A, B; needed: B"):
        layer.bind(A=a, B=b)
    with pytest.raises(InvalidParameter, match="constants given: A; needed: none"):
        module.bind(A=a)
    with pytest.raises(InvalidParameter, match=r"B has shape \[40, 66\], needed: \[66, 67\]"):
        layer.bind(B=a)
    with pytest.raises(InvalidParameter, match="2 arrays given, 1 needed: A"):
        layer.bind(B=b)(a, b)
    with pytest.raises(InvalidParameter, match="out C overlaps constant B"):
        layer.bind(B=b)(a, out=[b.reshape(-1)[: 40 * 67].reshape(40, 67)])
