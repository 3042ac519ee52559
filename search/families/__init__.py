"""Shape families: a few schedules that serve every shape of a range, and a dispatcher that chooses among them.

Times come in, and a dispatcher goes out::

    times at some shapes ─ expected ─▶ times at any shape ─ cover ─▶ at most K schedules
      ─ tree ─▶ dispatcher ─ emit ─▶ C, Python

``family`` puts the parts together and proves by enumeration that every shape in range gets a schedule that is legal
there. ``expected`` carries times to other shapes, ``cover`` chooses the schedules, ``tree`` grows the decision tree,
and ``emit`` writes it as code.
"""
