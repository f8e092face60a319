#!/bin/bash
# Installs what Striate is built and proved with. Groups, in any number: build, engines, clients, python, minio,
# browser, deny, book, bench, highs, network, redis, caches, fuse, helm.
#
# Everything that is not a system package lands in .tools/ (not in git) at a pinned version, and is left alone when it
# is there already, so that a second run takes a second.
set -euo pipefail
cd "$(dirname "$0")/.."

GO_MINIMUM="1.24"
# What is fetched where there is no such Go: from Go's module proxy, with the archives' SHA-256.
GO_VERSION="1.26.8"
GO_SUM_AMD64="30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7"
GO_SUM_ARM64="02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99"
MINIO_VERSION="v0.0.0-20260212201848-7aac2a2c5b7c"
MC_VERSION="v0.0.0-20250313080218-cf909e1063a9"
DENY_VERSION="0.20.2"
MDBOOK_VERSION="0.5.4"
HELM_VERSION="v3.19.0"
# What load direction tables are held against.
HIGHS_PACKAGES="highspy==1.15.1 numpy==2.4.6"
# What makes a disk hang on demand.
FUSE_PACKAGES="mfusepy==3.1.1"
# What holds the chart against Kubernetes' schemas, and runs the tests of deploy/.
DEPLOY_PACKAGES="kubernetes-validate==1.37.0 pytest==9.2.0"
# What drives the browser: its own browsers, which it would download, are not used.
BROWSER_PACKAGES="playwright==1.65.2 pytest==9.2.0"
PYTHON_PACKAGES="awscli==1.46.2 boto3==1.44.5 botocore==1.44.5 pytest==9.2.0"
# What the Python package is built, checked, used and compared with. It is another environment than the clients': s3fs
# allows an older botocore only.
LIBRARY_PACKAGES="flit_core==3.12.0 aiohttp==3.14.5 botocore==1.43.117 fsspec==2026.9.0 pytest==9.2.0 mypy==2.4.1
    numpy==2.4.6 pandas==3.1.1 pyarrow==26.0.1 zarr==3.1.6 s3fs==2026.9.0 aiobotocore==3.10.0"

tools="$PWD/.tools"
mkdir -p "$tools/bin" "$tools/done"

say() { printf '   %s\n' "$*" >&2; }
fail() { printf 'tools/install.sh: %s\n' "$*" >&2; exit 1; }

# step NAME WHAT COMMAND...: runs the command once; its output is shown only when it fails.
step() {
    local name="$1" what="$2" started=$SECONDS log
    shift 2
    [ -e "$tools/done/$name" ] && return 0
    log="$tools/$name.log"
    say "$what ..."
    "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "$what failed; the whole log is in $log"; }
    say "$what: $((SECONDS - started)) s"
    touch "$tools/done/$name"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@"
}

install_packages() {
    apt_get update -qq || true  # an older list may still do
    apt_get install -y -qq --no-install-recommends "$@"
}

# packages NAME PACKAGE...: system packages, skipped without asking apt when all are installed.
packages() {
    local name="$1"
    shift
    dpkg -s "$@" >/dev/null 2>&1 && return 0
    command -v apt-get >/dev/null || fail "install these with your system's package manager: $*"
    rm -f "$tools/done/packages-$name"
    step "packages-$name" "installing packages: $*" install_packages "$@"
}

# Whether a Go is on the PATH that builds what is built here.
has_go() {
    local version
    version="$(go env GOVERSION 2>/dev/null | sed 's/^go//')"
    [ -n "$version" ] && [ "$(printf '%s\n%s\n' "$GO_MINIMUM" "$version" | sort -V | head -n1)" = "$GO_MINIMUM" ]
}

# The toolchain that a newer go command would fetch itself: Debian 12 and Ubuntu 22.04 have too old ones.
fetch_go() {
    local machine sum name="golang.org/toolchain@v0.0.1-go$GO_VERSION.linux"
    case "$(uname -m)" in
        x86_64) machine=amd64 sum=$GO_SUM_AMD64 ;;
        aarch64) machine=arm64 sum=$GO_SUM_ARM64 ;;
        *) echo "there is no Go for $(uname -m) here: install $GO_MINIMUM or newer from go.dev/dl and put it on the PATH"; return 1 ;;
    esac
    rm -rf "$tools/go" "$tools/golang.org"
    curl -sSfL -o "$tools/go.zip" "https://proxy.golang.org/${name/@/\/@v\/}-$machine.zip" &&
        echo "$sum  $tools/go.zip" | sha256sum --check --quiet - &&
        python3 -m zipfile -e "$tools/go.zip" "$tools" &&
        mv "$tools/$name-$machine" "$tools/go" &&
        chmod +x "$tools"/go/bin/* "$tools"/go/pkg/tool/*/* &&
        rm -rf "$tools/go.zip" "$tools/golang.org"
}

need_go() {
    [ -d "$tools/go/bin" ] && PATH="$tools/go/bin:$PATH"
    [ -x /usr/local/go/bin/go ] && PATH="$PATH:/usr/local/go/bin"
    has_go && return
    need_python
    step "go-$GO_VERSION" "fetching Go $GO_VERSION" fetch_go
    PATH="$tools/go/bin:$PATH"
}

go_install() {
    (cd "$tools" && CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOBIN="$tools/bin" nice go install "$1")
}

install_build() {
    if ! command -v gcc >/dev/null || ! command -v make >/dev/null || ! command -v curl >/dev/null; then
        packages build gcc libc6-dev make pkg-config curl ca-certificates
    fi
    [ -d "$HOME/.cargo/bin" ] && PATH="$HOME/.cargo/bin:$PATH"
    command -v cargo >/dev/null ||
        fail "Rust is missing. Install it with:  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
}

# make_venv NAME PACKAGES: a Python environment with these packages.
make_venv() {
    python3 -m venv "$tools/$1"
    # shellcheck disable=SC2086 # a list of packages
    "$tools/$1/bin/pip" install --quiet --disable-pip-version-check $2
}

need_python() {
    python3 -c 'import ensurepip' 2>/dev/null || packages python python3 python3-venv
}

install_clients() {
    packages clients rclone restic s3cmd ca-certificates
    need_python
    step "python-$(echo "$PYTHON_PACKAGES" | cksum | cut -d' ' -f1)" "installing aws-cli, boto3 and pytest" \
        make_venv venv "$PYTHON_PACKAGES"
    need_go
    step "linearizability-$(cat tests/linearizability/* | cksum | cut -d' ' -f1)" "building the checker of histories" \
        build_checker
    step "mc-$MC_VERSION" "building MinIO's mc (about a minute)" go_install "github.com/minio/mc@$MC_VERSION"
}

# What judges histories of operations, after its own tests.
build_checker() {
    (cd tests/linearizability && go test ./... &&
        CGO_ENABLED=0 go build -buildvcs=false -o "$tools/bin/linearizability" .)
}

install_python() {
    need_python
    command -v openssl >/dev/null || packages openssl openssl
    step "libraries-$(echo "$LIBRARY_PACKAGES" | cksum | cut -d' ' -f1)" "installing pandas, pyarrow, zarr and s3fs" \
        make_venv python "$LIBRARY_PACKAGES"
}

# Chromium from the system's packages, if there is none of its kind. Ubuntu has it as a snap only, which containers do not run.
install_browser() {
    need_python
    step "browser-$(echo "$BROWSER_PACKAGES" | cksum | cut -d' ' -f1)" "installing what drives a browser" \
        make_venv browser "$BROWSER_PACKAGES"
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null && return
    if grep -q '^ID=debian' /etc/os-release; then
        packages browser chromium
    else
        say "there is no Chromium here: the status page is not tried in a browser"
    fi
}

install_minio() {
    [ -x "$tools/bin/minio" ] && return
    need_go
    step "minio-$MINIO_VERSION" "building MinIO to compare with (about 3 minutes)" \
        go_install "github.com/minio/minio@$MINIO_VERSION"
}

# build_tool CRATE VERSION OPTION...: a program from crates.io, from source. Without optimisation: it runs for seconds and
# would compile for ten minutes.
build_tool() {
    local crate="$1" version="$2"
    shift 2
    CARGO_TARGET_DIR="$tools/$crate-target" CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        nice cargo install "$crate" --version "$version" --locked --root "$tools" "$@"
    rm -rf "$tools/$crate-target"
}

install_deny() {
    install_build
    [ -x "$tools/bin/cargo-deny" ] && return
    step "deny-$DENY_VERSION" "building cargo-deny (about 3 minutes, once)" build_tool cargo-deny "$DENY_VERSION"
}

# What renders the book. Without its server and search, which take half of the crates it is made of.
install_book() {
    install_build
    [ "$("$tools/bin/mdbook" --version 2>/dev/null)" = "mdbook v$MDBOOK_VERSION" ] && return
    rm -f "$tools/done/book-$MDBOOK_VERSION"
    step "book-$MDBOOK_VERSION" "building mdbook (about a minute, once)" \
        build_tool mdbook "$MDBOOK_VERSION" --no-default-features
}

install_bench() {
    need_go
    step bench "installing what the codec's benchmark builds ISA-L with" sh tools/install-bench-deps.sh
}

# What the planner's benchmark compiles HiGHS and its bindings with, and HiGHS itself, which load direction tables are proved by.
install_highs() {
    packages highs g++ cmake libclang-dev
    need_python
    step "highs-$(echo "$HIGHS_PACKAGES" | cksum | cut -d' ' -f1)" "installing HiGHS for Python" make_venv highs "$HIGHS_PACKAGES"
}

# Installs packages that bring services, without leaving one running, now or after the next start of the machine.
install_without_services() {
    local policy=/usr/sbin/policy-rc.d status=0 ours= package
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod +x "$policy"
        ours=yes
    fi
    install_packages "$@" || status=$?
    [ -z "$ours" ] || as_root rm -f "$policy"
    command -v systemctl >/dev/null || return "$status"
    for package in "$@"; do
        case "$package" in
            etcd-server) as_root systemctl disable etcd || true ;;
            postgresql) as_root systemctl disable postgresql || true ;;
            redis-server | nginx | varnish) as_root systemctl disable "$package" || true ;;
        esac
    done
    return "$status"
}

# etcd and PostgreSQL, which the metadata engines' tests and benchmark start by themselves. What is installed already, and
# may be in use, is left alone.
install_engines() {
    local package missing=()
    for package in etcd-server etcd-client postgresql openssl; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ "${#missing[@]}" = 0 ] && return 0
    command -v apt-get >/dev/null || fail "install etcd, etcdctl, PostgreSQL and openssl with your system's package manager"
    rm -f "$tools/done/packages-engines"
    step packages-engines "installing packages: ${missing[*]}" install_without_services "${missing[@]}"
}

# Redis, which LMCache's adapters are compared on.
install_redis() {
    command -v redis-server >/dev/null && return 0
    command -v apt-get >/dev/null || fail "install redis-server with your system's package manager"
    rm -f "$tools/done/packages-redis"
    step packages-redis "installing packages: redis-server" install_without_services redis-server
}

# nginx and Varnish, which Striate is compared with as a cache. Varnish compiles its configuration.
install_caches() {
    command -v nginx >/dev/null && command -v varnishd >/dev/null && command -v gcc >/dev/null && return 0
    command -v apt-get >/dev/null || fail "install nginx, varnish and gcc with your system's package manager"
    rm -f "$tools/done/packages-caches"
    step packages-caches "installing packages: nginx varnish gcc" install_without_services nginx varnish gcc
}

# What a disk is made of that hangs while a test says so (prove/proving/hanging.py).
install_fuse() {
    packages fuse fuse3 libfuse3-3
    need_python
    step "fuse-$(echo "$FUSE_PACKAGES" | cksum | cut -d' ' -f1)" "installing FUSE for Python" make_venv fuse "$FUSE_PACKAGES"
}

# What hosts in network namespaces are made with.
install_network() {
    packages network iproute2 iptables
}

# Prometheus' checker of rules out of its package, without the service and what that needs.
get_promtool() {
    local folder
    folder="$(mktemp -d)"
    (cd "$folder" && { as_root apt-get update -qq || true; } && apt-get download prometheus && dpkg-deb -x prometheus_*.deb .) &&
        install "$folder/usr/bin/promtool" "$tools/bin/promtool" || { rm -rf "$folder"; return 1; }
    rm -rf "$folder"
}

# What checks the chart and the alert rules.
install_helm() {
    need_python
    need_go
    [ -x "$tools/bin/helm" ] ||
        step "helm-$HELM_VERSION" "building helm (minutes, once)" go_install "helm.sh/helm/v3/cmd/helm@$HELM_VERSION"
    command -v openssl >/dev/null || packages openssl openssl
    step "deploy-$(echo "$DEPLOY_PACKAGES" | cksum | cut -d' ' -f1)" "installing Kubernetes' schemas and pytest" \
        make_venv deploy "$DEPLOY_PACKAGES"
    if [ ! -x "$tools/bin/promtool" ]; then
        command -v apt-get >/dev/null || fail "put promtool (it comes with Prometheus) into .tools/bin"
        step promtool "getting promtool" get_promtool
    fi
}

[ $# -gt 0 ] || fail "name what to install: build engines clients python minio browser deny book bench highs network redis caches fuse helm"
for group in "$@"; do
    case "$group" in
        build | engines | clients | python | minio | browser | deny | book | bench | highs | network | redis | caches | fuse | helm) "install_$group" ;;
        *) fail "unknown group '$group': use build, engines, clients, python, minio, browser, deny, book, bench, highs, network, redis, caches, fuse or helm" ;;
    esac
done
