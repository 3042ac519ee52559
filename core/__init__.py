"""The nouns every floor shares: dtypes, errors, keys, random streams, targets, schedules, trials, records."""
