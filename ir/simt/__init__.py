"""The interpreter of launches: all threads in lockstep as NumPy arrays, with their memory and what orders them."""
