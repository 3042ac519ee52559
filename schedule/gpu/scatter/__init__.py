"""Kernels of scatters: reductions of the terms whose loaded index is that of the element.

What comes in is a ``problems.scatter.ScatterProblem``. What goes out is a kernel of three to five launches: the numbers
of all terms are sorted by their element, and then each element reduces its own (sketch ``cuda_scatter``). There are no
atomics, and the terms of an element are reduced in a fixed order, so that results are the same bits every time.

``space``    the knobs, the legal settings, the promising ones and the estimated time of a setting
``sort``     the launches that sort
``rank``     how a block ranks its terms
``kernel``   the launches that reduce: pieces of elements with many terms, where there are such, and all elements

Of few elements, such as a histogram has, each thread has copies (sketch ``cuda_scatter_private``):

``private_space``    the knobs, the legal settings, the promising ones and the estimated time of a setting
``private_kernel``   the launch in which threads reduce terms into their copies, and the one that joins all blocks
"""
