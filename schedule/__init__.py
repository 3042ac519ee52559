"""Knobs, spaces, sketches and the loop-nest primitives they apply."""
