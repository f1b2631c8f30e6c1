"""Without telemetry settings, no module of telemetry is loaded, and none is needed."""

import subprocess
import sys

import pytest

SECONDS_MAX = 60.0
PACKAGES = ("opentelemetry", "prometheus_client")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-c", code),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize(
    "imports",
    [
        "rockoon_broker.server",
        "rockoon_nameserver.server, rockoon_offset.server",
        "rockoon.cluster, rockoon.consumer.push_consumer, rockoon.consumer.pull_consumer",
    ],
)
def test_a_program_without_telemetry_loads_nothing_of_it(imports: str) -> None:
    code = f"import sys, {imports}; print(*(name for name in {PACKAGES} if name in sys.modules))"
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("flag", "missing", "install"),
    [
        (
            "--otlp-endpoint=http://127.0.0.1:1",
            "opentelemetry",
            "pip install 'rockoon-runtime[telemetry]'",
        ),
        ("--metrics-listen=127.0.0.1:0", "prometheus_client", "pip install prometheus_client"),
    ],
)
def test_a_broker_that_lacks_a_package_says_how_to_get_it(
    flag: str, missing: str, install: str
) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = [{flag!r}]\n"
        "from rockoon_broker.__main__ import main\n"
        "sys.exit(main())"
    )
    done = python(code)
    assert done.returncode == 78
    assert install in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_that_lacks_opentelemetry_is_told_when_it_wants_to_trace() -> None:
    done = python("import sys; sys.modules['opentelemetry'] = None; import rockoon.tracing.tracing")
    assert done.returncode == 1
    assert "ImportError: tracing needs OpenTelemetry: pip install 'rockoon[otel]'" in done.stderr


def test_an_address_that_is_none_ends_the_start_with_a_sentence() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--metrics-listen=nowhere']\n"
        "from rockoon_broker.__main__ import main\n"
        "sys.exit(main())"
    )
    done = python(code)
    assert done.returncode == 78
    assert "metrics_listen: 'nowhere' is not host:port" in done.stderr
