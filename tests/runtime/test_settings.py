"""Settings come from four sources with increasing precedence, and a typo is never silent."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from rockoon_runtime.settings import SettingsError, load, render, setting


@dataclass(frozen=True)
class Sample:
    """A service's settings."""

    listen: str = setting("127.0.0.1:0", "where to listen")
    flush: str = setting("sync", "when to acknowledge", choices=("sync", "async"))
    file_bytes: int = setting(1 << 30, "size of a file, bytes", minimum=4096)
    lease_seconds: float = setting(10.0, "how long a node stays", minimum=0.1, maximum=600)
    store_path: Path | None = setting(None, "directory")  # noqa: RUF009 - a field, made once
    nameservers: tuple[str, ...] = setting(("127.0.0.1:9876",), "where the nameservers are")
    memory_bytes: int | None = setting(None, "memory, bytes")
    clean: bool = setting(True, "whether to delete old files")
    password: str = setting("", "what opens the door", secret=True)


def read(
    file: Path | None = None,
    environment: dict[str, str] | None = None,
    arguments: dict[str, str] | None = None,
) -> tuple[Sample, dict[str, str]]:
    loaded = load(
        Sample, "sample", file=file, environment=environment or {}, arguments=arguments or {}
    )
    return loaded.value, dict(loaded.sources)


def test_without_anything_the_defaults_hold() -> None:
    value, sources = read()
    assert value == Sample()
    assert set(sources.values()) == {"default"}


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "sample.toml"
    file.write_text('listen = "a:1"\nflush = "async"\nlease_seconds = 3\n')
    value, sources = read(
        file, {"ROCKOON_SAMPLE_LISTEN": "b:2", "OTHER": "x"}, {"lease_seconds": "5"}
    )
    assert (value.listen, value.flush, value.lease_seconds) == ("b:2", "async", 5.0)
    assert sources["listen"] == "environment ROCKOON_SAMPLE_LISTEN"
    assert sources["flush"] == str(file)
    assert sources["lease_seconds"] == "--lease-seconds"


def test_sizes_may_be_written_as_people_say_them() -> None:
    assert read(arguments={"file_bytes": "64MiB"})[0].file_bytes == 64 << 20


def test_lists_and_optional_numbers_and_booleans_are_read_from_text() -> None:
    value, _ = read(arguments={"nameservers": "a:1, b:2", "memory_bytes": "1GiB", "clean": "no"})
    assert value.nameservers == ("a:1", "b:2")
    assert value.memory_bytes == 1 << 30
    assert value.clean is False
    assert read(arguments={"memory_bytes": ""})[0].memory_bytes is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"lisen": "x"}, "unknown setting 'lisen' (from --lisen); did you mean 'listen'?"),
        ({"flush": "maybe"}, "must be one of sync, async"),
        ({"file_bytes": "10"}, "must be at least 4096"),
        ({"lease_seconds": "1000"}, "must be between 0.1 and 600"),
        ({"file_bytes": "many"}, "is not a valid int"),
        ({"file_bytes": "9999999999TiB"}, "is not a valid int"),
        ({"lease_seconds": "nan"}, "is not a valid float"),
        ({"store_path": "~nobody-has-this-name/store"}, "is not a valid Path"),
        ({"clean": "perhaps"}, "is not a valid bool"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name_and_source(
    arguments: dict[str, str], sentence: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(arguments=arguments)
    assert sentence in str(caught.value)


def test_an_unknown_environment_variable_of_the_service_is_refused() -> None:
    with pytest.raises(SettingsError, match="unknown setting 'flsh'"):
        read(environment={"ROCKOON_SAMPLE_FLSH": "sync"})


def test_a_file_that_is_not_toml_or_not_there_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    for content in (b"listen = ", b'listen = "\xe9"'):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match="is not TOML"):
            read(file)
    file.write_text(f"lease_seconds = 1{'0' * 400}")
    with pytest.raises(SettingsError, match="is not a valid float"):
        read(file)
    with pytest.raises(SettingsError, match="cannot read"):
        read(tmp_path / "absent.toml")


def test_what_is_printed_is_a_settings_file_again(tmp_path: Path) -> None:
    loaded = load(
        Sample, "sample", environment={}, arguments={"flush": "async", "nameservers": "a:1,b:2"}
    )
    file = tmp_path / "printed.toml"
    file.write_text(render(loaded))
    assert read(file)[0] == loaded.value
    assert "(--flush)" in file.read_text()


def test_a_secret_comes_from_the_environment_only_and_is_never_printed(tmp_path: Path) -> None:
    variable = {"ROCKOON_SAMPLE_PASSWORD": "hush"}
    loaded = load(Sample, "sample", environment=variable, arguments={})
    assert loaded.value.password == "hush"
    assert "hush" not in render(loaded)
    assert "environment ROCKOON_SAMPLE_PASSWORD" in render(loaded)
    file = tmp_path / "sample.toml"
    file.write_text('password = "hush"\n')
    with pytest.raises(SettingsError, match="ROCKOON_SAMPLE_PASSWORD") as refusal:
        read(file)
    assert "hush" not in str(refusal.value)
