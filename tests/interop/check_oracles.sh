#!/usr/bin/env bash
# Our JSON reader against Python's, on generated and damaged texts: dependencies.md 4.1.
# peers: python-json
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CC:-cc} -std=c17 -D_GNU_SOURCE -O2 -Isrc -o "$work/oracle_json" tests/interop/oracle_json.c \
  src/base/*.c src/codec/json*.c -lpthread -lm
for seed in 1 2 3; do
  /usr/bin/python3 tests/interop/oracle_json.py "$work/oracle_json" 6000 "$seed"
done
