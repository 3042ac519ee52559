"""Search: strategies that ask and tell, the tuning loop, budgets, replay without hardware."""
