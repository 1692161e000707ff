#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
# peers: python-grpc
"""A foreign gRPC stack (C-core) and a foreign protobuf play epp.md 24.1 and gaie.md 1.4's bytes to the picker, over
plaintext and over TLS, and ask its health service."""
import os
import ssl
import subprocess
import sys
import tempfile

import grpc

sys.path.insert(0, os.path.dirname(__file__))
from fairlead_system import System, metrics, total, wait_until

out = tempfile.mkdtemp()
here = os.path.dirname(os.path.abspath(__file__))
subprocess.run(["protoc", "-I", here, "--python_out", out, "ext_proc.proto"], check=True)
sys.path.insert(0, out)
import ext_proc_pb2 as pb

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DEST = "x-gateway-destination-endpoint"


def header(key, value):
    return pb.HeaderValue(key=key, raw_value=value.encode())


def headers(pairs, end=False):
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=[header(k, v) for k, v in pairs]), end_of_stream=end)


def channel_of(system, secure):
    address = system.epp.listeners["ext_proc"]
    if not secure:
        return grpc.insecure_channel(address)
    host, port = address.split(":")
    pem = ssl.get_server_certificate((host, int(port))).encode()
    options = (("grpc.ssl_target_name_override", "localhost"),)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(pem), options)


class Stream:
    """A bidirectional call whose requests are given one by one."""

    def __init__(self, channel):
        import queue
        self.queue = queue.Queue()
        call = channel.stream_stream(PROCESS, request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
                                     response_deserializer=pb.ProcessingResponse.FromString)
        self.call = call(iter(self.queue.get, None), timeout=20)

    def send(self, message):
        self.queue.put(message)

    def read(self):
        return next(self.call)

    def close(self):
        self.queue.put(None)
        rest = list(self.call)
        return rest, self.call.code()


def mutation(response):
    return {o.header.key: o.header.raw_value.decode() for o in response.header_mutation.set_headers}


def streaming_chat(channel, endpoints):
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"one two three"}]}'
    s = Stream(channel)
    s.send(pb.ProcessingRequest(
        request_headers=headers([(":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json"),
                                 ("x-request-id", "r1"), ("x-prefiller-host-port", "6.6.6.6:1")]),
        protocol_config=pb.ProtocolConfiguration(request_body_mode=4, response_body_mode=4,
                                                 send_body_without_waiting_for_header_response=True)))
    s.send(pb.ProcessingRequest(request_body=pb.HttpBody(body=body[:30])))
    s.send(pb.ProcessingRequest(request_body=pb.HttpBody(body=body[30:], end_of_stream=True)))
    answer = s.read()
    assert answer.WhichOneof("response") == "request_headers", answer
    common = answer.request_headers.response
    picked = mutation(common)[DEST]
    assert picked in endpoints, picked
    assert common.clear_route_cache
    assert "x-prefiller-host-port" in common.header_mutation.remove_headers
    assert all(o.append_action == 2 and not o.HasField("append") and o.header.value == "" for o in common.header_mutation.set_headers)
    assert answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DEST].string_value == picked
    echoed = s.read()
    piece = echoed.request_body.response.body_mutation.streamed_response
    assert piece.body == body and piece.end_of_stream, echoed
    served = pb.ProcessingRequest(response_headers=headers([(":status", "200"), ("content-type", "text/event-stream")]))
    served.metadata_context.filter_metadata["envoy.lb"].fields["x-gateway-destination-endpoint-served"].string_value = picked
    s.send(served)
    assert s.read().WhichOneof("response") == "response_headers"
    for data, end in ((b"", False), (b'data: {"choices":[]}\n\n', False),
                      (b'data: {"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,'
                       b'"prompt_tokens_details":{"cached_tokens":3}}}\n\ndata: [DONE]\n\n', True)):
        s.send(pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=end)))
        piece = s.read().response_body.response.body_mutation.streamed_response
        assert piece.body == data and piece.end_of_stream == end
    rest, code = s.close()
    assert rest == [] and code == grpc.StatusCode.OK, (rest, code)


def spec_bytes(channel, endpoints):
    """gaie.md 1.4: the messages as printed there, without the frame's five bytes."""
    s = Stream(channel)
    s.send(bytes.fromhex("12270a250a0f0a073a6d6574686f641a04504f53540a120a0c782d726571756573742d69641a027231"))
    s.send(bytes.fromhex("22060a027b7d1001"))
    answer = s.read()
    picked = mutation(answer.request_headers.response)[DEST]
    assert picked in endpoints
    tail = s.read()
    assert tail.SerializeToString() == bytes.fromhex("1a0c0a0a1a081a060a027b7d1001"), tail
    s.close()


def refusals(channel):
    def first(*messages):
        s = Stream(channel)
        for m in messages:
            s.send(m)
        try:
            return s.read().immediate_response, s.close()[1]
        except grpc.RpcError as error:
            return None, error.code()

    post = [(":method", "POST"), (":path", "/v1/chat/completions")]
    answer, code = first(pb.ProcessingRequest(request_headers=headers(post)),
                         pb.ProcessingRequest(request_body=pb.HttpBody(body=b'{"model":"other","messages":[]}', end_of_stream=True)))
    assert answer.status.code == 404 and b'"model_not_found"' in answer.body and code == grpc.StatusCode.OK
    answer, code = first(pb.ProcessingRequest(request_headers=headers(post)),
                         pb.ProcessingRequest(request_body=pb.HttpBody(body=b"{nonsense", end_of_stream=True)))
    assert answer.status.code == 400 and b'"invalid_request_body"' in answer.body
    hint = pb.ProcessingRequest(request_headers=headers(post))
    hint.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields[DEST + "-subset"].string_value = "10.9.9.9:1"
    answer, code = first(hint, pb.ProcessingRequest(request_body=pb.HttpBody(body=b'{"model":"m","messages":[]}', end_of_stream=True)))
    assert answer.status.code == 503 and b'"no_endpoints"' in answer.body
    answer, code = first(pb.ProcessingRequest(request_headers=headers(post), protocol_config=pb.ProtocolConfiguration(
        request_body_mode=3, response_body_mode=4)))
    assert answer is None and code == grpc.StatusCode.FAILED_PRECONDITION, code
    answer, code = first(b"\x12\x7f\x00")
    assert answer is None and code == grpc.StatusCode.INVALID_ARGUMENT, code
    try:
        channel.unary_unary("/no.such.Service/Method")(b"", timeout=5)
        raise AssertionError("an unknown method was answered")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED


def health(address):
    channel = grpc.insecure_channel(address)
    check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=lambda m: m.SerializeToString(),
                                response_deserializer=pb.HealthCheckResponse.FromString)
    for name, status in (("", 1), ("readiness", 1), ("liveness", 1), ("inference-extension", 1),
                         ("envoy.service.ext_proc.v3.ExternalProcessor", 1), ("nope", 3)):
        got = check(pb.HealthCheckRequest(service=name), timeout=5).status
        assert got == status, (name, got)
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch", request_serializer=lambda m: m.SerializeToString(),
                                 response_deserializer=pb.HealthCheckResponse.FromString)
    call = watch(pb.HealthCheckRequest(service="readiness"), timeout=10)
    assert next(call).status == 1
    call.cancel()


for secure in (False, True):
    system = System(engines=2, secure=secure)
    endpoints = {e.listeners["http"] for e in system.engines}
    channel = channel_of(system, secure)
    for _ in range(20):
        streaming_chat(channel, endpoints)
    spec_bytes(channel, endpoints)
    refusals(channel)
    health(system.epp.listeners["health"])
    if not secure:
        health(system.epp.listeners["ext_proc"])
    page = system.epp.listeners["metrics"]
    wait_until(lambda: total(metrics(page), "fairlead_select_booked_total") ==
               total(metrics(page), "fairlead_select_freed_total") >= 21, "booked = freed")
    channel.close()
    system.stop()
print("epp.md 24.1 x 20, gaie.md 1.4, refusals and health over plaintext and TLS; booked = freed")
