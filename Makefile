# What people run. `make help` lists it.

SHELL := /bin/bash
TARGET := $(or $(CARGO_TARGET_DIR),target)
DATA ?= $(CURDIR)/striate-data
CLUSTER ?= $(CURDIR)/striate-cluster
FULL ?=
export PATH := $(HOME)/.cargo/bin:$(PATH)
# The benchmark crate builds ISA-L and HiGHS only with the features codec-bench and plan-bench; here it has neither.
ALL := --workspace --all-targets

# One thing after the other: the parts of `make test` build on each other.
.NOTPARALLEL:

.PHONY: help run cluster build lab test lint fmt clippy deny docs links purity protocols unit soak program lab-program faults neon clients browser processes deploy-check python python-package prove-python prove-lmcache bench codec-bench plan-bench meta-bench movement-bench prove-store prove-lab prove-plans prove-cluster prove-movement prove-ground prove-packed prove-cache prove-wide prove-mend reality results compare-minio

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## Build, and start a store over six directories in ./striate-data (or DATA=DIR)
	@mkdir -p "$(DATA)"
	@echo 'In the other terminal, first:  export PATH="$(abspath $(TARGET))/release:$$PATH"'
	@exec "$(TARGET)/release/striate" server "$(DATA)/disk{1...6}"

cluster: build ## Build, and run a whole cluster on this machine in ./striate-cluster (or CLUSTER=DIR) until Ctrl-C
	@tools/install.sh engines
	@echo 'In the other terminal, first:  export PATH="$(abspath $(TARGET))/release:$$PATH"'
	@exec tools/cluster --folder "$(CLUSTER)" --program "$(TARGET)/release/striate"

build: ## Build the release binary, installing what is missing for it
	@tools/install.sh build
	cargo build --release

lab: ## Build the laboratory, striate-lab: experiments and random faults in virtual time
	@tools/install.sh build
	cargo build --release --package striate-lab

# The tests build the programs too, with their own features of their dependencies: what follows them uses those programs,
# or every dependency would be compiled once more.
test: export STRIATE := $(abspath $(TARGET))/debug/striate
test: export STRIATE_LAB := $(abspath $(TARGET))/debug/striate-lab
test: lint docs unit faults clients browser processes python ## Everything that CI runs
	@echo "make test: all of it passed"

lint: fmt clippy purity links deny ## Formatting, clippy with the bans, purity, links, dependencies

fmt:
	@tools/install.sh build
	cargo fmt --all --check

clippy:
	cargo clippy $(ALL) --quiet -- -D warnings

purity:
	@tools/check-purity

links:
	@tools/check-links
	@tools/check-citations

deny:
	@tools/check-dependencies

docs: ## The crates' documentation and the book, into target/book; every link in the book is followed
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --quiet
	@tools/install.sh book
	.tools/bin/mdbook build docs
	@tools/check-book

# Property tests draw the same cases every time here, so that a failure is the change's; `make soak` draws others.
unit: ## The tests of all crates
	@tools/install.sh engines
	status=0; \
	PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 PROPTEST_RNG_SEED=$${PROPTEST_RNG_SEED:-2018} \
		cargo test --workspace --no-fail-fast --lib --bins --tests || status=1; \
	cargo test --package striate-codec --doc || status=1; exit $$status

protocols: ## After a change of a .proto file: compile all of them into the code that is checked in beside them
	cargo run --quiet --package striate-protocols

soak: ## The property and crash tests with ever new seeds, until one fails or SECONDS (default 600) have passed
	@tools/soak $(or $(SECONDS),600)

# The programs that clients, python and faults run, unless STRIATE and STRIATE_LAB name others. The development build serves:
# what takes the time in it is optimised, and nothing is compiled twice.
PROGRAM = $(or $(STRIATE),$(abspath $(TARGET))/debug/striate)
LAB = $(or $(STRIATE_LAB),$(abspath $(TARGET))/debug/striate-lab)

program:
	@test -n "$(STRIATE)" || cargo build --quiet --package striate

lab-program:
	@test -n "$(STRIATE_LAB)" || cargo build --quiet --package striate-lab

faults: lab-program ## 320 seeds of random faults in the lab (SEEDS=10000 OUT=DIR: more, and resumable)
	"$(LAB)" faults --seeds $(or $(SEEDS),320) $(if $(OUT),--out "$(OUT)")

neon: ## The codec's tests on its NEON kernels, emulated by qemu-user
	@tools/install.sh build bench
	crates/codec/test-neon.sh

clients: program ## aws-cli, boto3, rclone, s3cmd, mc, restic and bad input against a real server (FULL=1: 1 GiB, 10,000 keys)
	@tools/install.sh clients
	status=0; \
	STRIATE="$(PROGRAM)" FULL="$(FULL)" \
		.tools/venv/bin/python -m pytest -q -p no:cacheprovider tests/clients || status=1; \
	for server in front volatile; do TEST_SERVER=$$server STRIATE="$(PROGRAM)" FULL="$(FULL)" \
		.tools/venv/bin/python -m pytest -q -p no:cacheprovider $(SEMANTICS) || status=1; done; exit $$status

# What S3 promises of objects, for buckets in another store and in memory only.
SEMANTICS = $(patsubst %,tests/clients/test_%.py,objects conditions multipart listing checksums presigned)

browser: program ## The status page in Chromium, where the system has it as a package
	@tools/install.sh browser
	STRIATE="$(PROGRAM)" .tools/browser/bin/python -m pytest -q -rs -p no:cacheprovider tests/console

processes: program ## A cluster of real processes (etcd, control, sites, gateways) and boto3
	@tools/install.sh clients engines
	STRIATE="$(PROGRAM)" .tools/venv/bin/python -m pytest -q -p no:cacheprovider tests/cluster

# Not a part of `make test`: building helm takes minutes.
deploy-check: program ## The Helm chart, the alert rules and the dashboard in deploy/, against the program
	@tools/install.sh helm
	deploy/helm/check
	.tools/bin/promtool check rules deploy/prometheus/alerts.yaml
	.tools/bin/promtool test rules deploy/prometheus/alerts.test.yaml
	STRIATE="$(PROGRAM)" .tools/deploy/bin/python -m pytest -q -p no:cacheprovider tests/deploy

# As people install it, but offline: what builds it is in the environment.
python-package:
	@tools/install.sh python
	@.tools/python/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall ./python

python: program python-package ## The Python package: types, fsspec's suite, pandas, pyarrow, zarr and data loaders on a real server
	cd python && ../.tools/python/bin/mypy --cache-dir ../.tools/mypy
	STRIATE="$(PROGRAM)" .tools/python/bin/python -m pytest -q -p no:cacheprovider python/tests

bench: codec-bench plan-bench meta-bench movement-bench compare-minio ## All benchmarks, beside their peers

codec-bench: ## Encode and decode beside ISA-L and klauspost/reedsolomon
	@tools/install.sh build bench
	cargo run --release --package striate-bench --features codec-bench -- codec

plan-bench: ## Plan reads beside HiGHS, after minutes of compiling it (FULL=1: hours, with 60 s of HiGHS for each hard case)
	@tools/install.sh build highs
	cargo run --release --package striate-bench --features plan-bench -- plan $(if $(FULL),--full)

meta-bench: ## Transactions, gets and scans of each metadata engine: embedded, etcd, PostgreSQL
	@tools/install.sh build engines
	cargo run --release --package striate-bench --features meta-bench -- meta

movement-bench: ## Candidate moves that the search for movement plans evaluates in a second
	cargo run --release --package striate-bench --features movement-bench -- movement

compare-minio: build ## PUT and GET beside MinIO (FULL=1: after 1 GB of each size)
	@tools/install.sh minio
	cargo build --release --package striate-bench
	prove/compare-minio $(if $(FULL),--full)

prove-store: build ## Prove the store's claims, one line each, in at most 15 minutes (FULL=1: without cuts)
	@tools/install.sh clients minio bench
	cargo build --release --package striate-bench --features codec-bench
	prove/store $(if $(FULL),--full)

prove-lab: lab ## Prove the lab's claims, one line each, in at most 15 minutes (FULL=1: without cuts)
	prove/lab $(if $(FULL),--full)

prove-plans: build lab python-package ## Prove the read plans' claims, one line each, in at most 15 minutes (FULL=1: hours; TRACE=FILE)
	@tools/install.sh build highs
	cargo build --release --package striate-bench --features plan-bench
	.tools/python/bin/python prove/plans $(if $(FULL),--full) $(if $(TRACE),--trace "$(TRACE)")

prove-cluster: build ## Prove the cluster's claims on real processes, in at most 15 minutes (FULL=1: longer events and loads)
	@tools/install.sh engines clients network
	cargo build --release --package striate-bench
	-@tools/release >/dev/null
	prove/cluster $(if $(FULL),--full)

prove-ground: build lab ## Prove builds, reads, processor time beside 0.1.1, hostile peers and the gate (FULL=1: cold builds too)
	@tools/install.sh engines
	cargo build --release --package striate-bench
	cargo test --package striate-client --package striate-control --package striate-site --test objects --test control --test site --no-run
	@tools/release >/dev/null
	prove/ground $(if $(FULL),--full)

prove-packed: build lab ## Prove packing and the reads around loaded sites, in at most 20 minutes (FULL=1: a million objects, full scales; WORKLOADS=DIR)
	@tools/install.sh highs
	cargo build --release --package striate-bench --features plan-bench
	prove/packed $(if $(FULL),--full) $(if $(WORKLOADS),--workloads "$(WORKLOADS)")

prove-cache: build lab ## Prove the memory tier: EC-Cache's figures, memory within its bound, what a hit costs, and Striate before MinIO beside nginx and Varnish, in at most 20 minutes (FULL=1: an hour of churn; WORKLOADS=DIR)
	@tools/install.sh engines clients minio network caches
	cargo build --release --package striate-bench
	prove/cache $(if $(FULL),--full) $(if $(WORKLOADS),--workloads "$(WORKLOADS)")

prove-wide: build lab ## Prove what is said of wide stripes, and ECWide's figures; racks are network namespaces (root; FULL=1: 10 GiB, 40 kills, every repair, 10,000 seeds of faults)
	@tools/install.sh engines network bench
	cargo build --release --package striate-bench --features codec-bench
	cargo test --package striate-control --test control --no-run
	prove/wide $(if $(FULL),--full)

prove-mend: build python-package ## Prove that nothing is destroyed by mistake and nobody can stop the store, in at most 15 minutes (FULL=1: unit tests ten times under load, a disk of 30 GiB)
	@tools/install.sh engines clients fuse
	cargo test --package striate-site --package striate-s3 --no-run
	@tools/release 0.5.0 >/dev/null
	prove/mend $(if $(FULL),--full)

prove-movement: build lab ## Prove that the store tends itself: plans for movements, repair, filling and emptying (FULL=1: hours; TRACE=FILE)
	@tools/install.sh engines
	cargo build --release --package striate-bench --features movement-bench
	prove/movement $(if $(FULL),--full) $(if $(TRACE),--trace "$(TRACE)")

prove-python: build python-package ## Prove the Python package's claims beside s3fs (FULL=1: longer)
	.tools/python/bin/python prove/python $(if $(FULL),--full)

prove-lmcache: build ## Prove what is said of KV caches: LMCache's own code over the adapter, an LLM service's trace, memory beside Redis; installs LMCache, 6 GB (FULL=1: longer; WORKLOADS=DIR; VLLM_VENV in the environment: one with vLLM)
	@tools/install.sh engines redis
	prove/lmcache $(if $(FULL),--full) $(if $(WORKLOADS),--workloads "$(WORKLOADS)")

reality: lab ## The lab beside real processes, measured on this idle machine, into lab-results (ten minutes)
	"$(TARGET)/release/striate-lab" reality --out lab-results

# Whatever ends it, the next run goes on with what is missing, as long as the program is the same.
results: lab ## Every experiment of the lab, overnight, into docs/src/results; resumable
	"$(TARGET)/release/striate-lab" results --jobs $(or $(JOBS),1) --out docs/src/results
