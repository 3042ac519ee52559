"""Holds what a kernel may be like, and how it is written.

A workload and a target come in. A sketch of ``sketches`` says which settings of its knobs are legal (``space``) and how
long each may take. For one setting a kernel of the IR goes out.

``problems`` say what a workload is, whatever the target. ``gpu`` and ``cpu`` have a folder for each kernel class, and
``tile_sketch`` is the frame that their sketches share. ``tile`` has the building blocks of their kernels. ``loop_nest``
and ``primitives`` are for kernels that are made by rewriting plain loops. ``defaults`` gives the schedules of a
workload that nobody has tuned.
"""
