"""Building blocks of tile kernels: what several kernel writers of ``schedule/gpu`` and ``schedule/cpu`` have in common.

A kernel writer is given stages of a workload (``te.workload.Stage``) and emits statements of the kernel IR with a
``Writer``. It needs the same few things again and again, and they live here:

- ``stage_body`` gives the body of a stage at a point or in the lanes of a vector;
- ``masked_loads`` and ``register_loads`` write its masked loads and the registers that hold what they load;
- ``load_analysis`` states facts about a load;
- ``delinearize`` takes flat indices apart, and ``contiguous`` gives the indices of contiguous vectors;
- ``reciprocals`` replaces divisions by what many elements have in common;
- ``names`` gives names that are still free;
- ``accumulation`` says how a reducer accumulates.

Nothing here knows a target or a knob: expressions, axes and a writer come in, expressions and statements go out.
"""
