#!/usr/bin/env bash
# Our HTTP/1 request parser against Node's, on generated streams: gateway.md 15.1 L5.
# peers: node-http
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CC:-cc} -std=c17 -D_GNU_SOURCE -O2 -Isrc -o "$work/oracle_http1" tests/interop/oracle_http1.c \
  src/base/*.c src/codec/json*.c src/http/*.c src/http1/*.c -lpthread -lm
for seed in 1 2 3 4; do
  node tests/interop/oracle_http1.js "$work/oracle_http1" "$seed" 6000
done
