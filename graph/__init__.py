"""Graphs of whole models, and how they are cut into workloads.

``graph`` has the values and nodes, ``operators`` the table of what a node may do, ``json`` and ``text`` its two written
forms, and ``reference`` what it computes. ``passes`` rewrite graphs, ``partition`` cuts one into kernels
(``attention``: which nodes are part of one), and ``program`` is what goes out: calls in order, with the places of their
buffers. What comes in is a graph of an importer. Weights are never data of a graph.
"""
