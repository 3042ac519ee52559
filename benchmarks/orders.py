"""In what order contestants take their turns."""

from collections.abc import Iterator, Sequence


def balanced_orders(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Yield an order of ``names`` for each round. Within as many rounds as there are names (twice as many where their
    number is odd) each follows each other one equally often: whoever runs before leaves its power, temperature and
    caches behind, and nobody should always run behind the same one. (E. J. Williams, "Experimental designs balanced for
    the estimation of residual effects of treatments", 1949.)"""
    count = len(names)
    zigzag = [(n + 1) // 2 if n % 2 else (count - n // 2) % count for n in range(count)]
    for turn in range(rounds):
        order = [names[(place + turn) % count] for place in zigzag]
        yield order[::-1] if count % 2 and turn // count % 2 else order
