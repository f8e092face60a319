#!/bin/sh
# Runs the codec's tests on the NEON kernel, on any x86-64 Debian or Ubuntu: built for aarch64, run by qemu's user mode.
# Needs rustup and what tools/install-bench-deps.sh installs.
set -eu
cd "$(dirname "$0")"
rustup target list --installed | grep -qx aarch64-unknown-linux-gnu || rustup target add aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
# The kernels' own tests and those of whole codes; the exhaustive LRC tests say nothing about kernels and would be slow.
# Emulation is some ten times slower: fewer random cases.
export PROPTEST_CASES="${PROPTEST_CASES:-24}"
cargo test -p striate-codec --target aarch64-unknown-linux-gnu --lib --test codes -- "$@"
cargo test -p striate-codec --target aarch64-unknown-linux-gnu --lib -- --exact --nocapture \
    kernel::tests::the_kernels_come_fastest_first_and_end_with_the_portable_one
