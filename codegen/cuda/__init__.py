"""The CUDA backend: kernel IR -> CUDA C++ that needs no header -> cubin, without a GPU or a driver."""
