#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Our ext_proc codec against Python's protobuf, on random, mutated and merged messages, both ways.

Usage: oracle_protobuf.py HELPER [COUNT [SEED]]     HELPER: the program built from oracle_protobuf.c

Reading: both must accept or refuse the same bytes and see the same fields. Writing: what we write from what we
read must be, for Python, the same message. Anything else
fails with the bytes that show it. Exit status 0: agreement.
"""

import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import warnings

def load():
    here = os.path.dirname(os.path.abspath(__file__))
    out = tempfile.mkdtemp()
    proto = os.path.join(here, "oracle_protobuf.proto")
    subprocess.check_call(["protoc", "-I", os.path.dirname(proto), "--python_out", out, proto])
    sys.path.insert(0, out)
    import oracle_protobuf_pb2

    return oracle_protobuf_pb2


pb = load()
# C++ drops what does not fit of a varint's tenth byte; dependencies.md 4.1 refuses it. The one difference we mean.
TENTH_BYTE = re.compile(rb"[\x80-\xff]{9}[\x02-\x7f]")
KINDS = ["request_headers", "response_headers", "request_body", "response_body", "request_trailers",
         "response_trailers", "immediate_response"]
SUBSET = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
SERVED = ("envoy.lb", "x-gateway-destination-endpoint-served")
DESTINATION = ("envoy.lb", "x-gateway-destination-endpoint")


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self):
        return self.r.choice(["", "a", "x-b", "é", "10.0.0.7:8000", "a:1, b:2,", " , ", "nul\0", "Z" * 200])

    def raw(self, most=60):
        return bytes(self.r.randrange(256) for _ in range(self.r.choice([0, 1, 3, self.r.randrange(most)])))

    def header(self, h):
        h.key = self.r.choice(["a", "B-c", "x-d", ":path", "", "k\0", "é"])
        if self.r.random() < 0.4:
            h.value = self.text()
        if self.r.random() < 0.7:
            h.raw_value = self.raw()

    def headers(self, m):
        for _ in range(self.r.randrange(5)):
            self.header(m.headers.add())

    def value(self, v, depth=0):
        kind = self.r.randrange(8 if depth < 4 else 5)
        if kind == 0:
            v.null_value = 0
        elif kind == 1:
            v.number_value = self.r.choice([0.0, 1.5, -1e300])
        elif kind in (2, 3):
            v.string_value = self.text()
        elif kind == 4:
            v.bool_value = self.r.random() < 0.5
        elif kind == 5:
            v.struct_value.SetInParent()
            for _ in range(self.r.randrange(3)):
                self.value(v.struct_value.fields[self.r.choice(["a", "", DESTINATION[1]])], depth + 1)
        else:
            v.list_value.SetInParent()
            for _ in range(self.r.randrange(4)):
                self.value(v.list_value.values.add(), depth + 1)

    def request(self):
        m = pb.ProcessingRequest()
        kind = self.r.choice(KINDS[:6] + [None])
        if kind in ("request_headers", "response_headers"):
            part = getattr(m, kind)
            part.SetInParent()
            if self.r.random() < 0.9:
                self.headers(part.headers)
            part.end_of_stream = self.r.random() < 0.5
        elif kind in ("request_body", "response_body"):
            part = getattr(m, kind)
            part.SetInParent()
            part.body = self.raw(400)
            part.end_of_stream = self.r.random() < 0.5
        elif kind is not None:
            getattr(m, kind).SetInParent()
            self.headers(getattr(m, kind).trailers)
        if self.r.random() < 0.5:
            m.metadata_context.SetInParent()
            for space, key in (SUBSET, SERVED, ("other", "x")):
                if self.r.random() < 0.6:
                    self.value(m.metadata_context.filter_metadata[space].fields[key])
        m.observability_mode = self.r.random() < 0.1
        if self.r.random() < 0.3:
            m.protocol_config.request_body_mode = self.r.choice([0, 2, 4, -1, 77])
            m.protocol_config.send_body_without_waiting_for_header_response = self.r.random() < 0.5
        return m

    def mutation(self, m):
        for _ in range(self.r.randrange(4)):
            o = m.set_headers.add()
            if self.r.random() < 0.9:
                self.header(o.header)
            if self.r.random() < 0.3:
                o.append.SetInParent()
                o.append.value = self.r.random() < 0.5
            o.append_action = self.r.choice([0, 1, 2, 3, 9])
            o.keep_empty_value = self.r.random() < 0.3
        for _ in range(self.r.randrange(3)):
            m.remove_headers.append(self.text())

    def response(self):
        m = pb.ProcessingResponse()
        kind = self.r.choice(KINDS + [None])
        if kind in KINDS[:4]:
            getattr(m, kind).SetInParent()
            c = getattr(m, kind).response
            if self.r.random() < 0.9:
                c.SetInParent()
                c.status = self.r.choice([0, 1])
                if self.r.random() < 0.5:
                    self.mutation(c.header_mutation)
                what = self.r.randrange(4)
                if what == 1:
                    c.body_mutation.body = self.raw(400)
                elif what == 2:
                    c.body_mutation.clear_body = self.r.random() < 0.8
                elif what == 3:
                    c.body_mutation.streamed_response.SetInParent()
                    c.body_mutation.streamed_response.body = self.raw(400)
                    c.body_mutation.streamed_response.end_of_stream = self.r.random() < 0.5
                c.clear_route_cache = self.r.random() < 0.5
        elif kind in KINDS[4:6]:
            getattr(m, kind).SetInParent()
            self.mutation(getattr(m, kind).header_mutation)
        elif kind is not None:
            i = m.immediate_response
            i.SetInParent()
            i.status.code = self.r.choice([0, 200, 429, 503])
            self.mutation(i.headers)
            i.body = self.raw()
            i.details = self.text()
        if self.r.random() < 0.4:
            m.dynamic_metadata.SetInParent()
            for space in ("envoy.lb", "other"):
                if self.r.random() < 0.7:
                    self.value(m.dynamic_metadata.fields[space])
            if self.r.random() < 0.5:
                self.value(m.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION[1]])
        return m

    def mutate(self, data):
        data = bytearray(data)
        for _ in range(self.r.randrange(1, 4)):
            what = self.r.randrange(5)
            at = self.r.randrange(len(data) + 1)
            if what == 0 and data:
                data[self.r.randrange(len(data))] = self.r.randrange(256)
            elif what == 1:
                del data[at:]
            elif what == 2:
                data[at:at] = bytes([self.r.choice([0, 8, 10, 11, 12, 18, 0x80, 0xff])])
            elif what == 3:
                del data[at:at + 1]
            else:
                data[at:at] = data[self.r.randrange(len(data) + 1):][:self.r.randrange(1, 20)]
        return bytes(data)


def unknown(r):
    return r.choice([b"\xa0\x06\x01", b"\xa2\x06\x02\xff\xfe", b"\xa1\x06" + b"12345678", b"\xa5\x06" + b"1234",
                     b"\xa3\x06\x08\x01\xa4\x06", b"\xa3\x06\x0b\x0c\xa4\x06"])


def hexed(data):
    return "." + data.hex()


def value_of(h):
    return h.raw_value if h.raw_value else h.value.encode()


def has_nul(h):
    return "\0" in h.key or b"\0" in value_of(h)


def strings_of(value):
    return [v.string_value for v in value.list_value.values if v.WhichOneof("kind") == "string_value"]


def trimmed(text):
    return [t for t in (i.strip(" \t") for i in text.split(",")) if t]


def lookup(fields, key):
    return fields[key] if key in fields else None


def see_request(m):
    kind = m.WhichOneof("request")
    part = getattr(m, kind) if kind else None
    headers = []
    if kind in ("request_headers", "response_headers"):
        headers = part.headers.headers
    elif kind in ("request_trailers", "response_trailers"):
        headers = part.trailers.headers
    eos = kind is not None and "trailers" not in kind and part.end_of_stream
    body = part.body if kind in ("request_body", "response_body") else b""
    p = m.protocol_config
    kept = [h for h in headers if not has_nul(h)]
    out = "A %d %d %d %d" % (KINDS.index(kind) + 1 if kind else 0, eos, m.observability_mode,
                             m.HasField("protocol_config"))
    out += " %d %d %d" % (p.request_body_mode, p.response_body_mode,
                          p.send_body_without_waiting_for_header_response)
    out += " headers:%d:%d" % (len(kept), len(headers) - len(kept))
    out += "".join(hexed(h.key.encode()) + hexed(value_of(h)) for h in kept)
    out += " " + hexed(body)
    if m.HasField("metadata_context"):
        filters = m.metadata_context.filter_metadata
        v = lookup(filters[SUBSET[0]].fields, SUBSET[1]) if SUBSET[0] in filters else None
        items, wrong = [], False
        if v is not None:
            k = v.WhichOneof("kind")
            if k == "string_value":
                items = trimmed(v.string_value)
            elif k == "list_value":
                items = [i for s in strings_of(v) for i in trimmed(s)]
            else:
                wrong = True
        out += " subset:%d:%d:%d" % (v is not None, wrong, len(items)) + "".join(hexed(i.encode()) for i in items)
        v = lookup(filters[SERVED[0]].fields, SERVED[1]) if SERVED[0] in filters else None
        served = None
        if v is not None and v.WhichOneof("kind") == "string_value":
            served = (trimmed(v.string_value) or [None])[-1]
        elif v is not None and v.WhichOneof("kind") == "list_value":
            served = ([s.strip(" \t") for s in strings_of(v) if s.strip(" \t")] or [None])[-1]
        out += " served:%d" % (served is not None) + hexed((served or "").encode())
    return out, len(headers)


def see_response(m):
    kind = m.WhichOneof("response")
    part = getattr(m, kind) if kind else None
    mutation, change, body, eos, status, clear = pb.HeaderMutation(), 0, b"", False, 0, False
    http, details = 0, ""
    if kind in KINDS[:4]:
        c = part.response
        mutation, status, clear = c.header_mutation, c.status, c.clear_route_cache
        what = c.body_mutation.WhichOneof("mutation")
        if what == "body":
            change, body = 1, c.body_mutation.body
        elif what == "clear_body":
            change = 2 if c.body_mutation.clear_body else 0
        elif what == "streamed_response":
            change, body = 3, c.body_mutation.streamed_response.body
            eos = c.body_mutation.streamed_response.end_of_stream
    elif kind in KINDS[4:6]:
        mutation = part.header_mutation
    elif kind is not None:
        mutation, http, body, details = part.headers, part.status.code, part.body, part.details
    out = "A %d %d %d %d %d %d" % (KINDS.index(kind) + 1 if kind else 0, change, eos, status, clear,
                                   http & 0xffffffff)
    out += hexed(details.encode())
    out += " sets:%d" % len(mutation.set_headers)
    for o in mutation.set_headers:
        out += hexed(o.header.key.encode()) + hexed(value_of(o.header))
        out += ":%d:%d:%d:%d:%d" % (o.append_action, o.HasField("append"), o.append.value, o.keep_empty_value,
                                    has_nul(o.header))
    out += " removes:%d" % len(mutation.remove_headers)
    out += "".join(hexed(r.encode()) for r in mutation.remove_headers)
    out += " " + hexed(body)
    destination = None
    lb = lookup(m.dynamic_metadata.fields, DESTINATION[0])
    if lb is not None and lb.WhichOneof("kind") == "struct_value":
        v = lookup(lb.struct_value.fields, DESTINATION[1])
        if v is not None and v.WhichOneof("kind") == "string_value":
            destination = v.string_value
    out += " destination:%d" % (destination is not None) + hexed((destination or "").encode())
    return out, max(len(mutation.set_headers), len(mutation.remove_headers))


def lower(data):
    return bytes(c | 0x20 if 65 <= c <= 90 else c for c in data)


def same_request(a, b):
    """b is what we wrote from a: names in lower case, values raw, headers with NUL gone, no metadata."""
    c = pb.ProcessingRequest()
    c.CopyFrom(a)
    c.DiscardUnknownFields()
    c.ClearField("metadata_context")
    c.ClearField("attributes")
    for kind in KINDS[:2] + KINDS[4:6]:
        if c.HasField(kind):
            part = getattr(c, kind)
            holder = part.headers if "headers" in kind else part.trailers
            kept = [h for h in holder.headers if not has_nul(h)]
            rows = [(lower(h.key.encode()).decode(), value_of(h)) for h in kept]
            del holder.headers[:]
            holder.SetInParent()
            for key, value in rows:
                holder.headers.add(key=key, raw_value=value)
    return c.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)


def parse(cls, data):
    """None if refused. A tag 0 or an end-group without its start makes Python stop with a warning and keep what it
    had; that is a refusal here, as the specification wants it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            m = cls()
            m.ParseFromString(data)
        except Exception:
            return None
        return None if caught else m


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    maker = Maker(seed)
    r = maker.r
    cases = []
    for _ in range(count):
        letter = r.choice("qs")
        make = maker.request if letter == "q" else maker.response
        data = make().SerializeToString()
        dice = r.random()
        if dice < 0.3:  # merged: concatenation of two messages, with unknown fields between
            data = data + unknown(r) + make().SerializeToString()
        elif dice < 0.7:
            data = maker.mutate(data)
        cases.append((letter, data))
    text = b"".join(l.encode() + struct.pack("<I", len(d)) + d for l, d in cases)
    lines = subprocess.run([sys.argv[1]], input=text, stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    assert len(lines) == count + 1, len(lines)
    accepted = refused = written = tenth = 0
    for (letter, data), line in zip(cases, lines):
        m = parse(pb.ProcessingRequest if letter == "q" else pb.ProcessingResponse, data)
        ours, _, wire = line.partition(" = .")
        if m is None:
            if ours != "R":
                sys.exit("seed %d: Python refuses, we accept: %s %s\n%s" % (seed, letter, data.hex(), ours))
            refused += 1
            continue
        if ours == "R" and TENTH_BYTE.search(data):
            tenth += 1
            continue
        theirs, headers = see_request(m) if letter == "q" else see_response(m)
        if ours != theirs:
            sys.exit("seed %d: %s %s\nours   %s\ntheirs %s" % (seed, letter, data.hex(), ours, theirs))
        accepted += 1
        back = parse(type(m), bytes.fromhex(wire))
        if back is None:
            sys.exit("seed %d: Python cannot read what we write: %s" % (seed, wire))
        if letter == "q":
            if not same_request(m, back):
                sys.exit("seed %d: written differently\n%s\n%s" % (seed, data.hex(), wire))
        else:
            again, _ = see_response(back)
            if back.WhichOneof("response") != m.WhichOneof("response"):
                sys.exit("seed %d: written as another answer\n%s\n%s" % (seed, data.hex(), wire))
            if again.split(" ")[-2:] != theirs.split(" ")[-2:] or again.split(" ")[2:4] != theirs.split(" ")[2:4]:
                sys.exit("seed %d: written differently\n%s\n%s" % (seed, theirs, again))
        written += 1
    print("%d messages: %d accepted alike, %d refused alike, %d written and read back, %d with a tenth byte we refuse" %
          (count, accepted, refused, written, tenth))


main()
