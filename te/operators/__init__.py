"""The operator library. Parameters come in, and a workload goes out.

A new operator is one file here and one line in this table; the contract suite
``tests/contracts/test_operators.py`` then runs it by itself, from its schema alone."""

from .attention import ATTENTION
from .batch_matmul import BATCH_MATMUL
from .bilinear import BILINEAR
from .binary import BINARY
from .block_scaled_matmul import BLOCK_SCALED_MATMUL
from .broadcast_affine import BROADCAST_AFFINE
from .channel_norm import BATCH_NORM, GROUP_NORM
from .concatenate import CONCATENATE
from .conv2d_transpose import CONV2D_TRANSPOSE
from .convolution import CONV1D, CONV2D, CONV3D
from .elementwise import ELEMENTWISE
from .gated_linear import GATED_LINEAR
from .grouped_matmul import GROUPED_MATMUL
from .linear import LINEAR
from .matmul import MATMUL
from .mlp import MLP
from .multi_dot import MULTI_DOT
from .norm import ADD_RMS_NORM, LAYER_NORM, RMS_NORM
from .operator import Operator
from .pool2d import POOL2D
from .reduce import REDUCE
from .scaled_matmul import SCALED_MATMUL
from .scan import SCAN
from .segment_reduce import SEGMENT_REDUCE
from .softmax import LOG_SOFTMAX, SOFTMAX
from .transpose import TRANSPOSE

OPERATORS: dict[str, Operator] = {
    o.name: o
    for o in (
        MATMUL,
        BATCH_MATMUL,
        GROUPED_MATMUL,
        SCALED_MATMUL,
        BLOCK_SCALED_MATMUL,
        LINEAR,
        GATED_LINEAR,
        MULTI_DOT,
        BILINEAR,
        MLP,
        CONV1D,
        CONV2D,
        CONV3D,
        CONV2D_TRANSPOSE,
        POOL2D,
        SOFTMAX,
        LOG_SOFTMAX,
        LAYER_NORM,
        RMS_NORM,
        ADD_RMS_NORM,
        BATCH_NORM,
        GROUP_NORM,
        ATTENTION,
        REDUCE,
        SCAN,
        SEGMENT_REDUCE,
        TRANSPOSE,
        CONCATENATE,
        ELEMENTWISE,
        BINARY,
        BROADCAST_AFFINE,
    )
}

__all__ = ["OPERATORS", "Operator"]
