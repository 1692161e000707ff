#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our JSON reader against Python's json, on random and mutated texts.

Usage: oracle_json.py HELPER [COUNT [SEED]]     HELPER: the program built from oracle_json.c

Both must accept or refuse the same texts and see the same tree (order and repetition of keys, source
text and double value of every number). The differences we mean (DIFFERENCES below) are recognised one by one and
counted; anything else fails with the text that shows it. Exit status 0: agreement.
"""

import json
import math
import random
import struct
import subprocess
import sys

DIFFERENCES = {
    "constant": "Python reads NaN, Infinity and -Infinity; they are no JSON",
    "surrogate": "Python reads half a surrogate pair; it is no character",
    "depth": "we stop at 128 open containers",
}
MAX_DEPTH = 128

PIECES = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\ud800", b"\\udc00", b"\\n", b"null",
    b"true", b"false", b"NaN", b"-Infinity", b"-", b"+", b"0", b"1", b".", b"e", b"E", b"01", b"1e5",
    b" ", b"\n", b"\t", b"\r", b"\x00", b"\x0b", b"\x1f", b"\x7f", b"\xc3\xa9", b"\xe2\x82\xac",
    b"\xf0\x9f\x98\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xff", b"\xef\xbb\xbf", b"\xc2\xa0",
    b"/**/", b"'", b"18446744073709551616", b"1e999", b"-0",
]


class Number:
    def __init__(self, text):
        self.text = text


class Pairs(list):
    pass


class Constant(Exception):
    pass


def refuse_constant(_):
    raise Constant()


def depth_of(value):
    """Open containers at the deepest place, without recursion."""
    deepest, todo = 0, [(value, 1)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, Pairs):
            deepest = max(deepest, depth)
            todo.extend((child, depth + 1) for _, child in item)
        elif isinstance(item, list):
            deepest = max(deepest, depth)
            todo.extend((child, depth + 1) for child in item)
    return deepest


def canonical_string(text):
    out = ['"']
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    for c in text:
        if c in short:
            out.append(short[c])
        elif ord(c) < 0x20:
            out.append("\\u%04x" % ord(c))
        else:
            out.append(c)
    return "".join(out) + '"'


def canonical(value):
    if isinstance(value, Number):
        double = float(value.text)
        return value.text + "=" + ("none" if math.isinf(double) else "%.17g" % double)
    if isinstance(value, str):
        return canonical_string(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(canonical_string(k) + ":" + canonical(v) for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(canonical(v) for v in value) + "]"
    return {None: "null", True: "true", False: "false"}[value]


def expect(data):
    """(verdict, canonical text or None, difference or None)"""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "R", None, None
    try:
        value = json.loads(text, object_pairs_hook=Pairs, parse_int=Number, parse_float=Number,
                           parse_constant=refuse_constant)
    except Constant:
        return "R", None, "constant"
    except (ValueError, RecursionError):
        return "R", None, None
    if depth_of(value) > MAX_DEPTH:
        return "R", None, "depth"
    tree = canonical(value)
    try:
        tree.encode("utf-8")
    except UnicodeEncodeError:
        return "R", None, "surrogate"
    return "A", tree, None


def random_string(rng):
    alphabet = ["a", "B", " ", "usage", "\\\\", '\\"', "\\n", "\\u00e9", "\\ud83d\\ude00", "\\u0000",
                "é", "€", "京都", "😀", "/", "\\/", "x" * 17, "\x7f"]
    return '"' + "".join(rng.choice(alphabet) for _ in range(rng.randrange(12))) + '"'


def random_number(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return str(rng.randrange(-10, 10))
    if kind == 1:
        return str(rng.randrange(-2**64, 2**65))
    if kind == 2:
        return repr(rng.uniform(-1e6, 1e6))
    if kind == 3:
        return "%d.%de%s%d" % (rng.randrange(100), rng.randrange(10**6), rng.choice(["", "+", "-"]),
                               rng.randrange(400))
    if kind == 4:
        return str(rng.randrange(10 ** rng.randrange(1, 80)))
    return repr(struct.unpack("<d", struct.pack("<Q", rng.getrandbits(63) % 0x7FF0000000000000))[0])


def blank(rng):
    return rng.choice(["", "", "", "", " ", "\n", "\t ", "\r\n"])


def random_value(rng, depth):
    kind = rng.randrange(8 if depth < 6 else 5)
    if kind == 0:
        return rng.choice(["null", "true", "false"])
    if kind <= 2:
        return random_string(rng)
    if kind <= 4:
        return random_number(rng)
    items = range(rng.randrange(5))
    if kind <= 6:
        members = [blank(rng) + random_string(rng) + blank(rng) + ":" + blank(rng) +
                   random_value(rng, depth + 1) + blank(rng) for _ in items]
        return "{" + ",".join(members) + "}"
    return "[" + ",".join(blank(rng) + random_value(rng, depth + 1) + blank(rng) for _ in items) + "]"


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at:at] = rng.choice(PIECES)
        elif kind == 2:
            del data[at:at + rng.randrange(1, 4)]
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            end = rng.randrange(at, len(data) + 1)
            data[at:at] = data[at:end][:200]
        elif at < len(data):
            data[at:at + 1] = rng.choice(PIECES)
    return bytes(data)


def texts(rng, count):
    yield from (b"NaN", b"[-Infinity]", b'"\\ud800"', b"[" * 128 + b"]" * 128, b"[" * 129 + b"]" * 129)
    for _ in range(count):
        kind = rng.randrange(10)
        if kind == 0:
            yield b"".join(rng.choice(PIECES) for _ in range(rng.randrange(12)))
        elif kind == 1:
            depth = rng.randrange(120, 140)
            yield b"[" * depth + b'{"a":1}' + b"]" * depth
        else:
            data = (blank(rng) + random_value(rng, 0) + blank(rng)).encode("utf-8")
            yield data if kind < 5 else mutate(rng, data)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(2**32)
    # Python's reader calls itself; a refusal for depth must be ours alone.
    sys.setrecursionlimit(10000)
    cases = list(texts(random.Random(seed), count))
    stream = b"".join(struct.pack("<I", len(data)) + data for data in cases)
    run = subprocess.run([sys.argv[1]], input=stream, stdout=subprocess.PIPE, check=False)
    lines = run.stdout.split(b"\n")[:-1]
    if run.returncode != 0 or len(lines) != len(cases):
        sys.exit("seed %d: helper ended with %d after %d of %d texts" %
                 (seed, run.returncode, len(lines), len(cases)))

    accepted, seen = 0, dict.fromkeys(DIFFERENCES, 0)
    for data, line in zip(cases, lines):
        verdict, tree, difference = expect(data)
        if line[:1] != verdict.encode():
            sys.exit("seed %d: expected %s, got %r for %r" % (seed, verdict, line[:60], data))
        if difference == "depth" and line != b"R FL_EDEPTH":
            sys.exit("seed %d: depth of %r" % (seed, data))
        if tree is not None and line[2:] != tree.encode("utf-8"):
            sys.exit("seed %d: trees differ for %r\nours   %r\nPython %r" % (seed, data, line[2:],
                                                                            tree.encode("utf-8")))
        accepted += verdict == "A"
        if difference is not None:
            seen[difference] += 1
    print("seed %d: %d texts, %d accepted by both, %d refused by both; known differences: %s" %
          (seed, len(cases), accepted, len(cases) - accepted - sum(seen.values()),
           ", ".join("%s %d" % item for item in seen.items())))
    if not all(seen.values()):
        sys.exit("a listed difference never occurred: is it still one?")


if __name__ == "__main__":
    main()
