"""Writes any workload as launches of plain loops (sketch ``cuda_loops``), used where no other kernel class matches.

A workload comes in. ``launches`` cuts it into launches, one for each reduction or map that inlining leaves. ``space``
describes the settings of the launch with the most work. ``points`` writes a launch in which a thread, a warp or a block
computes each output. ``tiles`` writes one in which a block computes a tile of a reduction that reuses what it loads.
``accumulators`` are the running results that both keep in registers. The launches of one kernel go out.
"""
