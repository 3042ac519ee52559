"""What the tile sketches share: evaluating bodies of stages, reducing across threads, flat axes."""
