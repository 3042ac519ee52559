"""Search: which schedules to measure next, and which of the measured ones is the best. Spaces, a measurer and a budget
come in; trials go out, one after the other.

``pool`` joins the spaces of all sketches that fit a task. A strategy (``strategy``, ``strategies/``) is asked for
candidates of the pool and is told their outcomes. ``tuner`` is the loop between a strategy and a ``measurer`` until a
budget is spent; ``drift`` corrects what strategies see, and ``remeasurement`` decides between the fastest. ``recorded``
and ``t4`` are spaces whose every schedule was measured before, for search without hardware.
"""
