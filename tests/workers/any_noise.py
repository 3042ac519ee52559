"""The timing rules of tests that ask whether a kernel was timed. Other tests run beside them, on machines that lend
their processors to others, so that no samples are too far apart."""

from tilewright.workers.timing import TimingRules

ANY_NOISE = TimingRules(noisy_spread=1e9)
