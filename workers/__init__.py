"""Workers: builders, runners and measuring, on local processes or on Ray.

The way of a candidate: ``executor`` hands schedules to builder stations and binaries to the runner station
(``crew``: one thread each); a station (``stations``) owns one spawned child (``child``, seen from its parent;
``main``, from inside) and turns its death into an outcome; the child builds (``building``) or measures (``running``,
``bench``: ``buffers`` and ``check`` first, then ``rotation`` and ``timing``). ``local`` and ``ray`` differ only in
where the stations are.

What must stay true: a candidate can only hurt the child it is in, and costs one trial; a child dies with its parent,
however that dies; nothing is timed while anything is built on the same processor; what crosses between processes is
JSON and machine code, never pickle (but inside a Ray cluster, which is one domain of trust).
"""
