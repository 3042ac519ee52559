"""Kernel classes for processors, one folder each.

A folder takes a problem and a target, describes the legal settings and writes the loops of one setting. ``peaks`` has
the ceilings that their priors divide by, ``limits`` what a thread has, ``shared_knobs`` the knobs that several have,
and ``arithmetic`` formulas over columns.
"""
