"""Programs that are compared with eager: a kernel that is wrong is found, replaced and reported."""

import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch_backend.models import check, compiled, latest, newest_shape  # noqa: E402
from tilewright.codegen.lowering import build  # noqa: E402
from tilewright.core.schedule import Schedule  # noqa: E402
from tilewright.graph.operators import OPERATORS  # noqa: E402
from tilewright.runtime.cpu import CpuDevice  # noqa: E402
from tilewright.runtime.program import BoundProgram  # noqa: E402
from tilewright.schedule.defaults import default_schedule  # noqa: E402
from tilewright.te.operators import OPERATORS as WORKLOADS  # noqa: E402
from tilewright.torch_backend.aten import FUNCTIONS, evaluate  # noqa: E402
from tilewright.torch_backend.backend import tilewright  # noqa: E402
from tilewright.torch_backend.options import Options  # noqa: E402
from tilewright.torch_backend.schedules import NoSchedules  # noqa: E402
from tilewright.torch_backend.tensors import TorchTensors  # noqa: E402
from tilewright.torch_backend.verification import compare_tensors  # noqa: E402


def two_kernels(x: Any) -> Any:
    return torch.softmax(torch.relu(x) @ torch.exp(x), 1)


def test_the_first_call_of_a_program_is_compared() -> None:
    x = torch.randn(8, 8)
    run = compiled(two_kernels, verify="first")
    check(two_kernels, run, x)
    assert latest().state == "ready" and not latest().reports


def test_a_wrong_kernel_is_found_replaced_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(8, 8)
    run = compiled(two_kernels, verify="always")
    check(two_kernels, run, x)
    shape = newest_shape()
    program = shape._bound.program
    device = CpuDevice()
    wrong = WORKLOADS["elementwise"].workload({"shape": [8, 8], "functions": ["sigmoid"]})
    key = next(k for k, t in program.tasks.items() if [s.name for s in t.workload.stages] == ["y0"])
    kernel = device.load(build(wrong, device.target, default_schedule(wrong, device.target)))
    names = [p.name for p in shape._kernels[key].parameters]
    assert len(names) == 2 == len(kernel.parameters)
    kernel.parameters = shape._kernels[key].parameters
    shape._kernels = {**shape._kernels, key: kernel}
    shape._bound = BoundProgram(program, shape._kernels, TorchTensors(torch.device("cpu")))
    with caplog.at_level(logging.WARNING, "tilewright"):
        check(two_kernels, run, x)
    assert [r.workload_key for r in shape.status.reports] == [key]
    assert "ATen replaces it" in caplog.text and shape.status.state == "ready"
    with torch.no_grad():
        ours = shape._results([x])
    assert compare_tensors(ours[0], two_kernels(x), two_kernels(x.double())) is None


def test_a_program_that_does_not_run_gives_way_to_aten() -> None:
    x = torch.randn(8, 8)
    run = compiled(two_kernels, verify="always")
    check(two_kernels, run, x)
    shape = newest_shape()
    shape._bound = BoundProgram(shape._bound.program, {}, TorchTensors(torch.device("cpu")))  # it has no kernels
    check(two_kernels, run, x)
    assert shape.status.state == "aten" and shape.status.reason.startswith("KeyError")


def test_errors_are_measured_against_eager_in_float64() -> None:
    truth = torch.linspace(1, 2, 100, dtype=torch.float64)
    eager = truth.float()
    assert compare_tensors(eager, eager, truth) is None
    assert compare_tensors(eager + 1e-4, eager, truth) is not None
    assert compare_tensors(eager.half(), eager, truth) is not None
    spoilt = eager.clone()
    spoilt[3] = float("nan")
    assert compare_tensors(spoilt, eager, truth) is not None
    assert compare_tensors(spoilt, spoilt, torch.where(spoilt.isnan(), torch.nan, truth)) is None
    assert compare_tensors(torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1, 3])) is not None


def test_options_that_are_not_known_are_refused() -> None:
    from tilewright.core.errors import InvalidParameter

    for mode, options, field in (
        ("max-autotune", None, "mode"),
        (None, {"colour": 1}, "colour"),
        (None, {"verify": "sometimes"}, "verify"),
        (None, {"wait": 1}, "wait"),
        (None, {"programs": 0}, "programs"),
        (None, {"service": "localhost:8421"}, "service"),
        (None, {"service": "http://[::1"}, "service"),
        (None, {"service": "http://127.0.0.1:0"}, "service"),
        (None, {"service": 8421}, "service"),
        (None, {"refused_sketches": ["cpu_winogrand"]}, "refused_sketches"),
    ):
        with pytest.raises(InvalidParameter) as error:
            Options.of(mode, options)
        assert error.value.field == field
    with pytest.raises(Exception, match="no option 'colour'"):
        torch.compile(two_kernels, backend=tilewright, options={"colour": 1})(torch.randn(4, 4))


def test_a_sketch_that_is_refused_writes_no_kernel() -> None:
    model, x = torch.nn.Conv2d(32, 32, 3, padding=1).eval(), torch.randn(1, 32, 14, 14)
    for refused in ([], ["cpu_winograd"]):
        with torch.inference_mode():
            check(model, compiled(model, verify="first", refused_sketches=refused), x)
        sketches = {schedule.sketch for schedule in newest_shape()._chosen.values()}
        assert ("cpu_winograd" in sketches) == (not refused)


class Known(NoSchedules):
    """Schedules of a service that has tuned everything, with one setting that is not legal here."""

    def find(self, keys: Any) -> dict[str, Schedule]:
        return {key: Schedule.of("cpu_loops", 999, {}) for key in keys}


def test_a_schedule_that_is_not_legal_here_gives_the_default() -> None:
    from tilewright.torch_backend.backend import compile_with

    torch._dynamo.reset()
    options = Options(wait=True, verify="always")
    run = torch.compile(two_kernels, backend=lambda m, x: compile_with(m, x, options, Known()))
    x = torch.randn(8, 8)
    check(two_kernels, run, x)
    assert latest().state == "ready" and latest().tuned == 0


@pytest.mark.parametrize("name", OPERATORS)
def test_torch_computes_every_operator_as_numpy_does(name: str) -> None:
    from tests.contracts.test_graph_operators import drawn, node_of

    operator = OPERATORS[name]
    assert name in FUNCTIONS or name in ("cast", "full", "range")
    for case in operator.cases:
        graph = node_of(name, case)
        arrays = [drawn(t, n) for n, t in enumerate(case.operands)]
        wide = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
        expected = torch.as_tensor(operator.evaluate(wide, operator.values(case.attributes)).copy())
        found = evaluate(graph.nodes[0], [torch.as_tensor(a.copy()) for a in wide], wide=name != "cast")
        torch.testing.assert_close(found.to(expected.dtype), expected, rtol=1e-6, atol=1e-7, equal_nan=True)
