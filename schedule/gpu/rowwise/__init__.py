"""Kernels that work on rows: softmax, norms, and reductions over the last axes, with what is fused to them.

What comes in is a ``problems.rowwise.RowwiseProblem``. What goes out is a kernel of one launch, or of two (``split``).

``space``            the knobs, the legal and the promising settings (sketches ``cuda_rowwise`` and ``amdgpu_rowwise``)
``sizes``            how a row is shared out among threads, and what a thread block takes of a multiprocessor
``prior``            the estimated time of a setting
``kernel``           the launch: which thread block takes which rows, and where their columns stay
``split``            few long rows, of which one launch reduces parts and another joins them (``cuda_rowwise_split``)
``cooperative``      few long rows that all CTAs of the device share (``cuda_rowwise_cooperative``); its launch is in
                     ``cooperative_kernel``
``circular_buffer``  rows that stay in a circular buffer in shared memory
``vectors``          the vectors of a row that belong to one thread
``held_vectors``     which of them has what is read at another column
``held_values``      values of a row that stay in registers from one pass to the next
``passes``           the reductions of a row, and what is written from them
"""
