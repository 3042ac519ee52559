"""Kernels that reduce over leading axes, so that elements next to each other in memory go to different results.

What comes in is a ``problems.columnwise.ColumnwiseProblem``. What goes out is a kernel of one launch, or of two where
thread blocks leave partial results in global memory. There are no atomics, so that results are the same bits every
time.

``space``    the knobs, the legal settings and the promising ones (sketch ``cuda_columnwise``)
``sizes``    how the elements are shared out among threads, and what a thread block takes of a multiprocessor
``prior``    the estimated time of a setting
``kernel``   the launches, and how the partial results of threads and thread blocks become one
``rows``     the rows of one thread: loads and accumulation
``writer``   what the other modules share: names, states of reductions, outputs

Where reductions read one another, or outputs have an element for each element of an input, elements are read once and
stay on chip (sketch ``cuda_columnwise_persistent``):

``persistent``         the knobs, the legal settings, the promising ones and the estimated time of a setting
``persistent_sizes``   how the elements are shared out among threads
``persistent_kernel``  the launch
"""
