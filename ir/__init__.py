"""The kernel IR: what a schedule lowers to, and what every code generator starts from.

Sketches (``schedule``) write kernels, passes and emitters (``codegen``) read them, and tensor expressions (``te``)
share the scalar expressions. Nothing here knows a target, a device or a schedule.

- ``expr``, ``stmt``, ``buffer``: expressions, statements and kernels, buffers. ``cpu`` and ``gpu/`` add the operations
  of processors and of graphics processors (``gpu/tma``, ``gpu/mbarrier``, ``gpu/wgmma``, …).
- ``build`` writes kernels statement by statement, ``text`` prints them, ``rewrite`` maps and substitutes.
- ``verify`` says what a legal kernel is; ``verifier/`` holds its rules, ``uniformity`` decides which conditions all
  threads of a group agree on.
- ``provenance`` says which statement each statement of a rewritten kernel was made from.
- ``linear_form`` takes index arithmetic apart; ``bounds`` and ``index_analysis`` say what is known of its values, and
  ``simplify`` and ``simplifier`` use that. ``fold`` and ``lanes`` help them.
- ``interpret`` runs kernels on NumPy arrays and finds what a compiled kernel would do silently; ``interpreter/`` does
  so for processors, ``simt/`` for launches. ``prologue`` splits off what constant inputs alone decide.
"""
