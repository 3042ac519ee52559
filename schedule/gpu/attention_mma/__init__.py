"""Attention of few queries over many keys by mma.sync, such as that of one token over a cache of keys and values.

What comes in is a ``StoredAttention`` (``schedule.problems.stored_attention``) and a setting of the knobs; what goes
out is a kernel. Keys and values may be stored in any form (``gpu.streamed_operand``): they go from memory into
registers, where they are computed and multiplied. Softmax, the order of blocks of keys, and what combines those that
share the keys are those of ``gpu.attention``.
"""
