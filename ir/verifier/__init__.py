"""The rules of the verifier for expressions, launches and operations; ``ir.verify`` walks a kernel and applies them.

``types`` gives every expression a dtype and a number of lanes. ``launch`` checks launches and layouts. ``operands``
holds what the rules for operations share. ``cpu`` checks the operands of operations of processors. ``async_copy``,
``mbarrier``, ``tma``, ``mma`` and ``wgmma`` check those of graphics processors, and ``gpu`` joins them to one table. A
rule that is broken raises ``RuleBroken``, which ``ir.verify`` turns into an InvalidKernel that names the statement.
"""
