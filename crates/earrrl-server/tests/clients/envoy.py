"""Envoy's rate limit service as grpcio sees it, with messages that reflection tells of."""
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")
token = [("authorization", f"Bearer {sys.argv[2]}")]

database = ProtoReflectionDescriptorDatabase(channel)
KUADRANT = "kuadrant.service.ratelimit.v1.RateLimitService"
for service in (SERVICE, "envoy.service.auth.v3.Authorization", KUADRANT):
    assert service in database.get_services(), database.get_services()
pool = DescriptorPool(database)
method = pool.FindServiceByName(SERVICE).FindMethodByName("ShouldRateLimit")
Request, Response = (GetMessageClass(t) for t in (method.input_type, method.output_type))
OK, OVER = 1, 2


def call(request, path=f"/{SERVICE}/ShouldRateLimit", metadata=token, timeout=30):
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    send = channel.unary_unary(path, response_deserializer=Response.FromString)
    return send(raw, metadata=metadata, timeout=timeout)


def fails(code, request, **options):
    try:
        answer = call(request, **options)
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error.details()
    raise AssertionError(f"expected {code}, got {answer}")


def request(*descriptors, domain="shop", hits=0):
    message = Request(domain=domain, hits_addend=hits)
    for entries in descriptors:
        descriptor = message.descriptors.add()
        for key, value in entries.items():
            descriptor.entries.add(key=key, value=value)
    return message


# A limit counts, answers and ends.
for remaining in (4, 3, 2, 1, 0):
    answer = call(request({"path": "/login"}))
    status = answer.statuses[0]
    assert answer.overall_code == OK and status.limit_remaining == remaining, answer
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (5, 2)
    assert 0 < status.duration_until_reset.seconds <= 60 and status.duration_until_reset.nanos == 0
answer = call(request({"path": "/login"}, {"user": "u"}))
assert answer.overall_code == OVER, answer
assert [status.code for status in answer.statuses] == [OVER, OK], answer
assert {header.key for header in answer.response_headers_to_add} == {"ratelimit", "ratelimit-policy", "retry-after"}

# Nothing that matches, values of every kind, deadlines that are there already.
assert call(request({"nobody": "é\0\n"})).statuses[0].code == OK
assert call(request({"nobody": "x" * 60000})).overall_code == OK
hundred = request()
entries = hundred.descriptors.add().entries
for number in range(100):
    entries.add(key=f"k{number}")
assert call(hundred).overall_code == OK

# What can't be has one status, and the connection goes on.
code = grpc.StatusCode
assert fails(code.INVALID_ARGUMENT, request(domain="")) == "rate limit domain must not be empty"
assert "list must not be empty" in fails(code.INVALID_ARGUMENT, request())
assert "1000 descriptors" in fails(code.INVALID_ARGUMENT, request(*[{"a": "b"}] * 1000))
own = request({"a": "b"})
own.descriptors[0].limit.requests_per_unit = 1
for unit in (0, 7, 99):
    own.descriptors[0].limit.unit = unit
    assert "limit.unit" in fails(code.INVALID_ARGUMENT, own)
fails(code.INVALID_ARGUMENT, b"\x0a\x02\xff\xfe")
fails(code.INVALID_ARGUMENT, b"\xff\xff\xff")
fails(code.RESOURCE_EXHAUSTED, request({"path": "x" * (4 << 20)}))
fails(code.UNIMPLEMENTED, request(), path=f"/{SERVICE}/Nothing")
fails(code.UNAUTHENTICATED, request({"a": "b"}), metadata=[])
wrong = [("authorization", "Bearer wrong-0123456789")]
assert fails(code.UNAUTHENTICATED, request({"a": "b"}), metadata=wrong) == "invalid token"
assert call(request({"path": "x" * 5000})).overall_code == 1

# Kuadrant asks first and reports afterwards.
kuadrant = f"/{KUADRANT}/"
methods = {"CheckRateLimit", "Report", "Reserve", "Commit"}
assert {m.name for m in pool.FindServiceByName(KUADRANT).methods} == methods
member = request({"user": "kuadrant"})
for _ in range(2):
    assert call(member, path=kuadrant + "CheckRateLimit").statuses[0].limit_remaining == 20
assert call(member, path=kuadrant + "Report").statuses[0].limit_remaining == 19

# Health, under each name.
health = health_pb2_grpc.HealthStub(channel)
for name in ("", "ratelimit", SERVICE):
    status = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=30).status
    assert status == health_pb2.HealthCheckResponse.SERVING, name

# Many at once.
calls = channel.unary_unary(f"/{SERVICE}/ShouldRateLimit", response_deserializer=Response.FromString)
raw = request({"partner": "gold"}).SerializeToString()
answers = [calls.future(raw, metadata=token, timeout=60) for _ in range(2000)]
codes = [answer.result().overall_code for answer in answers]
assert codes.count(OK) == 50, codes.count(OK)
print("good")
