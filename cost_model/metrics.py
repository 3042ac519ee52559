"""How good a model's ranking is, in the measures that tensor-program papers report."""

import numpy as np
from numpy.typing import NDArray


def pairwise_accuracy(predicted: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    """Fraction of pairs with different labels that are put in the right order; ties of the prediction count half.
    NaN when no pair differs. O(n^2): give it hundreds of rows, not thousands."""
    truth = np.sign(labels[:, None] - labels[None, :])
    guess = np.sign(predicted[:, None] - predicted[None, :])
    differ = truth > 0
    if not differ.any():
        return float("nan")
    return float((0.5 * (1 + guess[differ])).mean())


def rank_correlation(predicted: NDArray[np.floating], labels: NDArray[np.floating]) -> float:
    """Spearman's rank correlation, from -1 to 1; equal values share their mean rank. NaN where either is constant."""
    a, b = _ranks(predicted), _ranks(labels)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[places], dtype=np.float64)


def top_score(predicted: NDArray[np.float32], labels: NDArray[np.float32], k: int) -> float:
    """Best label among the k rows ranked highest, over the best label of all (TenSet's top-k); NaN if all fail."""
    best = labels.max(initial=0.0)
    if best == 0:
        return float("nan")
    chosen = np.argsort(-predicted, kind="stable")[:k]
    return float(labels[chosen].max() / best)


def ranking_metrics(predicted: NDArray[np.float32], labels: NDArray[np.float32]) -> dict[str, float]:
    """Return all metrics of one task's ranking by name; those that cannot be computed are NaN."""
    return {
        "pairwise_accuracy": pairwise_accuracy(predicted[:MOST_ROWS], labels[:MOST_ROWS]),
        "rank_correlation": rank_correlation(predicted, labels),
        **{f"top_{k}_score": top_score(predicted, labels, k) for k in (1, 5, 8, 20)},
    }


MOST_ROWS = 1000
"""Pairs are compared among so many rows at most."""
