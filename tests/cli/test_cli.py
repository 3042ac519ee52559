"""The command line as a user meets it: a real database, a real service, real kernels."""

import json
import re
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.api.client import Client
from tilewright.te.json import workload_to_json
from tilewright.te.key import workload_key
from tilewright.te.operators import OPERATORS
from tilewright.te.text import workload_text
from tilewright.tests.cli.commands import LOG, MATMUL, serving, started, tilewright, tilewright_process, wait_for
from tilewright.tests.service.fork_server import ForkServer


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose database holds one tuned matrix product."""
    folder = tmp_path_factory.mktemp("cli")
    done = tilewright_process(folder, "tune", *MATMUL, "--trials", "6")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "GFLOP/s" in done.stdout and "again" in done.stdout and "/jobs/" in done.stdout
    return folder


@pytest.fixture(scope="module")
def served(forks: ForkServer, tuned: Path) -> Iterator[str]:
    """Give the address of a service on that database, to which commands without ``--url`` speak too."""
    with serving(forks, tuned) as (address, _):
        yield address


@pytest.mark.usefixtures("served")
def test_best_is_served_by_operator_and_by_key(tuned: Path) -> None:
    by_name = json.loads(tilewright(tuned, "--json", "best", *MATMUL).stdout)
    assert by_name["match"] == ["exact"]
    assert by_name["seconds"] > 0
    by_key = json.loads(tilewright(tuned, "--json", "best", by_name["workload_key"]).stdout)
    assert by_key == by_name


@pytest.mark.usefixtures("served")
def test_the_job_and_its_trials_are_listed(tuned: Path) -> None:
    jobs = json.loads(tilewright(tuned, "--json", "job", "list").stdout)
    assert {job["state"] for job in jobs} == {"succeeded"}
    trials = json.loads(tilewright(tuned, "--json", "job", "trials", jobs[-1]["id"]).stdout)
    assert sorted(trial["sequence"] for trial in trials) == list(range(6))
    for columns, created in (("80", False), ("120", True)):
        lines = tilewright(tuned, "job", "list", COLUMNS=columns).stdout.splitlines()
        assert max(map(len, lines)) <= int(columns)
        (first, *_) = (line for line in lines if line.startswith(jobs[-1]["id"]))  # whole, to be copied
        assert first.split()[1:3] == ["succeeded", "matmul"] and first.split()[-1 - created].endswith(("x", "-"))
        assert (jobs[-1]["created_at"][:19] in first) == created
    shown = tilewright(tuned, "job", "show", jobs[-1]["id"])
    assert "matmul" in shown.stdout and "succeeded" in shown.stdout


@pytest.mark.usefixtures("served")
def test_explain_shows_every_layer(tuned: Path) -> None:
    told = json.loads(tilewright(tuned, "--json", "explain", *MATMUL).stdout)
    languages = {section["language"] for section in told["sections"]}
    assert {"ir", "llvm-ir", "assembly"} <= languages
    assert told["instructions"]
    text = tilewright(tuned, "explain", *MATMUL).stdout
    assert "roofline" in text and "define" in text


@pytest.mark.usefixtures("served")
def test_code_for_an_architecture_is_explained_without_such_a_device(tuned: Path) -> None:
    asked = ("explain", "softmax", "rows=64", "columns=512")
    told = json.loads(tilewright(tuned, "--json", *asked, "--target", "cuda:sm_90a").stdout)
    sections = {section["title"]: section for section in told["sections"]}
    assert "__global__" in sections["source"]["text"] and sections["source"]["language"] == "cuda-c++"
    assert told["schedule"]["sketch"].startswith(("cuda", "gpu"))
    arm = json.loads(tilewright(tuned, "--json", *asked, "--target", "llvm:aarch64+sve").stdout)
    assert arm["target"] == "llvm aarch64" and arm["instructions"]["vector_fma"] > 0
    assert re.search(r"fmla\s+z\d+\.s", arm["sections"][-1]["text"])
    elsewhere = tilewright(tuned, "tune", *MATMUL, "--target", "llvm:aarch64+sve")
    assert elsewhere.returncode == 2 and "cannot be timed here" in elsewhere.stderr
    unknown = tilewright(tuned, *asked, "--target", "cuda:sm_12345")
    assert unknown.returncode == 2 and "sm_12345" in unknown.stderr and "sm_90" in unknown.stderr


@pytest.mark.usefixtures("served")
def test_the_matrix_layer_shows_mfma_and_an_unknown_layer_is_refused(tuned: Path) -> None:
    product = ("explain", "matmul", "m=256", "n=192", "k=128", "dtype=float16", "--target", "amdgpu:gfx942")
    shown = tilewright(tuned, *product, "--layer", "matrix")
    assert shown.returncode == 0 and re.search(r"MFMA, .*: \d+ v_mfma_f32_16x16x16_f16", shown.stdout), shown.stdout
    told = json.loads(tilewright(tuned, "--json", *product, "--layer", "matrix").stdout)
    assert [section["title"] for section in told["sections"]] == ["matrix instructions"]
    unknown = tilewright(tuned, *product, "--layer", "ptx")
    assert unknown.returncode == 2 and "no layer of this schedule has 'ptx' in its title" in unknown.stderr
    assert "matrix instructions" in unknown.stderr and len(unknown.stderr.strip().splitlines()) == 1


@pytest.mark.usefixtures("served")
def test_a_device_that_is_not_there_is_one_line_and_no_job(tuned: Path) -> None:
    before = tilewright(tuned, "--json", "job", "list").stdout
    refused = tilewright(tuned, "tune", *MATMUL, "--target", "cuda:99")
    assert refused.returncode == 2 and len(refused.stderr.strip().splitlines()) == 1, refused.stderr
    assert "cuda" in refused.stderr and tilewright(tuned, "--json", "job", "list").stdout == before


@pytest.mark.usefixtures("served")
def test_export_writes_files(tuned: Path, tmp_path: Path) -> None:
    done = tilewright(tuned, "--json", "export", str(tmp_path / "out"), *MATMUL)
    assert done.returncode == 0, done.stderr
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    built = ["kernel.h", "kernel.json", "kernel.ll", "kernel.o", "kernel.s"]
    assert names == json.loads(done.stdout)["files"] == [*built, "measured.json", "measured.o"]
    (tmp_path / "file").write_text("in the way")
    refused = tilewright(tuned, "export", str(tmp_path / "file"), *MATMUL)
    assert refused.returncode == 2 and "cannot write to" in refused.stderr


def test_records_travel_to_another_database(tuned: Path, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    assert tilewright(tuned, "records", "export", str(file)).returncode == 0
    kinds = [json.loads(line)["kind"] for line in file.read_text().splitlines()]
    assert kinds.count("record") == 6
    assert tilewright(tmp_path, "records", "import", str(file)).returncode == 0
    there = json.loads(tilewright(tmp_path, "--json", "best", *MATMUL).stdout)
    here = json.loads(tilewright(tuned, "--json", "best", *MATMUL).stdout)
    assert (there["seconds"], there["schedule"]) == (here["seconds"], here["schedule"])


@pytest.mark.usefixtures("served")
def test_releases_are_made_compared_and_read(tuned: Path, tmp_path: Path) -> None:
    made = tilewright(tuned, "release", "make", "november", COLUMNS="80")
    (listed,) = json.loads(tilewright(tuned, "--json", "release", "list").stdout)
    assert made.returncode == 0 and "november" in made.stdout
    assert listed["sha256"] in "".join(made.stdout.split())  # whole, though the terminal is narrow
    again = tilewright(tuned, "release", "make", "november")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1) and "releases never change" in again.stderr
    assert tilewright(tuned, "release", "rollback", "stable").returncode == 2
    compared = tilewright(tuned, "release", "diff", "november", "november").stdout
    assert compared.strip() == f"0 changed, 0 added, 0 removed, {listed['entries']} the same"
    file = tmp_path / "november.twb"
    assert tilewright(tuned, "release", "fetch", "november", str(file), "--header").returncode == 0
    assert file.stat().st_size == listed["bundle_bytes"] and (tmp_path / "tilewright_bundle.h").is_file()
    workload = json.loads(tilewright(tuned, "--json", "best", *MATMUL).stdout)["workload_key"]
    assert json.loads(tilewright(tmp_path, "release", "find", str(file), workload).stdout)["workload_key"] == workload
    assert tilewright(tmp_path, "release", "find", str(file), "0" * 64).returncode == 3
    file.write_bytes(file.read_bytes()[:-1])
    cut = tilewright(tmp_path, "release", "find", str(file), workload)
    assert cut.returncode == 2 and "a part of one" in cut.stderr


def test_a_workload_file_can_be_tuned(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    file.write_text(json.dumps(workload_to_json(OPERATORS["softmax"].workload({"rows": 7, "columns": 33}))))
    done = tilewright(tmp_path, "--json", "tune", "--workload", str(file), "--trials", "3", "--strategy", "random")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tasks"][0]["trials"] == 3


def test_a_workload_may_be_a_text(tmp_path: Path) -> None:
    softmax = OPERATORS["softmax"].workload({"rows": 7, "columns": 33})
    (file := tmp_path / "w.txt").write_text(workload_text(softmax))
    asked = tilewright(tmp_path, "best", "--workload", str(file))
    assert asked.returncode == 3 and workload_key(softmax) in asked.stderr
    file.write_text("X: float32[4]\nY[i] = X[i] +")
    refused = tilewright(tmp_path, "best", "--workload", str(file))
    assert refused.returncode == 2
    assert refused.stderr == f"error: {file} is no workload: line 2: the expression ends too early [workload]\n"
    file.write_bytes(b"\xff\xfe")
    assert "is no text" in tilewright(tmp_path, "best", "--workload", str(file)).stderr


def test_a_running_service_is_spoken_to(tuned: Path, served: str, tmp_path: Path) -> None:
    asked = ("--url", served, "--json", "tune", *MATMUL, "--trials", "2", "--seed", "9", "--no-prior")
    job = json.loads(tilewright(tmp_path, *asked).stdout)
    assert (job["state"], job["prune"], job["prior"]) == ("succeeded", True, False)
    lines = tilewright(tmp_path, "--url", served, "records", "export").stdout.splitlines()
    assert sum(json.loads(line)["kind"] == "record" for line in lines) >= 8
    assert not (tmp_path / "t.sqlite3").exists()  # nothing was done here


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["tune", "matmull", "m=2"], 2, "matmull"),
        (["tune", "matmul", "m=-1", "n=2", "k=2"], 2, "m"),
        (["tune", "matmul", "m=99999999999999", "n=2", "k=2"], 2, "m"),
        (["tune", "matmul", "m=2", "n=2", "k=2", "dtype=float31"], 2, "float31"),
        (["tune", "matmul", "m"], 2, "NAME=VALUE"),
        (["tune", *MATMUL, "k=5"], 2, "k is given twice; allowed: once [k]"),
        (["tune", *MATMUL, "--workload", "w.json"], 2, "operator 'matmul' and --workload w.json are given"),
        (["tune"], 2, "--workload"),
        (["tune", "--workload", "none.json"], 2, "none.json"),
        (["tune", *MATMUL, "--strategy", "guess"], 2, "guess"),
        (["tune", *MATMUL, "--target", "abacus"], 2, "abacus"),
        (["tune", *MATMUL, "--executor", "cloud"], 2, "cloud"),
        (["tune", *MATMUL, "--trials", "0"], 2, "trials"),
        (["best", "softmax", "rows=3", "columns=3"], 3, ""),
        (["best", "0" * 64], 3, "0000"),
        (["best", "0123456789abcdef"], 2, "'0123456789abcdef' is no workload key; allowed: its 64 hexadecimal digits"),
        (["job", "show", "no-such-job"], 3, "no-such-job"),
        (["job", "cancel", "no-such-job"], 3, "no-such-job"),
        (["--url", "http://127.0.0.1:1", "devices"], 4, "127.0.0.1:1"),
        (["--url", "127.0.0.1:8421", "devices"], 2, "'127.0.0.1:8421' is no address of a service; allowed: http://"),
        (["--url", "http://[::1", "devices"], 2, "allowed: http://HOST:PORT"),
        (["--url", "http://127.0.0.1:0", "devices"], 2, "allowed: http://HOST:PORT"),
        (["explain", *MATMUL, "--target", "abacus"], 2, "no code is made for 'abacus'; allowed: llvm, cuda, or"),
        (["explain", *MATMUL, "--target", "amdgpu"], 2, "amdgpu:gfx942"),
        (["db", "backup", "none/copy"], 2, "none is no folder"),
        (["records", "import-log", __file__, *MATMUL], 2, "this is no log of the form triton: Extra data"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(
    tuned: Path, served: str, arguments: list[str], code: int, word: str
) -> None:
    done = tilewright(tuned, "--url", served, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_junk_is_no_workload(tmp_path: Path) -> None:
    file = tmp_path / "junk.json"
    file.write_text("not json")
    alone = tilewright_process(tmp_path, "tune", "--workload", str(file))
    assert alone.returncode == 2 and alone.stderr == tilewright(tmp_path, "tune", "--workload", str(file)).stderr
    for text in ('{"inputs": []}', "[1]", '"NaN"'):
        file.write_text(text)
        done = tilewright(tmp_path, "tune", "--workload", str(file))
        assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_file_that_is_no_copy_and_records_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "junk"
    file.write_bytes(b"\x8f\xff junk\n")
    for arguments, words in (
        (["db", "restore", str(file)], "is no copy of a database; SQLite is to be restored"),
        (["records", "import", str(file)], "is not a text file: invalid start byte"),
    ):
        done = tilewright(tmp_path, *arguments)
        assert done.returncode == 2 and words in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_folders_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    shown = tilewright_process(tmp_path, "explain", *MATMUL, "--target", "cuda:sm_90a", "--layer", "PTX")
    assert shown.returncode == 0 and ".entry" in shown.stdout, shown.stderr  # a cache saves time, and no more
    refused = tilewright(tmp_path, "job", "list", TILEWRIGHT_LOCK_FOLDER=str(file))
    assert refused.returncode == 2 and f"setting lock_folder: {file} is no folder" in refused.stderr


def test_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = tilewright(tmp_path, "serve", "--port", str(port))
    assert done.returncode == 4
    assert str(port) in done.stderr and "in use" in done.stderr
    assert done.stdout == ""  # nothing is said to be there that is not


@pytest.mark.parametrize(("host", "more"), [("127.0.0.1", ""), ("0.0.0.0", " and on all other addresses")])
def test_the_address_is_told_once_the_service_answers_there(
    forks: ForkServer, tmp_path: Path, host: str, more: str
) -> None:
    with started(forks, tmp_path, "serve", "--port", "0", "--host", host, TILEWRIGHT_TOKEN="a" * 20):
        wait_for(tmp_path / LOG, "(Ctrl-C stops)")
        (address, others) = re.findall(r"dashboard and API on (\S+)(.*)  \(", (tmp_path / LOG).read_text())[0]
        assert others.startswith(more) and bool(others) == bool(more)
        with Client(address, token="a" * 20, retries=0) as client:
            assert client.version().api == "v1"


def test_a_database_of_a_newer_program_is_left_alone(tmp_path: Path) -> None:
    assert tilewright(tmp_path, "job", "list").returncode == 0
    database = sqlite3.connect(tmp_path / "t.sqlite3")
    database.execute("update alembic_version set version_num = '9999'")
    database.execute("delete from compatible_programs")
    database.commit()
    database.close()
    done = tilewright(tmp_path, "job", "list")
    assert done.returncode == 4
    assert "newer" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_database_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "t.sqlite3").mkdir()
    done = tilewright(tmp_path, "job", "list")
    assert done.returncode == 4
    assert "t.sqlite3" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    file = sqlite3.connect(tmp_path / "t.sqlite3")
    file.executescript("CREATE TABLE jobs (x)")
    for command in (["job", "list"], ["db", "upgrade"]):
        done = tilewright(tmp_path, *command)
        assert done.returncode == 4 and len(done.stderr.strip().splitlines()) == 1
        assert "has a table jobs, and nothing says which version of Tilewright made it: it is another" in done.stderr
    assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("jobs",)]
    file.close()


def test_the_database_is_upgraded_on_request(tmp_path: Path) -> None:
    first = json.loads(tilewright(tmp_path, "--json", "db", "upgrade").stdout)
    assert first["before"] != first["now"]
    again = json.loads(tilewright(tmp_path, "--json", "db", "upgrade").stdout)
    assert again["before"] == again["now"] == first["now"]
