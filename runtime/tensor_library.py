"""What a program needs of the library that its tensors belong to, such as torch or NumPy."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..core.dtypes import DType
from ..graph.graph import Node
from ..graph.operators.operator import Array, TensorType

Launch = Callable[[int], None]
"""It puts kernels with their addresses into the stream of a handle."""

Guard = Callable[[list[Any]], bool]
"""It says whether what was known of tensors holds for those in a list."""

Capture = Callable[[Launch], Launch]
"""From a function that launches several kernels to one that launches all of them at once."""


class TensorLibrary(Protocol):
    """The tensors of the user's process."""

    def allocator(self, kind: TensorType) -> Callable[[], Any]:
        """Return what makes a dense tensor with undefined elements, as often as it is called. On a GPU the device must
        be entered (``on_device``)."""
        ...

    def buffer(self, nbytes: int) -> Any:
        """So many bytes, aligned to 64."""
        ...

    def view_of(self, buffer: Any, offset: int, kind: TensorType) -> Any:
        """Return the bytes of a buffer from ``offset`` on as a dense tensor."""
        ...

    def address(self, tensor: Any) -> int:
        """Return the address of the first element."""
        ...

    def guard(self, tensors: Sequence[Any], positions: Sequence[int]) -> Guard:
        """Return what says whether a list has these tensors at these positions, and they have neither moved nor been
        changed in place where the library counts such changes. It holds the tensors."""
        ...

    def on_device(self) -> AbstractContextManager[object]:
        """While it is entered, kernels of the device may be launched in this thread."""
        ...

    def stream(self) -> int:
        """Return the handle of the stream that the library puts work into now; 0 on a processor."""
        ...

    def is_captured(self) -> bool:
        """Return whether the caller captures the current stream into a graph."""
        ...

    def capture(self) -> Capture | None:
        """Return what makes one launch of several; None on a processor."""
        ...

    def wait(self) -> None:
        """Wait for what was put into the current stream."""
        ...

    def type_of(self, tensor: Any) -> TensorType | None:
        """Return the shape and the dtype; None for a dtype that graphs do not have."""
        ...

    def is_dense(self, tensor: Any) -> bool:
        """Return whether the elements lie behind one another in row-major order."""
        ...

    def dense_copy(self, tensor: Any) -> Any:
        """Return a dense copy in memory of its own."""
        ...

    def reshaped(self, tensor: Any, shape: tuple[int, ...], offset: int = 0) -> Any:
        """Return a view of the elements of a dense tensor from number ``offset`` on, in another shape."""
        ...

    def to_numpy(self, tensor: Any) -> Array:
        """Return the elements as an array, in the dtype's own NumPy form."""
        ...

    def from_numpy(self, array: Array, dtype: DType) -> Any:
        """Return a tensor of ``dtype`` with the elements of an array, rounded."""
        ...

    def overwrite(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        """Copy the elements of each source to its target, which has its shape."""
        ...

    def foreign(self, node: Node) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Return the function that computes a foreign node: operands to results."""
        ...
