"""The page that follows a kernel from the expression to the machine instructions, on records that are really compiled:
its links, its numbers against the API, and its looks in a real browser."""

import re
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tilewright.api.client import Client
from tilewright.api.client import operator_task as operator
from tilewright.api.descent import LinkedLayers
from tilewright.core.budget import Budget
from tilewright.core.record import MeasuredOn
from tilewright.core.target import DeviceInfo, Profile, Target, Toolchain
from tilewright.core.trial import Evidence, Failed, Reason, Timed, Trial, TrialStage
from tilewright.db.rows import NewJob, NewTrial
from tilewright.db.store import RecordStore
from tilewright.schedule.sketches import SKETCHES, sketches_for
from tilewright.service.views import Section
from tilewright.te.operators import OPERATORS
from tilewright.tests.api.browser import CHROMIUM, watched
from tilewright.tests.api.filled import operator_task
from tilewright.tests.api.page_numbers import compare
from tilewright.tests.db.fleets import move_job

SM90A = Target("cuda", "sm_90a", (), 132, 16)
PEAKS = {"copy_bytes_per_second": 4e12, "peak_float32_flops_per_second": 6e13}
GPU = MeasuredOn(
    DeviceInfo("Example GPU", SM90A, {"multiprocessors": 132.0}, PEAKS), Toolchain({"nvrtc": "13"}), Profile("cold")
)
SAMPLES = tuple(4e-6 * (1 + n / 400) for n in range(12))
EVIDENCE = Evidence(7, 0.25, 1e-5, 1e-3, True, True, 1e-4, "ab" * 32, 18_432)
PRODUCT = {"m": 64, "n": 64, "k": 77, "dtype": "float16"}
needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium from Debian's packages here")


def keep(store: RecordStore, job: str, operator: str, parameters: dict[str, object], sketch: str | None = None) -> int:
    """Store a job with one timed and one failed trial; return the record of the timed one."""
    task, workload = operator_task(operator, parameters), OPERATORS[operator].workload(parameters)
    chosen = sketches_for(workload, SM90A)[0] if sketch is None else SKETCHES[sketch]
    schedule = chosen.space(workload, SM90A, limit=16).schedule(0)
    store.create_job(NewJob(job, "queued", (task,), Budget(2), "random", 1, "cuda", "local", "cold"))
    move_job(store, job, {"queued": ("running",)})
    store.set_device(job, GPU.device)
    store.begin_task(job, 0)
    good = Trial(schedule, Timed(SAMPLES, 10, SAMPLES[:5]), evidence=EVIDENCE)
    bad = Trial(schedule, Failed(TrialStage.CHECK, Reason.WRONG_RESULT, "C[0] is <b>1</b>"))
    first, _ = (store.add_trial(NewTrial(job, 0, n, task.workload_key, GPU, t, 1.0)) for n, t in enumerate((good, bad)))
    store.note_task(job, 0, stop_reason="trials")
    move_job(store, job, {"running": ("succeeded",)})
    return first.record_id


@pytest.fixture(scope="module")
def record(store: RecordStore) -> int:
    """Return a product of 16-bit floats that a sketch without matrix instructions writes."""
    keep(store, "map", "elementwise", {"shape": [4096], "functions": ["add1"]})
    keep(store, "other", "matmul", PRODUCT, "cuda_loops")
    return keep(store, "product", "matmul", PRODUCT, "cuda_loops")


def test_the_api_links_every_layer_to_the_one_above(client: Client, record: int) -> None:
    told = client.source(record)
    by_title = {s.title: s for s in told.sections}
    linked = [s for s in told.sections if s.above is not None]
    assert [s.above for s in linked] == ["expression", *(s.title for s in linked[:-1])]
    for section in linked:
        above = len(by_title[section.above or ""].text.splitlines())
        assert len(section.origins) == len(section.text.splitlines())
        assert all(1 <= n <= above for origins in section.origins for n in origins)
    assert by_title["source"].linked is not None and by_title["source"].linked >= 0.9


def test_matrix_instructions_are_lost_at_the_sketch(client: Client, http: httpx2.Client, record: int) -> None:
    counts = [(layer.title, layer.count) for layer in client.source(record).matrix_layers]
    assert counts[0] == ("expression", 1) and all(count == 0 for _, count in counts[1:])
    page = http.get(f"/trials/{record}/layers").text
    (lost,) = re.findall(r'<tr class="lost"><th scope="row">([^<]+)', page)
    assert lost == "IR of the sketch" and "NO MATRIX INSTRUCTIONS" in page


def test_relatives_are_the_task_the_device_the_same_schedule_models_and_releases(
    client: Client, http: httpx2.Client, record: int
) -> None:
    model = client.add_model("user", [(operator("matmul", PRODUCT), 3, "matmul")])
    found = client.relatives(record)
    assert [(one.key, one.name, one.count) for one in found.models] == [(model.key, "user", 3)]
    assert {(n.job_id, n.same_task) for n in found.neighbours} == {("product", True), ("map", False)}
    assert [u.job_id for u in found.uses] == ["product", "other"] and found.uses[0].record_id == record
    assert found.releases == ()
    client.freeze("first")
    (release,) = client.relatives(record).releases
    assert release.name == "first" and release.record_id in {u.record_id for u in found.uses}
    assert '<a href="/releases/first">first</a>' in http.get(f"/trials/{record}/layers").text


def test_what_is_chosen_is_marked_without_scripts(client: Client, http: httpx2.Client, record: int) -> None:
    linked = LinkedLayers([Section(**s.model_dump()) for s in client.source(record).sections])
    source = next(n for n, s in enumerate(linked.layers) if s.title == "source")
    line = next(n for n, text in enumerate(linked.lines[source], start=1) if "for (" in text)
    page = http.get(f"/trials/{record}/layers?a=0&b=1&c={source}&line={source}:{line}").text
    marked = re.findall(r'id="l(\d+)-(\d+)" class="l (own|kin)"', page)
    related = linked.related(source, line)
    expected = {(str(at), str(n)) for at in (0, 1, source) for n in related[at]}
    assert {(at, n) for at, n, _ in marked} == expected
    assert len(related[1]) == 1 and re.search(r"\bfor ", linked.lines[1][min(related[1]) - 1])
    assert http.get(f"/trials/{record}/layers?line=99:1").status_code == 200  # a stale address shows the usual line
    assert http.get(f"/trials/{record}/layers?line=x").status_code == 422


def test_a_failed_trial_shows_why_and_has_no_time(http: httpx2.Client, record: int) -> None:
    page = http.get(f"/trials/{record + 1}/layers").text
    assert "wrong result" in page and "&lt;b&gt;1&lt;/b&gt;" in page and 'id="samples"' not in page
    assert http.get("/trials/987654321/layers").status_code == 404


@pytest.mark.browser
@needs_chromium
def test_lines_are_followed_and_every_number_is_the_apis(
    browser: Browser, address: str, record: int, http: httpx2.Client
) -> None:
    with watched(browser, address, width=1400) as seen:
        page = seen.page
        page.set_default_timeout(120_000)
        page.goto(f"/trials/{record}/layers?a=1&b=5")
        expect(page.locator("#layers[data-ready=true]")).to_be_visible(timeout=60_000)
        assert compare(page, http).numbers >= 70
        first = page.locator(".lines").first
        server = page.locator(".l.own, .l.kin").evaluate_all("lines => lines.map((line) => line.id)")
        first.focus()
        page.keyboard.press("Home")
        expect(page.locator("#l1-1")).to_have_class("l own")
        expect(page.locator("#trace tr.best td.mono")).to_have_text("1")
        assert page.url.endswith("line=1%3A1")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        expect(page.locator("#l1-3")).to_have_class("l own")
        page.reload()
        expect(page.locator("#l1-3")).to_have_class("l own")
        expect(page.locator("#layers[data-ready=true]")).to_be_visible(timeout=60_000)
        scripted = page.locator(".l.own, .l.kin").evaluate_all("lines => lines.map((line) => line.id)")
        plain = seen.page.request.get(page.url).text()
        assert sorted(scripted) == sorted(re.findall(r'id="(l\d+-\d+)" class="l (?:own|kin)"', plain))
        assert server and page.locator("#roofline .dot").count() == 2  # this record, and another task of the device
        page.locator("#l1-1").hover()
        expect(page.locator("#l1-1")).to_have_class("l own")
        page.mouse.move(5, 5)
        expect(page.locator("#l1-3")).to_have_class("l own")  # what was chosen is marked again
        for figure, head, rows in (
            ("samples-figure", "run,number,seconds [s]", 17),
            ("roofline-figure", "record_id,what,flops_per_byte [FLOP/B],seconds [s],rate [FLOP/s]", 2),
            ("mix", "class,instructions,share_of_largest [fraction]", None),
        ):
            with page.expect_download() as download:
                page.locator(f"#{figure} .csv").click()
            lines = Path(download.value.path()).read_text().splitlines()
            assert lines[0] == head and len(lines) == 1 + (rows or page.locator("#mix tbody tr").count())
