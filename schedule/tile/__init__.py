"""Building blocks of tile kernels: what several kernel writers of ``schedule/gpu`` and ``schedule/cpu`` have in common.

A kernel writer is given stages of a workload (``te.workload.Stage``) and emits statements of the kernel IR with a
``Writer``. It needs the same few things again and again, and they live here: the body of a stage at a point or in the
lanes of a vector (``stage_body``), its masked loads and the registers that hold what they load (``masked_loads``,
``register_loads``), facts about a load (``load_analysis``), flat indices taken apart (``delinearize``), indices of
contiguous vectors (``contiguous``), names that are still free (``names``), and how a reducer accumulates
(``accumulation``). Nothing here knows a target or a knob: expressions, axes and a writer come in, expressions and
statements go out.
"""
