"""Versions of PySpark that the package does not work with are refused."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rockoon_spark import spark_version
from rockoon_spark.commands import main
from rockoon_spark.session import session
from rockoon_spark.source.data_source import RockoonDataSource
from rockoon_spark.spark_version import SparkUnsupported, check_spark

PACKAGE = Path(__file__).parents[2] / "spark" / "pyproject.toml"


def declared() -> Requirement:
    """What the package requires of PySpark."""
    wanted = tomllib.loads(PACKAGE.read_text())["project"]["dependencies"]
    return next(each for each in map(Requirement, wanted) if each.name == "pyspark")


@pytest.mark.parametrize(
    "version", ["3.5.9", "4.2.1", "4.3.0", "4.3.12", "4.4.0", "4.10.0", "5.3.0"]
)
def test_exactly_the_declared_versions_are_supported(version: str) -> None:
    if version in declared().specifier:
        check_spark(version)
    else:
        with pytest.raises(
            SparkUnsupported, match=rf"PySpark {version}: `pip install 'pyspark>=4.3,<4.4'`"
        ):
            check_spark(version)


def test_another_version_is_refused_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_version, "END", (4, 3))
    for use in (session, lambda: RockoonDataSource({})):
        with pytest.raises(SparkUnsupported):
            use()
    assert main(["verify", "--target", "nowhere"]) == 1
    assert "rockoon-spark does not work with PySpark" in capsys.readouterr().err
