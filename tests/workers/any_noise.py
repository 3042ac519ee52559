"""The timing rules of tests that ask whether a kernel was timed, and not how well. Other tests run beside them, on
machines that lend their processors to others, so that no samples are too far apart, and more of them are no better."""

from tilewright.workers.timing import RemeasureRules, TimingRules

ANY_NOISE = TimingRules(noisy_spread=1e9, most_seconds=0.02, extended_seconds=0.02)
FEW_ROUNDS = RemeasureRules(most_seconds=0.05)
