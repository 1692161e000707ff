#!/usr/bin/env bash
# Our ext_proc codec against Python's protobuf, both ways: dependencies.md 4.1.
# peers: python-protobuf
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CC:-cc} -std=c17 -D_GNU_SOURCE -O2 -Isrc -o "$work/oracle_protobuf" tests/interop/oracle_protobuf.c \
  src/base/*.c src/codec/pb.c src/codec/json*.c src/http/*.c src/http2/grpc.c src/http2/joint.c \
  src/extproc/schema.c src/extproc/message_*.c src/extproc/metadata.c -lpthread -lm
for seed in 1 2 3 4; do
  /usr/bin/python3 tests/interop/oracle_protobuf.py "$work/oracle_protobuf" 15000 "$seed" 2>&1 |
    { grep -v '^\[libprotobuf ERROR' || true; }
done
