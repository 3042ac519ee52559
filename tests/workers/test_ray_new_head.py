"""A Ray cluster whose head is lost, and another one is there in its place."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.tests.contracts.test_executors import marked
from tilewright.tests.workers.faulty_kernels import add_one, schedule
from tilewright.workers.executors import open_executor
from tilewright.workers.losses import DriverLost
from tilewright.workers.probe import local_unit

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray")
if True:  # what follows needs Ray
    from ray.cluster_utils import Cluster

    from tilewright.workers.ray import RayExecutor
    from tilewright.workers.ray_actor import HOST_LABEL


def test_nobody_waits_for_an_actor_that_the_new_head_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray does not say that an actor cannot be registered: its answer never comes. The lease of the task was renewed
    meanwhile, so that nobody took it over."""
    monkeypatch.setenv("RAY_worker_niceness", "0")
    unit = local_unit()
    labels = {HOST_LABEL: unit.host}
    cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False, "labels": labels})
    try:
        settings = replace(marked(tmp_path), ray_address=str(cluster.address), builders=1)
        with open_executor("ray", unit.device.target, unit=unit, settings=settings) as executor:
            assert len(list(executor.measure(add_one(), [schedule("good")]))) == 1
            head: Any = cluster.head_node
            head.kill_gcs_server()
            head.start_gcs_server()
            assert isinstance(executor, RayExecutor)
            executor._remote_runner.close()  # its next call has to have another actor
            with pytest.raises(DriverLost):
                list(executor.measure(add_one(), [schedule("good")]))
            with pytest.raises(DriverLost):
                RayExecutor(unit.device.target, unit=unit, settings=settings)
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
