"""What `deploy/` starts: an image, manifests that Kubernetes takes, a Helm chart that says the same, and units of
systemd, all with commands that exist."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from tilewright.cli.main import app
from tilewright.service.metrics import Metrics
from tilewright.service.settings import Settings

ROOT = Path(__file__).parents[1]
KUBERNETES, SYSTEMD = ROOT / "deploy" / "kubernetes", ROOT / "deploy" / "systemd"
CHART, CONTAINERFILE = ROOT / "deploy" / "helm" / "tilewright", ROOT / "deploy" / "container" / "Containerfile"
Document = dict[str, Any]


def documents() -> Iterator[tuple[str, Document]]:
    for file in sorted(KUBERNETES.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield file.name, document


def pod_specs(value: Any) -> Iterator[Document]:
    """Every specification of a pod in a document, at any depth."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_specs(inner)


def containers() -> Iterator[Document]:
    for _, document in documents():
        for spec in pod_specs(document):
            yield from (*spec["containers"], *spec.get("initContainers", []))


def test_every_document_has_a_kind_a_version_and_a_name_of_its_own() -> None:
    named = [(d["apiVersion"], d["kind"], d["metadata"]["name"]) for n, d in documents() if n != "kustomization.yaml"]
    assert len(named) == len(set(named)) >= 8
    assert {kind for _, kind, _ in named} >= {"Deployment", "StatefulSet", "DaemonSet", "RayCluster", "Service"}


def test_selectors_choose_the_pods_of_their_own() -> None:
    found = [d for _, d in documents()]
    for document in found:
        if document["kind"] in ("Deployment", "StatefulSet", "DaemonSet"):
            labels = document["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()
    pods = [d["spec"]["template"]["metadata"]["labels"] for d in found if d["kind"] in ("Deployment", "StatefulSet")]
    for service in (d for d in found if d["kind"] == "Service"):
        assert sum(service["spec"]["selector"].items() <= labels.items() for labels in pods) == 1


def test_every_container_has_an_image_and_bounds() -> None:
    for container in containers():
        assert container["name"] and container["image"] in ("tilewright", "postgres:17")
        if container["name"] != "upgrade":
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]


def test_no_variable_of_a_service_is_taken_for_a_setting() -> None:
    """Kubernetes would set TILEWRIGHT_PORT to an address, after the Service of that name."""
    for name, document in documents():
        if name != "postgresql.yaml":
            assert all(spec["enableServiceLinks"] is False for spec in pod_specs(document))


def test_secrets_are_referred_to_and_settings_exist() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    literals = [literal.partition("=")[0] for literal in kustomization["secretGenerator"][0]["literals"]]
    known = {f"TILEWRIGHT_{name.upper()}" for name in Settings.model_fields}
    for container in containers():
        for variable in container.get("env", []):
            name = variable["name"]
            assert not name.startswith("TILEWRIGHT_") or name in known
            if name in ("TILEWRIGHT_TOKEN", "TILEWRIGHT_DATABASE_URL", "POSTGRES_PASSWORD"):
                assert variable["valueFrom"]["secretKeyRef"] == {"name": "tilewright", "key": name}
                assert name in literals
            if name == "TILEWRIGHT_ALLOWED_HOSTS":
                assert "localhost" in json.loads(variable["value"])  # as the probes say


def test_the_front_end_is_reached_with_a_token_and_workers_have_time_to_drain() -> None:
    kinds = ("Deployment", "DaemonSet")
    by_name = {d["metadata"]["name"]: d for _, d in documents() if d["kind"] in kinds}
    (front,) = pod_specs(by_name["tilewright"])
    names = [variable["name"] for variable in front["containers"][0]["env"]]
    assert {"TILEWRIGHT_TOKEN", "TILEWRIGHT_HOST"} <= set(names)
    for name in ("tilewright-worker", "tilewright-ray-worker"):
        (spec,) = pod_specs(by_name[name])
        assert spec["terminationGracePeriodSeconds"] > 120
        assert "TILEWRIGHT_TOKEN" not in [variable["name"] for variable in spec["containers"][0]["env"]]


def test_commands_exist() -> None:
    lines = [c["command"] for c in containers() if c.get("command", ["-"])[0] == "tilewright"]
    for unit in SYSTEMD.glob("tilewright*.service"):
        lines.append(shlex.split(read_unit(unit)["Service"]["ExecStart"]))
    assert len(lines) >= 6
    group = get_command(app)
    for line in lines:
        command, rest = group, line[1:]
        while (inner := getattr(command, "commands", {}).get(rest[0] if rest else "")) is not None:
            command, rest = inner, rest[1:]
        assert command is not group, f"there is no command {line}"
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= options


def read_unit(file: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(file.read_text())
    return parser


@pytest.mark.parametrize("file", sorted(SYSTEMD.glob("*.service")), ids=lambda file: file.name)
def test_units_of_systemd_say_how_they_start_and_are_restarted(file: Path) -> None:
    unit = read_unit(file)
    assert unit["Unit"]["Description"] and unit["Install"]["WantedBy"] == "multi-user.target"
    assert unit["Service"]["ExecStart"].startswith("/") and unit["Service"]["Restart"] == "always"
    assert unit["Service"]["User"] == "tilewright"
    assert "PASSWORD" not in file.read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("file", sorted(SYSTEMD.glob("*.service")), ids=lambda file: file.name)
def test_systemd_knows_every_line(file: Path) -> None:
    told = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60)
    assert "Unknown" not in told.stderr and "Failed to parse" not in told.stderr


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kustomize_builds_them() -> None:
    built = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    found = list(yaml.safe_load_all(built.stdout))
    (secret,) = [d["metadata"]["name"] for d in found if d["kind"] == "Secret"]
    for document in found:
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == "tilewright"
        for spec in pod_specs(document):
            for container in spec["containers"]:
                assert container["image"].startswith(("registry.example/tilewright:", "postgres:"))
                for variable in container.get("env", []):
                    reference = variable.get("valueFrom", {}).get("secretKeyRef", {"name": secret})
                    assert reference["name"] in (secret, "tilewright-auth")


def value_of(expression: str, values: Document) -> Any:
    """What stands between the braces of a template: a value, and the functions that it is piped through."""
    name, *functions = (word.strip() for word in expression.split("|"))
    found: Any = "tilewright"
    if name != ".Release.Name":
        assert name.startswith(".Values."), f"{expression!r} is more than this test understands"
        found = values
        for part in name.removeprefix(".Values.").split("."):
            found = found[part]  # KeyError: the chart has no such value
    for function in functions:
        word, _, argument = function.partition(" ")
        if word in ("toJson", "quote"):
            found = json.dumps(found)
        else:
            assert word == "nindent", f"{function!r} is more than this test understands"
            found = "\n" + textwrap.indent(found, " " * int(argument))
    return found


def rendered(template: str, values: Document) -> str:
    """A template with the values of the chart, of which it uses little: values, conditions on one, toYaml, toJson,
    quote and nindent."""

    def condition(found: re.Match[str]) -> str:
        return found[2] if value_of(found[1], values) else ""

    def value(found: re.Match[str]) -> str:
        space, trims, expression = found.groups()
        if expression.startswith("toYaml "):
            name, _, functions = expression.removeprefix("toYaml ").partition(" | ")
            text = yaml.safe_dump(value_of(name, values), sort_keys=False).rstrip()
            shown = value_of(f".Values.text | {functions}", {"text": text})
        else:
            shown = value_of(expression, values)
        return f"{'' if trims else space}{shown}"

    text = re.sub(r"\{\{- if (\S+) \}\}\n(.*?)\{\{- end \}\}\n", condition, template, flags=re.DOTALL)
    return re.sub(r"( ?)\{\{(-?) (.*?) \}\}", value, text)


def chart(values: Document) -> list[Document]:
    templates = sorted((CHART / "templates").glob("*.yaml"))
    return [d for file in templates for d in yaml.safe_load_all(rendered(file.read_text(), values)) if d is not None]


def test_the_chart_says_what_the_manifests_say() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (about["apiVersion"], about["appVersion"]) == ("v2", version) and values["image"].endswith(f":{version}")
    plain = [d for name, d in documents() if name in ("service.yaml", "workers.yaml", "ray.yaml")]
    by_name = {(d["kind"], d["metadata"]["name"]): d for d in plain}
    for document in chart({**values, "image": "tilewright"}):
        assert document == by_name.pop((document["kind"], document["metadata"]["name"]))
    assert not by_name
    alone = chart({**values, "workers": {"enabled": False}, "ray": {"enabled": False}})
    assert [d["kind"] for d in alone] == ["Service", "Deployment"]
    with pytest.raises(KeyError):
        chart({**values, "service": {}})


@pytest.mark.skipif(shutil.which("helm") is None, reason="no helm here")
def test_helm_renders_the_same() -> None:
    told = subprocess.run(["helm", "template", "tilewright", str(CHART)], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    ours = chart(yaml.safe_load((CHART / "values.yaml").read_text()))
    theirs = [document for document in yaml.safe_load_all(told.stdout) if document is not None]

    def key(document: Document) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    assert sorted(theirs, key=key) == sorted(ours, key=key)


def test_the_image_is_made_of_what_is_there_and_runs_as_nobody_special() -> None:
    text = re.sub(r"\\\n\s*", "", CONTAINERFILE.read_text())
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    stages = [rest.split()[0] for word, rest in lines if word == "FROM"]
    base = dict(rest.split("=") for word, rest in lines if word == "ARG")["BASE"]
    assert stages == ["${BASE}"] * 2 and "/" not in base and ":" in base
    last = [(word, rest) for word, rest in lines[[word for word, _ in lines].index("FROM", 1) :]]
    assert dict(last)["USER"] not in ("0", "root") and "EXPOSE" in dict(last)
    for word, rest in lines:
        if word == "COPY" and not rest.startswith("--from="):
            assert (ROOT / rest.split()[0]).exists()
    extras = re.search(r"\.\[([a-z,]+)\]", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras is not None and set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    health, start = (json.loads(rest[rest.index("[") :]) for word, rest in last if word in ("HEALTHCHECK", "CMD"))
    (address,) = re.findall(r"127\.0\.0\.1:(\d+)(/\w+)", health[-1])
    assert int(address[0]) == Settings.model_fields["port"].default and start == ["tilewright", "serve"]
    assert address[1] in json.loads((ROOT / "api" / "openapi.json").read_text())["paths"]


def test_boards_and_alarms_use_figures_that_there_are() -> None:
    endings = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    known = {figure.name + end for figure in Metrics().registry.collect() for end in endings[figure.type]}
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
    board = json.loads((ROOT / "deploy" / "grafana" / "tilewright.json").read_text())
    queries = [rule["expr"] for rule in rules]
    queries += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    handbook = (ROOT / "docs" / "operations.md").read_text()
    assert re.findall(r"^### (Tilewright\w+)$", handbook, re.MULTILINE) == [rule["alert"] for rule in rules]
    assert len(queries) > 20 and len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for rule in rules:
        assert rule["annotations"].keys() == {"summary", "action"} and rule["labels"]["severity"] in ("page", "ticket")
    for query in queries:
        assert set(re.findall(r"tilewright_\w+", query)) <= known, query
