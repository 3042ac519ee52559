"""Writes any workload as tiled, vectorised, unrolled and parallel loops (sketch ``cpu_loops``).

A workload comes in, and the kernel of one setting goes out. ``fusion`` groups the stages, ``tiles`` finds the axes of a
group to tile, ``knobs``, ``constraints``, ``promising`` and ``prior`` describe the settings, and ``tile_loops`` and
``row_loops`` apply one of them with the primitives of ``schedule/primitives``.
"""
