#!/bin/sh
# Installs, on Debian or Ubuntu, what the codec's benchmark builds ISA-L with (autotools, nasm) and what the NEON tests
# run on (an aarch64 linker and qemu's user mode). Go, for klauspost/reedsolomon, is expected on the PATH.
set -eu
packages="autoconf automake libtool make nasm gcc qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
if dpkg -s $packages >/dev/null 2>&1; then
    exit 0
fi
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $packages
