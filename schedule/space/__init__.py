"""Knobs, and the space of settings that they span, as integer columns.

A sketch describes its knobs here; what comes out is a ``Space`` whose rows are legal settings, enumerated or sampled.
"""
