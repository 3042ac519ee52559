"""Holds the nouns that every floor shares.

Schedules, targets, trials, records, budgets and policies of search are frozen values; dtypes and errors are here too.
``keys`` gives values content keys, ``streams`` gives random streams by name, and ``renamed`` maps old names of knobs to
today's. ``frozen`` lets small values be built quickly. ``child_program``, ``cgroups``, ``cache_folder``, ``collector``
and ``log_context`` are what processes of this program share. Nothing here imports another folder.
"""
