"""Events of a job: polled and streamed, with ids, from where a client left off."""

import threading
from contextlib import ExitStack

import httpx2

from tilewright.api.client import Client, operator_task
from tilewright.api.sse import read_events
from tilewright.service.service import Service

MATMUL = operator_task("matmul", {"m": 4, "n": 4, "k": 4})
STREAM = {"Accept": "text/event-stream"}


def test_polling_goes_on_from_the_last_id(http: httpx2.Client, client: Client) -> None:
    job = client.submit(MATMUL)
    first = http.get(f"/v1/jobs/{job.id}/events").json()
    assert [event["kind"] for event in first["events"]] == ["state"] and first["final"] is False
    client.cancel(job.id)
    later = http.get(f"/v1/jobs/{job.id}/events", params={"after": first["last_id"]}).json()
    states = [event["data"]["state"] for event in later["events"]]
    assert states[-1] == "cancelled" and "queued" not in states
    end = http.get(f"/v1/jobs/{job.id}/events", params={"after": later["last_id"]}).json()
    assert end == {"events": [], "last_id": later["last_id"], "final": True}


def test_polling_waits_for_the_next_event(client: Client, service: Service) -> None:
    job = client.submit(MATMUL)
    known = client.poll_events(job.id).last_id
    found = []
    waiting = threading.Thread(target=lambda: found.append(client.poll_events(job.id, after=known, wait_seconds=30)))
    waiting.start()
    service.cancel(job.id)
    waiting.join()
    assert [event.kind for event in found[0].events][-1] == "state"


def test_a_stream_ends_with_the_job_and_then_asks_not_to_reconnect(http: httpx2.Client, client: Client) -> None:
    job = client.submit(MATMUL)
    with http.stream("GET", f"/v1/jobs/{job.id}/events", headers=STREAM) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = read_events(answer.iter_lines())
        name, _, first = next(events)
        assert name == "state"
        client.cancel(job.id)
        rest = list(events)
    assert [name for name, _, _ in rest][-1] == "end"
    ids = [int(identifier) for _, _, identifier in rest]
    assert ids == sorted(ids) and ids[0] > int(first)
    again = http.get(f"/v1/jobs/{job.id}/events", headers={**STREAM, "Last-Event-ID": str(ids[-1])})
    assert (again.status_code, again.content) == (204, b"")


def test_a_reconnecting_browser_misses_nothing_and_repeats_nothing(http: httpx2.Client, client: Client) -> None:
    job = client.submit(MATMUL)
    client.cancel(job.id)
    whole = [int(i) for name, _, i in _stream(http, job.id, {}) if name != "end"]
    for known in range(len(whole)):
        rest = _stream(http, job.id, {"Last-Event-ID": str(whole[known])})
        assert [int(i) for name, _, i in rest if name != "end"] == whole[known + 1 :]


def test_the_client_follows_a_job_to_its_end(client: Client, service: Service) -> None:
    job = client.submit(MATMUL)
    events = client.events(job.id)
    assert next(events).data["state"] == "queued"
    service.cancel(job.id)
    assert [event.data["state"] for event in events][-1] == "cancelled"
    assert list(client.events(job.id, after=10**9)) == []


def test_streams_of_one_job_share_a_thread(http: httpx2.Client, client: Client) -> None:
    job = client.submit(MATMUL)
    before = threading.active_count()
    with ExitStack() as stack:
        opened = [
            stack.enter_context(http.stream("GET", f"/v1/jobs/{job.id}/events", headers=STREAM)) for _ in range(30)
        ]
        streams = [read_events(answer.iter_lines()) for answer in opened]
        assert [next(events)[0] for events in streams] == ["state"] * 30
        assert threading.active_count() < before + 10
        client.cancel(job.id)
        rest = [[(name, number) for name, _, number in events] for events in streams]
    assert rest[0][-1][0] == "end" and rest == [rest[0]] * 30


def test_a_bad_last_event_id_is_refused(http: httpx2.Client, client: Client) -> None:
    job = client.submit(MATMUL)
    refused = http.get(f"/v1/jobs/{job.id}/events", headers={"Last-Event-ID": "x"})
    assert (refused.status_code, refused.json()["field"]) == (422, "last-event-id")
    client.cancel(job.id)


def _stream(http: httpx2.Client, job_id: str, headers: dict[str, str]) -> list[tuple[str, str, str]]:
    with http.stream("GET", f"/v1/jobs/{job_id}/events", headers={**STREAM, **headers}) as answer:
        return list(read_events(answer.iter_lines()))
