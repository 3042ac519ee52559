"""From kernel IR to CUDA C++ text.

``kernel.emit`` takes a kernel after all passes and a target, and returns a ``codegen.backend.Source``: one
``extern "C" __global__`` function for each launch, with the device functions of ``codegen.cuda.prelude`` that it uses.
"""
