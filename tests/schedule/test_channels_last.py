"""Convolutions with channels first in steps: every step has a kernel class on Hopper, and their kernels compute it."""

from typing import Any

import pytest
from numpy.typing import NDArray

from tests.sketch_agreement import agree
from tilewright.codegen.lowering import finish, lower
from tilewright.core.target import Target
from tilewright.ir.interpret import interpret
from tilewright.ir.verify import verify
from tilewright.schedule.defaults import default_schedule
from tilewright.schedule.sketches import class_sketches
from tilewright.te.channels_last import channels_last_steps
from tilewright.te.data import random_inputs
from tilewright.te.operators import OPERATORS
from tilewright.te.reference import reference
from tilewright.te.tolerance import tolerance
from tilewright.te.workload import Workload

H200 = Target("cuda", "sm_90a", threads=132, vector_bytes=16)
_IMAGES: dict[str, Any] = {"batch": 16, "channels": 128, "height": 56, "width": 56, "filters": 128}
_3X3 = {**_IMAGES, "kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": "float16"}
_1X1 = {**_IMAGES, "kernel_h": 1, "kernel_w": 1, "stride": 2, "dtype": "float16"}
_PHOTOS = {"batch": 32, "channels": 3, "height": 224, "width": 224, "dtype": "float16"}
_STEM = {**_PHOTOS, "filters": 64, "kernel_h": 7, "kernel_w": 7, "stride": 2, "padding": 3}
_LINES = {"batch": 8, "channels": 512, "length": 4000, "filters": 512, "kernel": 3, "padding": 1, "dtype": "float16"}
_BLOCKS = {"batch": 2, "channels": 64, "depth": 16, "height": 56, "width": 56, "filters": 64, "dtype": "float16"}
_SMALL = {"batch": 32, "channels": 256, "height": 14, "width": 14, "filters": 128, "dtype": "float16"}
CONVOLUTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "3x3": ("conv2d", _3X3),
    "bfloat16": ("conv2d", {**_3X3, "dtype": "bfloat16"}),
    "tf32": ("conv2d", {**_3X3, "dtype": "float32", "precision": "tf32"}),
    "int8": ("conv2d", {**_3X3, "dtype": "int8"}),
    "stride 2": ("conv2d", {**_3X3, "stride": 2}),
    "dilated": ("conv2d", {**_3X3, "dilation": 2, "padding": 2}),
    "groups": ("conv2d", {**_3X3, "groups": 4}),
    "small groups": ("conv2d", {**_3X3, "groups": 32}),
    "odd channels": ("conv2d", {**_3X3, "channels": 36, "filters": 50, "width": 31}),
    "1x1, stride 2": ("conv2d", _1X1),
    "1x1, stride 2, tf32": ("conv2d", {**_1X1, "dtype": "float32", "precision": "tf32"}),
    "2x2, stride 2, groups": ("conv2d", {**_1X1, "kernel_h": 2, "kernel_w": 2, "groups": 4}),
    "stem": ("conv2d", _STEM),
    "stem, tf32": ("conv2d", {**_STEM, "dtype": "float32", "precision": "tf32"}),
    "stem of one channel": ("conv2d", {**_STEM, "channels": 1}),
    "ViT": ("conv2d", {**_PHOTOS, "filters": 768, "kernel_h": 16, "kernel_w": 16, "stride": 16}),
    "one dimension": ("conv1d", _LINES),
    "three dimensions": ("conv3d", {**_BLOCKS, "kernel_d": 3, "kernel_h": 3, "kernel_w": 3, "padding": 1}),
    "transposed": ("conv2d_transpose", {**_SMALL, "kernel_h": 4, "kernel_w": 4, "stride": 2, "padding": 1}),
    "transposed 2x2": ("conv2d_transpose", {**_SMALL, "kernel_h": 2, "kernel_w": 2, "stride": 2}),
    "transposed 3x3": ("conv2d_transpose", {**_SMALL, "kernel_h": 3, "kernel_w": 3, "stride": 2, "padding": 1}),
    "transposed 5x5, groups": ("conv2d_transpose", {**_SMALL, "kernel_h": 5, "kernel_w": 5, "stride": 3, "groups": 2}),
    "transposed, tf32": (
        "conv2d_transpose",
        {**_SMALL, "kernel_h": 4, "kernel_w": 4, "stride": 2, "padding": 1, "dtype": "float32", "precision": "tf32"},
    ),
}


@pytest.mark.parametrize("epilogue", [False, True], ids=["sums", "bias, residual, relu"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_every_step_has_a_kernel_class(case: str, epilogue: bool) -> None:
    operator, parameters = CONVOLUTIONS[case]
    further = {"bias": True, "residual": True, "activation": "relu"} if epilogue else {}
    workload = OPERATORS[operator].workload({**parameters, **further})
    assert [s.name for s in class_sketches(workload, H200)] in ([], ["cuda_conv_few_channels"])
    found = channels_last_steps(workload)
    assert found
    for name, steps in found:
        assert all(any(class_sketches(step, H200)) for step in steps), name


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [
        ("conv2d", {"kernel_h": 3, "kernel_w": 3, "padding": 1, "bias": True, "residual": True, "activation": "relu"}),
        ("conv2d", {"width": 16, "kernel_h": 3, "kernel_w": 3, "padding": 1, "residual": True, "filters": 40}),
        ("conv2d", {"kernel_h": 2, "kernel_w": 2, "stride": 2, "bias": True}),
        ("conv2d", {"kernel_h": 2, "kernel_w": 2, "stride": 2, "groups": 2, "filters": 32}),
        ("conv2d", {"kernel_h": 3, "kernel_w": 3, "dtype": "float32", "precision": "tf32", "residual": True}),
        ("conv2d", {"kernel_h": 3, "kernel_w": 3, "dtype": "int8"}),
        ("conv2d", {"kernel_h": 1, "kernel_w": 1, "stride": 2}),
        ("conv2d_transpose", {"kernel_h": 4, "kernel_w": 4, "stride": 2, "padding": 1}),
        ("conv2d_transpose", {"kernel_h": 3, "kernel_w": 3, "stride": 2, "padding": 1, "bias": True, "residual": True}),
    ],
)
def test_kernels_of_all_steps_compute_the_convolution(operator: str, parameters: dict[str, Any]) -> None:
    sizes = {"batch": 2, "channels": 32, "height": 8, "width": 10, "filters": 24, "dtype": "float16"}
    workload = OPERATORS[operator].workload({**sizes, **parameters})
    inputs = random_inputs(workload, 1)
    wanted, limits = reference(workload, inputs), tolerance(workload)
    found = channels_last_steps(workload)
    assert found
    for name, steps in found:
        tensors: dict[str, NDArray[Any]] = dict(inputs)
        for step in steps:
            tensors |= _interpreted(step, {b.name: tensors[b.name] for b in step.inputs})
        agree(name, {output: tensors[output] for output in workload.outputs}, wanted, limits)


def _interpreted(step: Workload, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What the kernel of the default schedule of a step gives."""
    kernel = finish(lower(step, H200, default_schedule(step, H200)), H200)
    verify(kernel, final=True)
    return dict(interpret(kernel, inputs))
