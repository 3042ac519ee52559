"""Models that say which schedules are worth a measurement, from measurements of earlier ones.

Settings with their derived columns, their prior and their outcomes come in (``dataset``). ``features`` turns them into
columns with units and a version. What goes out is the expected residual of the prior for each setting (``residual``),
by a model of the table in ``models``. ``metrics`` say how well a model ranks, ``similarity`` says which earlier tasks
are alike, ``importance`` says which knobs matter, and ``training`` makes a model that is kept.
"""
