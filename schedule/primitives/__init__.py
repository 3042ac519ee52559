"""Loop-nest primitives: each is a pure function from kernel to kernel.

The kernel of ``loop_nest.nest`` comes in, and the same computation with other loops goes out. The names are those of
TVM's schedule primitives, except for ``write_back``, which TVM does not have. ``PRIMITIVES`` lists all of them.
"""

from collections.abc import Callable

from ...ir.stmt import Kernel
from .cache_read import cache_read
from .cache_write import cache_write
from .compute_at import compute_at
from .fuse import fuse
from .inline import inline
from .parallelise import parallelise
from .reorder import reorder
from .rfactor import rfactor
from .split import split
from .unroll import unroll
from .vectorise import vectorise
from .write_back import write_back

__all__ = [
    "PRIMITIVES",
    "cache_read",
    "cache_write",
    "compute_at",
    "fuse",
    "inline",
    "parallelise",
    "reorder",
    "rfactor",
    "split",
    "unroll",
    "vectorise",
    "write_back",
]

PRIMITIVES: dict[str, Callable[..., Kernel]] = {
    "split": split,
    "fuse": fuse,
    "reorder": reorder,
    "vectorise": vectorise,
    "unroll": unroll,
    "parallelise": parallelise,
    "inline": inline,
    "compute_at": compute_at,
    "cache_read": cache_read,
    "cache_write": cache_write,
    "rfactor": rfactor,
    "write_back": write_back,
}
"""Every primitive by name; each takes the kernel first and raises IllegalSchedule where it does not apply."""
