"""Knobs, and the space of settings that they span, as integer columns.

A sketch's knobs and constraints come in. A ``Space`` goes out, whose rows are legal settings, enumerated or sampled.

``knob``         knobs and quantities
``columns``      many settings at once: one column of values for each knob
``constraint``   a rule over the columns of some knobs that every legal setting keeps
``elimination``  counting legal settings, without enumerating them
``enumerate``    all legal settings, or a uniform sample of them
``pruning``      which of many settings a prior likes best
``space``        the result
"""
