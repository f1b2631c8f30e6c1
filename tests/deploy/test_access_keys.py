"""Access keys in the manifests: on in all of production; secrets only from Secrets."""

from pathlib import Path

import pytest
from deploy.manifests import ROOT, Document, Overlay, build, containers, service_of
from deploy.pods import (
    CLIENT_SECRETS,
    CLIENT_SECRETS_FILE,
    CLUSTER_SECRET,
    CLUSTER_SECRET_FILE,
    secret_mounts,
)

from rockoon.net.access import from_environment


@pytest.fixture
def production() -> Overlay:
    return build(ROOT / "overlays/production")


def in_secrets(container: Document) -> dict[str, tuple[str, str]]:
    """Return variables from Secrets: name to the Secret and its key."""
    references = {
        each["name"]: each["valueFrom"]["secretKeyRef"]
        for each in container["env"]
        if "secretKeyRef" in each.get("valueFrom", {})
    }
    return {name: (found["name"], found["key"]) for name, found in references.items()}


def test_every_service_wants_signed_calls_and_signs_with_the_same_secret(
    production: Overlay,
) -> None:
    for workload, container in production.services():
        assert production.settings(workload, container).value.access == "on"
        places = {secret: path for path, secret in secret_mounts(workload, container).items()}
        named = production.settings(workload, container).value.cluster_secret_file
        assert named == f"{places[CLUSTER_SECRET]}/{CLUSTER_SECRET_FILE}"


def test_a_gateway_has_the_secrets_of_its_clients_in_a_file_of_their_own(
    production: Overlay,
) -> None:
    (found,) = [each for each in production.services() if service_of(each[1]) == "gateway"]
    places = {secret: path for path, secret in secret_mounts(*found).items()}
    named = production.settings(*found).value.client_secrets
    assert str(named) == f"{places[CLIENT_SECRETS]}/{CLIENT_SECRETS_FILE}"


def test_jobs_sign_their_calls(production: Overlay, tmp_path: Path) -> None:
    assert production.jobs
    for job in production.jobs:
        for container in containers(job):
            assert in_secrets(container) == {"ROCKOON_ACCESS_KEY": ("rockoon-client-access", "key")}
            variables = production.environment(job, container)
            (place,) = [
                path
                for path, secret in secret_mounts(job, container).items()
                if secret == "rockoon-client-access"
            ]
            assert variables["ROCKOON_ACCESS_SECRET_FILE"] == f"{place}/secret"
            # `rockoon access create --secret-file` ends the line.
            (tmp_path / "secret").write_text("what-only-the-jobs-here-know\n")
            file = {"ROCKOON_ACCESS_SECRET_FILE": str(tmp_path / "secret")}
            key = from_environment(variables | file)
            assert key is not None
            assert key.secret == "what-only-the-jobs-here-know"
