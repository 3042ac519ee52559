"""Workers: builders, runners and measuring, on local processes or on Ray.

The way of a candidate: ``executor`` draws schedules as there is room for them, hands them to builder stations and
the binaries to the runner station (``crew``: one thread each); a ``station`` (``builder``, ``runner``, the data
station of ``fixtures``) owns one spawned child (``child``, seen from its parent; ``main``, from inside) and turns its
death into an outcome; the child builds (``building``), computes inputs and references (``preparing``, ``fixture``) or
measures (``running``, under the device's ``lease``; ``bench``: ``buffers`` and ``check`` first, then ``rotation`` and
``timing``). The fastest candidates of a task are timed again in turns, all on one bench. ``local`` and ``ray`` differ
only in where the stations are.

What must stay true: a candidate can only hurt the child it is in, and costs one trial; a child dies with its parent,
however that dies, and is replaced once its memory or its device is not to be trusted any more; nothing is timed while
anything is built on the same processor, and a device of its own never waits for what can be done ahead; what crosses
between processes is JSON and machine code, never pickle (but inside a Ray cluster, which is one domain of trust).
"""
