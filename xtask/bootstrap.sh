#!/bin/sh
# What xtask itself needs: a C compiler, Python with venv, and Rust. Missing Debian packages are installed
# when this runs as root, which is said; otherwise they are named. Everything else is xtask's concern.
set -eu

oldest_rust=1.88

missing=""
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v c++ >/dev/null 2>&1 || missing="$missing g++"
if ! command -v python3 >/dev/null 2>&1; then
    missing="$missing python3 python3-venv"
elif ! python3 -c 'import venv, ensurepip' >/dev/null 2>&1; then
    missing="$missing python3-venv"
fi
rust_package=""
if ! command -v cargo >/dev/null 2>&1; then
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        echo "error: Rust is in $HOME/.cargo/bin, which is not in PATH: run  . $HOME/.cargo/env  first" >&2
        exit 1
    fi
    rust_package=rustup
fi

if [ -n "$missing$rust_package" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "error: these are missing, by their Debian names:$missing $rust_package" >&2
        exit 1
    elif [ "$(id -u)" != 0 ]; then
        echo "error: packages are missing; install them with:  sudo apt-get install$missing $rust_package" >&2
        exit 1
    fi
    echo "installing$missing $rust_package" >&2
    apt-get update -qq
    if [ -n "$missing" ]; then
        # The names are words without spaces.
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    fi
    if [ -n "$rust_package" ]; then
        if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends rustup >/dev/null 2>&1; then
            echo "error: Rust is missing, and this Debian has no package rustup: install Rust $oldest_rust or newer" >&2
            echo "       as its home page describes, and run this again" >&2
            exit 1
        fi
        rustup default stable
    fi
fi

# Compared as versions, field by field.
found=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n%s\n' "$oldest_rust" "$found" | sort -V | head -n1)" != "$oldest_rust" ]; then
    echo "error: rustc is $found, and $oldest_rust or newer is needed: run  rustup update stable" >&2
    exit 1
fi
