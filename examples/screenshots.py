"""Makes the pictures of the documents: starts a service on a database of its own, runs short jobs on this machine's
processor, tunes a model, and photographs every page of the dashboard: those of its navigation, and those of one thing.

    python -m examples.screenshots                        # writes docs/images/*.png
    python -m examples.screenshots --records FILE.jsonl   # and a kernel of a GPU that another database has records of

It needs Chromium and the extra ``dev`` (Playwright, Pillow). Pictures have 128 colours, and are cut where they would be
over 200 kB. On a machine that does other work as well, times are worse than they should be.
"""

import argparse
import io
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

from examples.tune_over_http import service_on
from tilewright.api.client import Client, operator_task
from tilewright.api.client_lookups import Task
from tilewright.api.rendering import NAVIGATION
from tilewright.api.requests import ExpressionIn
from tilewright.api.responses import JobOut
from tilewright.core.budget import Budget
from tilewright.service.settings import Settings

IMAGES = Path(__file__).parents[1] / "docs" / "images"
CHROMIUM = Path("/usr/bin/chromium")
WIDE, NARROW = 1400, 390
MOST_BYTES, COLOURS = 200_000, 128
HEIGHTS = (2400, 1900, 1500, 1200, 900, 700)
"""A picture is as high as its page, or the first of these that keeps it under ``MOST_BYTES``."""
SETTLE_MS = 1500
"""For so long a page may draw its charts."""
TEXT = """X: float32[256, 384]
W: float32[384, 256]    # constant
S[i, j] = sum over k < 384 of X[i, k] * W[k, j]
Y[i, j] = max(S[i, j], 0)
"""


def main() -> None:
    """Run the jobs and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES, help="the folder of the pictures")
    parser.add_argument("--trials", type=int, default=48, help="how many candidates a job measures")
    parser.add_argument("--records", type=Path, help="records of a GPU, as `tilewright records export` writes them")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(database_url=f"sqlite:///{folder}/pictures.sqlite3")
        with service_on(settings, console) as client, sync_playwright() as playwright:
            path = str(CHROMIUM) if CHROMIUM.exists() else None
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])

            def photograph(named: Mapping[str, str], width: int = WIDE, theme: str = "light") -> None:
                for name, address in named.items():
                    _photograph(browser, client.address + address, given.out / f"{name}.png", width, theme, console)

            photograph({"overview-empty": "/"})
            jobs = list(_jobs(client, given.trials, console))
            client.freeze("first")
            client.promote("canary", "first")
            photograph({**pages(jobs), "model": f"/models/{_model(client, given.trials, console)}"})
            photograph({"models": "/models"})
            photograph({"job-dark": f"/jobs/{jobs[0].id}"}, theme="dark")
            photograph({"job-phone": f"/jobs/{jobs[0].id}"}, NARROW)
            if given.records is not None:
                with given.records.open(encoding="utf-8") as lines:
                    client.import_records(lines)
                photograph(_gpu_pages(client))
            browser.close()


def _jobs(client: Client, trials: int, console: Console) -> Iterator[JobOut]:
    """Run the jobs one after the other: two searches for one workload, so that they can be compared, and others."""
    product = operator_task("matmul", {"m": 256, "n": 256, "k": 256})
    wanted = [
        ((product,), "model", False),
        ((product,), "random", True),
        ((operator_task("softmax", {"rows": 512, "columns": 512}), ExpressionIn(text=TEXT)), "model", False),
        ((operator_task("layer_norm", {"rows": 256, "columns": 768}),), "model", False),
    ]
    for tasks, strategy, fresh in wanted:
        job = client.submit(*tasks, budget=Budget(trials), strategy=strategy, fresh=fresh)
        for _ in client.events(job.id):
            pass
        job = client.job(job.id)
        console.print(f"job {job.id}: {job.state.value}, {sum(task.trials for task in job.tasks)} trials")
        yield job


def _model(client: Client, trials: int, console: Console) -> str:
    """Add a model of two layers and tune it; return its key."""
    parts: list[tuple[Task, int, str]] = [
        (operator_task("matmul", {"m": 128, "n": 256, "k": 256}), 2, "linear"),
        (operator_task("softmax", {"rows": 128, "columns": 256}), 1, "softmax"),
    ]
    model = client.add_model("two-layers", parts, {"aten.embedding.default": 1})
    job = client.tune_model(model.key, budget=Budget(trials))
    for _ in client.events(job.id):
        pass
    console.print(f"model {model.key[:12]}: {client.job(job.id).state.value}")
    return model.key


def _gpu_pages(client: Client) -> dict[str, str]:
    """Return the page of the layers of the largest product among the records of a GPU, if there are any."""
    found = [job for job in client.jobs() if job.target.startswith("cuda") and job.tasks[0].best]
    best = max(found, key=lambda job: job.tasks[0].flops).tasks[0].best if found else None
    return {"layers-gpu": f"/trials/{best.record_id}/layers"} if best else {}


def pages(jobs: list[JobOut]) -> dict[str, str]:
    """Return name -> address of every page: those of the navigation, and those of one thing."""
    named = {name.lower().replace(" ", "-"): address for address, name in NAVIGATION}
    first, second, third = jobs[:3]
    best = first.tasks[0].best
    compare = f"/compare?job={first.id}&job={second.id}&layer=source"
    return {
        **named,
        "compare": compare,
        "submit": "/submit",
        "submit-expression": f"/submit?job={third.id}&task=1",
        "job": f"/jobs/{first.id}",
        "workload": f"/workloads/{first.tasks[0].workload_key}",
        **({"schedule": f"/jobs/{first.id}/trials/{best.record_id}"} if best else {}),
        **({"layers": f"/trials/{best.record_id}/layers"} if best else {}),
    }


def _photograph(browser: Browser, address: str, path: Path, width: int, theme: str, console: Console) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if theme == "dark" else "light"
    )
    try:
        page = context.new_page()
        answer = page.goto(address, timeout=120_000)
        if answer is None or answer.status >= 400:
            console.print(f"{path.name}: left out, the page answers with {answer.status if answer else 'nothing'}")
            return
        page.wait_for_timeout(SETTLE_MS)
        picture = _small(page, width)
        path.write_bytes(picture)
        console.print(f"{path.name}: {len(picture):,} bytes")
    finally:
        context.close()


def _small(page: Page, width: int) -> bytes:
    """Return a picture of the page from its top, cut so far down that it is small enough."""
    whole = int(page.evaluate("document.documentElement.scrollHeight"))
    picture = b""
    for height in (whole, *(h for h in HEIGHTS if h < whole)):
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, HEIGHTS[0])}
        picture = _in_few_colours(page.screenshot(full_page=True, clip=clip))  # type: ignore[arg-type]
        if len(picture) <= MOST_BYTES:
            break
    return picture


def _in_few_colours(picture: bytes) -> bytes:
    """Return a PNG of a third of the size: pages have few colours."""
    out = io.BytesIO()
    with Image.open(io.BytesIO(picture)) as found:
        found.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    main()
