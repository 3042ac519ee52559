"""Workers build schedules and measure them, in child processes on this machine or in actors on Ray.

    executor        draws schedules while there is room for them, and gives trials back
      builder_supervisor, runner_supervisor, reference_cache, compilation_pool
                    each owns one child, replaces it when it dies, and turns its death into an outcome
        child       the parent's end of the pipe to a child; ``main`` is the child's end
          builder_child     schedule -> binary
          compilation_child schedule -> what people look at and take away; nothing is measured
          reference_child   workload -> seeded inputs and their float64 reference
          runner_child      binary -> report, on the device, under its ``device_lock``
            harness         one workload on the device: ``buffers``, ``check``, then ``rotation`` and ``timing``

    joint_executor  drives several executors, of one unit each, for one task

``pool`` gives every supervisor a thread of its own and feeds all of them from one queue. ``local`` and ``ray`` are the
executors: they differ in where supervisors live, and in nothing else. What comes in is a workload and schedules; what
goes out is one trial for each schedule, whatever its kernel does to its child.

    ray             a cluster, or a Ray of its own
      ray_actor       a supervisor in an actor, and what its loss means (``losses``)
      ray_runner      the runner, on the host of its unit, under a lease
      ray_builders    builders, on any node with the same toolchain
    sandbox         what a child may do (``landlock``, ``seccomp``)
    lease_guard     until when a device may be used
    probe           which units there are; ``cluster_probe`` asks a Ray cluster
    health          whether a unit may be used
"""
