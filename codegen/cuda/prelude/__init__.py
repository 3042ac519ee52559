"""The device functions that emitted CUDA C++ calls.

Each function is a ``Function``: its text and the functions that it needs. ``prelude.prelude`` takes the names that a
kernel
uses and returns the text of those functions alone, so emitted kernels need no header. The functions are grouped by what
they wrap: ``values`` (16-bit floats, arithmetic), ``memory`` (loads, stores, cp.async, mma.sync), ``tma`` (bulk tensor
copies and mbarriers) and ``wgmma``.
"""
