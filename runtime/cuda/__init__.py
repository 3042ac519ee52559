"""NVIDIA devices.

A cubin comes in, inside a `codegen.backend.Binary`. `device.py` opens a device, and `kernel.py` loads the cubin,
launches it and times it with CUDA graphs and events; seconds and results of checks go out. `module.py` calls a tuned
kernel on arrays of PyTorch, CuPy or JAX.

`driver.py` is the only file that loads the CUDA driver, `nvml.py` the only one that reads sensors, and `arrays.py` the
only one that knows arrays of other libraries. `memory.py` has streams, allocations and transfers; `launch.py` has
functions, their launch attributes, CUDA graphs and event timers. `checks.py` fills, searches and compares memory on the
device, and `peaks.py` measures it. Importing these files loads no library of CUDA.
"""
