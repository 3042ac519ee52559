"""Scatters on a processor: histograms, gradients of embeddings, sums of segments.

A ``ScatterProblem`` and a setting come in, and a kernel goes out.

``space``       the knobs, the legal and the promising settings, the prior (sketch ``cpu_scatter``)
``kernel``      the loops: each task reads the elements of all terms, and adds up those that are its own
``term_parts``  of terms of a few numbers, each task may add up a part, and others join what all have found
"""
