"""deploy/settings: every setting of each service with its default, as the service reads it."""

import dataclasses
import tomllib
from pathlib import Path

import pytest
from deploy.manifests import SETTINGS

from rockoon_runtime.settings import SettingsError, load

DIRECTORY = Path(__file__).parents[2] / "deploy/settings"


@pytest.mark.parametrize("service", SETTINGS)
def test_an_example_file_has_every_setting_and_changes_none(service: str) -> None:
    file = DIRECTORY / f"{service}.toml"
    loaded = load(SETTINGS[service], service, file=file, environment={}, arguments={})
    assert loaded.value == SETTINGS[service]()
    text = file.read_text()
    for field in dataclasses.fields(SETTINGS[service]):
        given = field.name in tomllib.loads(text)
        named = f"# {field.name} =" in text or f"_{field.name.upper()}\n" in text
        assert given or named, field.name
        assert loaded.sources[field.name] == (str(file) if given else "default")


@pytest.mark.parametrize("service", SETTINGS)
def test_a_setting_that_does_not_exist_is_refused(service: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text((DIRECTORY / f"{service}.toml").read_text() + "\nlisten_on = 1\n")
    with pytest.raises(SettingsError, match=r"unknown setting 'listen_on' .*settings\.toml"):
        load(SETTINGS[service], service, file=file, environment={}, arguments={})
