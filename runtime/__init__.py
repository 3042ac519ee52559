"""Devices, and tuned kernels in the user's process.

A compiled kernel comes in (`codegen.backend.Binary`). A device loads it, allocates memory, launches and times it
(`device.py` says what a device can do, `devices.py` lists the kinds). Samples in seconds, results of checks and
measured peaks go out. `module.py` takes a workload and a schedule, compiles them, and gives a callable on the arrays of
a user.

The CPU is one device (`cpu.py`, with `hardware.py`, `jit_session.py`, `thread_pool.py` and `cpu_checks.py`); the folder
`cuda` has NVIDIA's. `peaks.py` measures the peaks of a CPU; `anchor.py` times the fixed kernel that shows drift.
"""
