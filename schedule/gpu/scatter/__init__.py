"""Kernels of scatters: reductions of the terms whose loaded index is that of the element.

What comes in is a ``problems.scatter.ScatterProblem``. What goes out is a kernel of three to five launches: the numbers
of all terms are sorted by their element, and then each element reduces its own (sketch ``cuda_scatter``). There are no
atomics, and the terms of an element are reduced in a fixed order, so that results are the same bits every time. So they
are with the atomics of ``cuda_scatter_atomic``, since no order changes what these compute.

``space``    the knobs, the legal settings, the promising ones and the estimated time of a setting
``sort``     the launches that sort
``rank``     how a block ranks its terms
``kernel``   the launches that reduce: pieces of elements with many terms, where there are such, and all elements

Of few elements, such as a histogram has, each thread has copies (sketch ``cuda_scatter_private``):

``private_space``    the knobs, the legal settings, the promising ones and the estimated time of a setting
``private_kernel``   the launch in which threads reduce terms into their copies, and the one that joins all blocks

Of terms that are a few numbers each, all are reduced in memory as they come (sketch ``cuda_scatter_atomic``):

``atomic_space``    the knobs, the legal settings, the promising ones and the estimated time of a setting
``atomic_kernel``   the launches that set totals, reduce terms into them, and write what is computed from them
``in_place``        what is added to which total, so that the order does not matter
``term_loads``      how a thread loads terms and their elements, here and into copies
"""
