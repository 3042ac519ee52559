"""Workers: builders, runners and measuring, on local processes or on Ray."""
