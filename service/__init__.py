"""Use cases: jobs, best schedules, explanations, events; settings; and the file that wires parts together."""
