"""deploy/compose: a file that docker compose accepts, with images and settings that there are."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from deploy.manifests import ROOT

from rockoon_broker.settings import BrokerSettings
from rockoon_gateway.settings import GatewaySettings
from rockoon_nameserver.settings import NameserverSettings
from rockoon_offset.settings import OffsetSettings
from rockoon_runtime.settings import load

FILE = ROOT.parent / "compose" / "compose.yaml"
# The Go module with which docker compose reads its files; `make helm` loads it.
MODULE = "github.com/compose-spec/compose-go/v2@v2.16.2"
SETTINGS: dict[str, type] = {
    "nameserver": NameserverSettings,
    "broker": BrokerSettings,
    "offset": OffsetSettings,
    "gateway": GatewaySettings,
}


@pytest.fixture
def document() -> Any:
    return yaml.safe_load(FILE.read_text())


def schema() -> Any:
    """The schema of compose files; skips the test if Go's module cache does not have it."""
    if shutil.which("go") is None:
        pytest.skip("there is no go")
    found = subprocess.run(
        ["go", "mod", "download", "-json", MODULE],
        env=os.environ | {"GOPROXY": "off", "GOFLAGS": "-mod=mod"},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(f"go mod download {MODULE} was not run")
    return json.loads(
        (Path(json.loads(found.stdout)["Dir"]) / "schema/compose-spec.json").read_text()
    )


def test_the_schema_of_compose_accepts_the_file_and_refuses_a_typo(document: Any) -> None:
    found = schema()
    validator = jsonschema.validators.validator_for(found)(found)
    assert not [*validator.iter_errors(document)]
    document["services"]["broker"]["volumees"] = []
    assert [*validator.iter_errors(document)]


def test_services_accept_the_settings_and_the_addresses_lead_to_each_other(document: Any) -> None:
    services = document["services"]
    for name, settings_class in SETTINGS.items():
        environment = services[name]["environment"]
        loaded = load(settings_class, name, environment=environment, arguments={})
        assert {f"ROCKOON_{name.upper()}_{each.upper()}" for each in loaded.sources} >= set(
            environment
        )
        assert float(services[name]["stop_grace_period"][:-1]) > loaded.value.drain_seconds_max
        called = [*getattr(loaded.value, "nameservers", ()), *getattr(loaded.value, "etcd", ())]
        for address in called:
            service, _, port = address.partition(":")
            assert service in services[name]["depends_on"]
            assert port in str(
                services[service].get("environment", services[service].get("command"))
            )
        if name == "gateway":
            port = loaded.value.admin_listen.rpartition(":")[2]
            assert loaded.value.admin_advertise == f"gateway:{port}"
        published = services[name]["ports"]
        external = getattr(loaded.value, "advertise_external", "")
        assert not external or f"127.0.0.1:{external.rpartition(':')[2]}:" in published[0]
    version = (ROOT.parents[1] / "services/broker/pyproject.toml").read_text()
    for each in services.values():
        assert f'version = "{each["image"].partition(":")[2]}"' in version
