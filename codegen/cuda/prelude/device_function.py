"""Defines the type of an entry of the prelude."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """This is one ``__device__`` function with its overloads.

    ``text`` is its CUDA C++ without qualifiers. ``$`` in it stands for ``static __device__ __forceinline__``; a text
    whose first line of code has no ``$`` gets them at its beginning. ``needs`` names the functions of the prelude that
    it calls; they stand earlier in the table.
    """

    text: str
    needs: tuple[str, ...] = ()
