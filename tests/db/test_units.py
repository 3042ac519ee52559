"""Units: states, who holds them, and which of a host shut each other out."""

from dataclasses import replace

import pytest

from tilewright.core.errors import InvalidParameter, NotFound
from tilewright.core.fleet import LeaseLost, Unit, UnitState, Wanted
from tilewright.db.store import RecordStore
from tilewright.tests.db.fleets import CPU, GPU, LONG, claimed, gpus, run_out, submit, unseen

HOST = Unit("h1", CPU, "h1")


def states(store: RecordStore) -> dict[str, UnitState]:
    return {row.unit.uuid: row.state for row in store.fleet.units()}


def test_a_unit_has_one_holder_and_fences_only_grow(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    first, second = gpus(fleet_store, 2)
    held = fleet.lease_unit(first, "a", seconds=LONG)
    assert held is not None and held.fence == 1 and held.until > fleet.now()
    assert fleet.lease_unit(first, "b", seconds=LONG) is None
    assert fleet.lease_unit(second, "b", seconds=LONG) is not None  # GPUs of one host do not disturb each other
    row = fleet.units()[0]
    assert (row.unit.device, row.unit.ordinal, row.owner, row.held_until) == (GPU, 0, "a", held.until)
    fleet.release([held])
    fleet.release([held])  # once more is nothing
    again = fleet.lease_unit(first, "b", seconds=LONG)
    assert again is not None and again.fence == 2
    fleet.release([held])  # nor does the former holder give the lease of the next one up
    assert fleet.units()[0].owner == "b"
    with pytest.raises(LeaseLost, match="unit GPU-h1-0 with fence 1 is lost"):
        fleet.renew([held], seconds=LONG)
    assert fleet.lease_unit("GPU-none", "a", seconds=LONG) is None


def test_a_lease_that_ran_out_holds_its_unit_until_it_is_reaped(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    (uuid,) = gpus(fleet_store, 1)
    held = fleet.lease_unit(uuid, "a", seconds=LONG)
    assert held is not None
    run_out(fleet_store, held)
    assert fleet.lease_unit(uuid, "b", seconds=LONG) is None
    with pytest.raises(LeaseLost):
        fleet.renew([held], seconds=LONG)
    assert (fleet.reap(), fleet.reap()) == (1, 0)
    again = fleet.lease_unit(uuid, "b", seconds=LONG)
    assert again is not None and again.fence == held.fence + 1


def test_a_processor_and_the_other_units_of_its_host_shut_each_other_out(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    (here,), (there,) = gpus(fleet_store, 1), gpus(fleet_store, 1, host="h2")
    fleet.register_units([HOST], seen_seconds=LONG)
    held = fleet.lease_unit(HOST.uuid, "a", seconds=LONG)
    assert held is not None
    assert fleet.lease_unit(here, "a", seconds=LONG) is None
    assert fleet.lease_unit(there, "a", seconds=LONG) is not None
    fleet.release([held])
    assert fleet.lease_unit(here, "a", seconds=LONG) is not None
    assert fleet.lease_unit(HOST.uuid, "a", seconds=LONG) is None


def test_units_that_nobody_sees_are_lost_and_found_again(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    seen, bad = gpus(fleet_store, 2)
    fleet.set_unit_state(bad, UnitState.QUARANTINED, "ECC errors")
    for uuid in (seen, bad):
        unseen(fleet_store, uuid)
    assert fleet.lease_unit(seen, "a", seconds=LONG) is None  # before anybody has marked it
    fleet.reap()
    assert states(fleet_store) == {seen: UnitState.LOST, bad: UnitState.QUARANTINED}
    moved = Unit(seen, replace(GPU, name="Other GPU"), "h9", "ray", 3)
    fleet.register_units([moved], seen_seconds=LONG)
    gpus(fleet_store, 0)
    assert states(fleet_store) == {seen: UnitState.READY, bad: UnitState.QUARANTINED}
    assert [row.unit for row in fleet.units() if row.unit.uuid == seen] == [moved]


def test_only_a_ready_unit_is_leased_and_a_holder_is_told(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    (uuid,) = gpus(fleet_store, 1)
    submit(fleet_store, "j")
    unit = fleet.lease_unit(uuid, "o", seconds=LONG)
    assert unit is not None
    task = claimed(fleet_store, unit=uuid)
    assert fleet.renew([unit, task.lease], seconds=LONG) is Wanted.GO
    for state in (UnitState.SUSPECT, UnitState.DRAINING, UnitState.QUARANTINED):
        changed = fleet.set_unit_state(uuid, state, f"because {state}")
        assert (changed.state, changed.reason, changed.owner) == (state, f"because {state}", "o")
        assert fleet.wanted(task.lease) is fleet.renew([unit], seconds=LONG) is Wanted.YIELD
    fleet.release([unit])
    assert fleet.lease_unit(uuid, "o", seconds=LONG) is None
    fleet.set_unit_state(uuid, UnitState.READY)
    assert fleet.wanted(task.lease) is Wanted.GO
    assert fleet.lease_unit(uuid, "o", seconds=LONG) is not None


def test_a_probe_does_not_undo_what_an_administrator_did_meanwhile(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    (uuid,) = gpus(fleet_store, 1)
    fleet.set_unit_state(uuid, UnitState.SUSPECT, "actor_lost", before=UnitState.READY)
    fleet.set_unit_state(uuid, UnitState.DRAINING, "it moves")
    row = fleet.set_unit_state(uuid, UnitState.READY, before=UnitState.SUSPECT)
    assert (row.state, row.reason) == (UnitState.DRAINING, "it moves")
    assert fleet.lease_unit(uuid, "a", seconds=LONG) is None


def test_what_a_probe_found_is_kept(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    (uuid,) = gpus(fleet_store, 1)
    before = fleet.units()[0]
    assert (before.health, before.anchor_seconds, before.probed_at) == ({}, None, None)
    probed = fleet.set_unit_state(uuid, UnitState.READY, health={"temperature_celsius": 41.0}, anchor_seconds=1e-3)
    assert (probed.health, probed.anchor_seconds) == ({"temperature_celsius": 41.0}, 1e-3)
    assert probed.probed_at is not None and probed.since == before.since
    later = fleet.set_unit_state(uuid, UnitState.SUSPECT, "drifts")
    assert (later.health, later.anchor_seconds) == (probed.health, 1e-3) and later.since >= before.since
    with pytest.raises(NotFound, match="'GPU-none'"):
        fleet.set_unit_state("GPU-none", UnitState.READY)


def test_leases_are_renewed_all_or_none(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    first, second = (fleet.lease_unit(uuid, "a", seconds=LONG) for uuid in gpus(fleet_store, 2))
    assert first is not None and second is not None
    fleet.release([second])
    with pytest.raises(LeaseLost, match="GPU-h1-1"):
        fleet.renew([first, second], seconds=10 * LONG)
    assert fleet.units()[0].held_until == first.until


def test_the_lease_of_a_task_is_not_released(fleet_store: RecordStore) -> None:
    submit(fleet_store, "j")
    with pytest.raises(InvalidParameter, match="a lease of a task given; allowed: of units"):
        fleet_store.fleet.release([claimed(fleet_store).lease])


def test_a_unit_that_its_host_and_a_cluster_both_see_is_one_and_stays_local(fleet_store: RecordStore) -> None:
    fleet = fleet_store.fleet
    through_ray = replace(HOST, executor="ray")

    def registered(*units: Unit) -> list[Unit]:
        for unit in units:
            fleet.register_units([unit], seen_seconds=LONG)
        return [row.unit for row in fleet.units()]

    assert registered(through_ray) == [through_ray]
    assert registered(HOST, through_ray) == [HOST]
    unseen(fleet_store, HOST.uuid)  # the worker of the host has left
    assert registered(through_ray) == [through_ray]
