#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# peers: python-grpc curl openssl
"""A foreign picker (Python on C-core gRPC, foreign protobuf) behind `fairlead gateway`, over plaintext and over TLS
with a self-signed certificate, well-behaved and in all the ways of gateway.md 9.4-9.8 that a picker can fail."""
import concurrent.futures
import http.client
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fairlead_gateway import (NO_ENDPOINT, SHA, UNAVAILABLE, Gateway, ask, check_refused, check_served, completion, seeded,
                              words_of)
from fairlead_system import Program, metrics, total, wait_until

OUT = tempfile.mkdtemp(prefix="fairlead-python-epp-")
HERE = os.path.dirname(os.path.abspath(__file__))
subprocess.run(["protoc", "-I", HERE, "--python_out", OUT, "ext_proc.proto"], check=True)
sys.path.insert(0, OUT)
import ext_proc_pb2 as pb

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DEST = "x-gateway-destination-endpoint"
PIECE = 62000
TIMEOUT_MS = 1000
RESTARTS = 4


def option(key, value, **more):
    return pb.HeaderValueOption(header=pb.HeaderValue(key=key, raw_value=value.encode()), **more)


def header_answer(destination, *more, removed=()):
    sets = [option(DEST, destination)] if destination is not None else []
    common = pb.CommonResponse(header_mutation=pb.HeaderMutation(set_headers=[*sets, *more], remove_headers=removed),
                               clear_route_cache=True)
    return pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common))


def body_answers(body):
    for at in range(0, max(len(body), 1), PIECE):
        piece = pb.StreamedBodyResponse(body=body[at:at + PIECE], end_of_stream=at + PIECE >= len(body))
        yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=pb.CommonResponse(
            body_mutation=pb.BodyMutation(streamed_response=piece))))


def immediate(status, body, *sets):
    answer = pb.ImmediateResponse(body=body, headers=pb.HeaderMutation(set_headers=sets))
    if status is not None:
        answer.status.code = status
    return pb.ProcessingResponse(immediate_response=answer)


class Told:
    """What one stream told the picker."""

    def __init__(self, message):
        self.first = message
        self.headers = [(h.key, h.raw_value.decode()) for h in message.request_headers.headers.headers]
        self.no_body = message.request_headers.end_of_stream
        self.play = dict(self.headers).get("x-play", "good")
        self.pieces, self.response, self.response_body, self.served, self.ends = [], None, [], None, 0
        self.outcome = None  # "done" or "cancelled"

    @property
    def body(self):
        return b"".join(self.pieces)


class Picker:
    """Behaves as the request's x-play says."""

    def __init__(self, names, port=None, certificate=None):
        self.names, self.told, self.go = names, {}, threading.Event()
        self.certificate = certificate
        self.port = self.secure_port = None
        self.server = None
        self.start()

    def start(self):
        """Anew at the same ports, while an older server may still be finishing."""
        handler = grpc.method_handlers_generic_handler(SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(
            self.process, request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString())})
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(64))
        self.server.add_generic_rpc_handlers((handler,))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port or 0}")
        self.secure_port = self.server.add_secure_port(f"127.0.0.1:{self.secure_port or 0}",
                                                       grpc.ssl_server_credentials([self.certificate]))
        self.server.start()

    def process(self, requests, context):
        told = Told(next(requests))
        self.told[dict(told.headers)["x-request-id"]] = told

        def ended():
            # No public name tells a reset from a half-close: to the iterator of requests both may look alike.
            told.outcome = "cancelled" if context._state.client == "cancelled" else "done"

        context.add_callback(ended)
        yield from getattr(self, "play_" + told.play.replace("-", "_"))(told, requests, context)

    @staticmethod
    def read_body(told, requests):
        if told.no_body:
            return
        for message in requests:
            assert message.WhichOneof("request") == "request_body", message
            told.pieces.append(message.request_body.body)
            if message.request_body.end_of_stream:
                return

    @staticmethod
    def read_response(told, requests):
        for message in requests:
            kind = message.WhichOneof("request")
            if kind == "response_headers":
                told.response = [(h.key, h.raw_value.decode()) for h in message.response_headers.headers.headers]
                told.response_ends = message.response_headers.end_of_stream
                lb = message.metadata_context.filter_metadata["envoy.lb"].fields
                told.served = lb[DEST + "-served"].string_value
                yield pb.ProcessingResponse(response_headers=pb.HeadersResponse())
            elif kind == "response_body":
                told.response_body.append(message.response_body.body)
                told.ends += message.response_body.end_of_stream
                yield pb.ProcessingResponse(response_body=pb.BodyResponse(response=pb.CommonResponse(
                    body_mutation=pb.BodyMutation(streamed_response=pb.StreamedBodyResponse(
                        body=message.response_body.body, end_of_stream=message.response_body.end_of_stream)))))

    def answer(self, told, requests, destination, *more, removed=(), body=None):
        self.read_body(told, requests)
        yield header_answer(destination, *more, removed=removed)
        if not told.no_body:
            yield from body_answers(told.body if body is None else body)
        yield from self.read_response(told, requests)

    def play_good(self, told, requests, context):
        # As llm-d's picker: it echoes pseudo headers and content-length; the gateway must not follow them.
        echo = [option(k, v) for k, v in told.headers if k.startswith(":")] + [option("content-length", "5")]
        yield from self.answer(told, requests, self.names["live"], *echo, option("x-prefiller-host-port", "6.6.6.6:1"),
                               removed=["X-Drop"])

    def play_metadata(self, told, requests, context):
        self.read_body(told, requests)
        answer = header_answer(None)
        answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DEST].string_value = self.names["live"]
        yield answer
        yield from body_answers(told.body)
        yield from self.read_response(told, requests)

    def play_rewrite(self, told, requests, context):
        self.read_body(told, requests)
        yield header_answer(self.names["live"])
        yield from body_answers(told.body.replace(b'"seed"', b'"seed_of_the_picker"'))
        yield from self.read_response(told, requests)

    def play_four(self, told, requests, context):
        yield from self.answer(told, requests, " , ".join([*self.names["dead"], self.names["live"]]))

    def play_fifth(self, told, requests, context):
        yield from self.answer(told, requests, ",".join([*self.names["dead"], self.names["dead4"], self.names["live"], self.names["other"]]))

    def play_unknown(self, told, requests, context):
        yield from self.answer(told, requests, "127.0.0.1:1,[::1]:99999,nonsense,10.0.0.1")

    def play_nothing(self, told, requests, context):
        yield from self.answer(told, requests, None)

    def play_shed(self, told, requests, context):
        self.read_body(told, requests)
        yield immediate(429, b'{"error":"shed"}', option("x-shed", "yes"), option("content-length", "3"))

    def play_shed_early(self, told, requests, context):
        yield immediate(503, b"full", option("retry-after", "7"))

    def play_shed_unsaid(self, told, requests, context):
        self.read_body(told, requests)
        yield immediate(None, b"?")

    def play_per_chunk(self, told, requests, context):
        for message in requests:
            told.pieces.append(message.request_body.body)
            if message.request_body.end_of_stream:
                break
            yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=pb.CommonResponse()))
        yield header_answer(self.names["live"])
        yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=pb.CommonResponse()))
        yield from self.read_response(told, requests)

    def play_slow(self, told, requests, context):
        self.go.wait(20)
        yield from self.answer(told, requests, self.names["live"])

    def play_abort(self, told, requests, context):
        next(requests)
        context.abort(grpc.StatusCode.UNAVAILABLE, "closing")
        yield

    def play_end(self, told, requests, context):
        self.read_body(told, requests)
        return
        yield

    def play_half(self, told, requests, context):
        """Header answer, half of the body, then an error."""
        self.read_body(told, requests)
        yield header_answer(self.names["live"])
        yield next(body_answers(told.body + b"?" * PIECE))
        context.abort(grpc.StatusCode.INTERNAL, "broken")

    def play_garbage(self, told, requests, context):
        self.read_body(told, requests)
        yield b"\x0a\x7f\x00"
        self.go.wait(5)

    def play_answer_and_end(self, told, requests, context):
        self.read_body(told, requests)
        yield header_answer(self.names["live"])
        yield from body_answers(told.body)

    def play_fail_late(self, told, requests, context):
        self.read_body(told, requests)
        yield header_answer(self.names["live"])
        yield from body_answers(told.body)
        next(requests)
        context.abort(grpc.StatusCode.INTERNAL, "broken")

    def play_evict(self, told, requests, context):
        self.read_body(told, requests)
        yield header_answer(self.names["live"])
        yield from body_answers(told.body)
        for message in requests:
            if message.WhichOneof("request") == "response_body":  # the client has seen some of it
                yield immediate(503, b"evicted")
                return


class World:
    def __init__(self, secure, certificate):
        folder = tempfile.mkdtemp(prefix="fairlead-world-")
        self.engines = [Program(["engine", "--listen", "127.0.0.1:0", "--model", "m", "--digest", "--time-scale", "40"],
                                folder, f"engine-{i}") for i in range(2)]
        live, other = [e.listeners["http"] for e in self.engines]
        # Bound, never listening: a connection is refused, and nobody else gets the port meanwhile.
        self.reserved = [socket.socket() for _ in range(4)]
        for s in self.reserved:
            s.bind(("127.0.0.1", 0))
        dead = ["127.0.0.1:%d" % s.getsockname()[1] for s in self.reserved]
        self.names = {"live": live, "other": other, "dead": dead[:3], "dead4": dead[3]}
        self.picker = Picker(self.names, certificate=certificate)
        self.gateway = Gateway()
        self.count = 0
        self.ports = {}
        # Never four dead ones in a row: after four attempts a fallback gives up as well (gateway.md 8.3).
        listed = [dead[0], other, dead[1], live, dead[2], dead[3]]
        port = self.picker.secure_port if secure else self.picker.port
        for mode in ("FailClose", "FailOpen"):
            self.ports[mode] = self.gateway.add(listed, name=mode, eppFailureMode=mode, eppPlaintext=not secure,
                                                eppEndpoint=f"127.0.0.1:{port}", eppTimeoutMs=TIMEOUT_MS)
        self.patient = self.gateway.add([other, live], name="patient", eppPlaintext=not secure,
                                        eppEndpoint=f"127.0.0.1:{port}", eppTimeoutMs=3000)

    def ask(self, play, mode="FailClose", body=None, fields=(), port=None, **more):
        """(reply, what the picker was told)"""
        self.count += 1
        name = f"{play}-{mode}-{self.count}"
        body = completion(words_of(seeded(name))) if body is None and "path" not in more else body
        reply = ask(port or self.ports[mode], body, fields={"x-play": play, "x-request-id": name, **dict(fields)}, **more)
        return reply, wait_until(lambda: self.picker.told.get(name), "the picker's question"), body

    def served_by(self, play, name, mode="FailClose", **more):
        """One good answer from the engine of that name, by the engine's own counter."""
        engine = self.names[name]
        before = total(metrics(engine), "vllm:request_success_total")
        reply, told, body = self.ask(play, mode, **more)
        check_served(reply, body)
        assert total(metrics(engine), "vllm:request_success_total") == before + 1, (play, name)
        return told, body

    def refused(self, play, text):
        """FailClose: that 503. FailOpen: served with the client's own body."""
        reply, told, _ = self.ask(play)
        check_refused(reply, text)
        wait_until(lambda: told.outcome, "the end of the stream")
        reply, _, body = self.ask(play, "FailOpen")
        check_served(reply, body)
        return told

    def counters(self):
        values = self.gateway.metrics()
        return {**self.gateway.outcomes(),
                **{r: int(total(values, f'loxilb_ai_epp_candidates_rejected_total{{reason="{r}"}}'))
                   for r in ("unknown", "connect_failed")},
                **{c: int(sum(v for k, v in values.items() if k.startswith("fairlead_gateway_fallback_total") and f'"{c}"' in k))
                   for c in ("unavailable",)}}

    def stop(self):
        self.gateway.stop()
        self.picker.go.set()
        self.picker.server.stop(1).wait()
        for s in self.reserved:
            s.close()
        for e in self.engines:
            assert e.stop() == 0


def good(world):
    """gateway.md 9.2, 9.4, 9.8: what the picker is told, and that its echoes change nothing."""
    for size in (0, 65536, 300 << 10, 1 << 20):
        body = completion("one two", size=size)
        told, _ = world.served_by("good", "live", body=body, fields={
            "x-drop": "1", DEST: "127.0.0.1:1", DEST + "-subset": "127.0.0.1:1", "x-prefiller-host-port": "127.0.0.1:1"})
        assert told.body == body and all(0 < len(p) <= 65536 for p in told.pieces), [len(p) for p in told.pieces]
        names = [k for k, _ in told.headers]
        fields = dict(told.headers)
        assert names[:4] == [":method", ":path", ":authority", ":scheme"] and fields[":method"] == "POST", names
        assert fields[":path"] == "/v1/completions" and fields["content-length"] == str(len(body))
        for dropped in (DEST, DEST + "-subset", "x-prefiller-host-port", "host", "connection"):
            assert dropped not in names, dropped
        assert all(h.value == "" for h in told.first.request_headers.headers.headers)
        assert not told.first.HasField("protocol_config") and not told.first.observability_mode
        hint = told.first.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields[DEST + "-subset"]
        assert sorted(v.string_value for v in hint.list_value.values) == sorted(
            [world.names["live"], world.names["other"], *world.names["dead"], world.names["dead4"]]), hint
        wait_until(lambda: told.outcome, "the end of the stream")
        answered = dict(told.response)
        assert told.outcome == "done" and told.served == world.names["live"] and answered[":status"] == answered["status"] == "200"
        assert not told.response_ends and told.ends == 1 and told.response_body[-1] == b"" and b"" not in told.response_body[:-1]
        assert b'"usage"' in b"".join(told.response_body)  # edges: a small body arrives whole
    body = completion("three four", stream=True, tokens=30)
    reply, told, _ = world.ask("good", body=body)
    check_served(reply, body, stream=True)
    wait_until(lambda: told.outcome, "the end of the stream")
    assert told.outcome == "done" and told.ends == 1 and b"".join(told.response_body) == reply.body
    reply, told, _ = world.ask("good", path="/v1/models")
    assert reply.status == 200 and told.no_body and told.pieces == [], reply
    world.served_by("metadata", "live")
    body = completion("five six", size=150 << 10)
    reply, _, _ = world.ask("rewrite", body=body)
    rewritten = body.replace(b'"seed"', b'"seed_of_the_picker"')
    assert reply.status == 200 and reply.fields[SHA] == hashlib.sha256(rewritten).hexdigest() != hashlib.sha256(body).hexdigest()
    # A chunked upload becomes a body of known length, byte for byte.
    body = completion("seven", size=300 << 10)
    reply, told, _ = world.ask("good", body=body, pieces=(body[at:at + 5000] for at in range(0, len(body), 5000)))
    check_served(reply, body)
    assert told.body == body


def candidates(world):
    """gateway.md 9.5; cases 28 and 29."""
    before = world.counters()
    world.served_by("four", "live")
    after = world.counters()
    assert after["connect_failed"] == before["connect_failed"] + 3, (before, after)
    reply, told, _ = world.ask("fifth")  # only four are considered
    check_refused(reply, NO_ENDPOINT)
    assert wait_until(lambda: told.outcome, "the end of the stream") == "cancelled"
    told = world.refused("unknown", NO_ENDPOINT)
    assert told.outcome == "cancelled"
    last = world.counters()
    assert last["unknown"] == after["unknown"] + 2, (after, last)
    assert last["no_endpoint"] == before.get("no_endpoint", 0) + 3, (before, last)
    world.refused("nothing", NO_ENDPOINT)


def immediate_answers(world):
    """gateway.md 9.6: relayed in both modes, lengths computed, types guessed."""
    before = world.counters().get("immediate", 0)
    for mode in ("FailClose", "FailOpen"):
        reply, _, _ = world.ask("shed", mode)
        assert (reply.status, reply.body) == (429, b'{"error":"shed"}') and reply.fields["x-shed"] == "yes", reply
        assert reply.fields["content-length"] == "16" and reply.fields["content-type"] == "application/json", reply
        reply, _, _ = world.ask("shed-early", mode, body=completion("x", size=200 << 10))
        assert (reply.status, reply.body, reply.fields["retry-after"]) == (503, b"full", "7"), reply
        assert reply.fields["content-type"] == "text/plain", reply
        reply, _, _ = world.ask("shed-unsaid", mode)
        assert (reply.status, reply.body) == (500, b"?"), reply
    assert world.counters()["immediate"] == before + 6


def failures(world):
    """gateway.md 9.7: all that is no answer."""
    before = world.counters()
    for play in ("abort", "end", "half", "garbage"):
        world.refused(play, UNAVAILABLE)
    start = time.monotonic()
    told = world.refused("slow", UNAVAILABLE)
    spent = time.monotonic() - start
    assert 2 * TIMEOUT_MS / 1000 <= spent < 8 and told.outcome == "cancelled", (spent, told.outcome)
    after = world.counters()
    assert after["error"] == before.get("error", 0) + 10 and after["unavailable"] == before["unavailable"] + 5, (before, after)
    world.picker.go.set()


def ends_of_picker(world):
    """Cases 63, 67 and 38, and an error that comes too late to matter."""
    for size in (0, 200 << 10):
        world.served_by("per-chunk", "live", body=completion("nine", size=size))
    before = world.counters()
    world.served_by("answer-and-end", "live")
    body = completion("ten", stream=True, tokens=60)
    reply, _, _ = world.ask("fail-late", body=body)
    check_served(reply, body, stream=True)
    after = world.counters()
    assert after["ok"] == before["ok"] + 2 and after["error"] == before["error"], (before, after)
    try:
        reply, _, _ = world.ask("evict", body=completion("eleven", stream=True, tokens=4000), timeout=10)
        raise AssertionError(f"an evicted stream ended well: {reply.status} {len(reply.body)}")
    except (http.client.IncompleteRead, ConnectionResetError):
        pass
    assert wait_until(lambda: world.counters().get("evicted", 0), "evicted") == 1


def restarts(world):
    """Case 41: GOAWAY of a restarting picker. What it took, it finishes; what it did not take goes to the new one.

    C-core kills the streams that reach it between its shutdown and its final GOAWAY, although that GOAWAY counts them
    as taken: no client may know that they are safe to repeat. Those, and only those, may fail: the picker's code has
    never heard of them, and a client has one at most under way."""
    stop, killed = threading.Event(), []
    before = world.counters()

    def load(worker):
        n = 0
        while not stop.is_set():
            body = completion(f"restart {worker} {n}", size=100 << 10)
            name = f"restart-{worker}-{n}"
            reply = ask(world.patient, body, fields={"x-play": "good", "x-request-id": name})
            if reply.status != 200:
                check_refused(reply, UNAVAILABLE)
                assert name not in world.picker.told, name
                killed.append(name)
            else:
                check_served(reply, body)
            n += 1
        return n

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load, i) for i in range(4)]
        for _ in range(RESTARTS):
            mark = world.counters()["ok"]
            wait_until(lambda: world.counters()["ok"] > mark + 30 or any(f.done() for f in loads), "load")
            old = world.picker.server
            world.picker.start()
            old.stop(10).wait()
        mark = world.counters()["ok"]
        wait_until(lambda: world.counters()["ok"] > mark + 30 or any(f.done() for f in loads), "load")
        stop.set()
        count = sum(f.result() for f in loads)
    after = world.counters()
    assert len(killed) <= len(loads) * RESTARTS and count > 30 * RESTARTS, (killed, count)
    assert after["ok"] == before["ok"] + count - len(killed), (before, after, count, killed)
    assert after.get("error", 0) == before.get("error", 0) + len(killed), (before, after, killed)
    return f"{count - len(killed)} of {count}"


def certificate():
    key, cert = os.path.join(OUT, "key.pem"), os.path.join(OUT, "cert.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=nobody-we-know", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return open(key, "rb").read(), open(cert, "rb").read()


def main():
    pair = certificate()
    counts = []
    for secure in (False, True):
        world = World(secure, pair)
        good(world)
        candidates(world)
        immediate_answers(world)
        failures(world)
        ends_of_picker(world)
        counts.append(restarts(world))
        names = ("fairlead_gateway_epp_inflight", "fairlead_gateway_epp_streams")
        wait_until(lambda: all(total(world.gateway.metrics(), n) == 0 for n in names), "gauges at 0")
        world.stop()
    print(f"19 behaviours of a Python picker over plaintext and TLS; {' and '.join(counts)} requests served over {RESTARTS} restarts")


if __name__ == "__main__":
    main()
