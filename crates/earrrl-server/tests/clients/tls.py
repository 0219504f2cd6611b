"""redis-py (rediss://) and grpcio over TLS. Prints "good"."""

import sys

import grpc
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc

resp, rpc, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
ca, cert, key = (f"{folder}/{name}" for name in ("ca.pem", "client.pem", "client.key"))

client = redis.Redis.from_url(
    f"rediss://localhost:{resp}", ssl_ca_certs=ca, ssl_certfile=cert, ssl_keyfile=key, protocol=3
)
assert client.ping()
with client.pipeline(transaction=False) as pipeline:
    for _ in range(1000):
        pipeline.execute_command("CL.THROTTLE", "k", 1, 1, 60)
    answers = pipeline.execute()
assert [answer[0] for answer in answers] == 2 * [0] + 998 * [1], answers[:5]
# Answers that are larger than what TLS buffers.
with client.pipeline(transaction=False) as pipeline:
    for _ in range(20_000):
        pipeline.execute_command("EARRRL.PEEK", "api", "k" * 100)
    answers = pipeline.execute()
assert all(answer[b"allowed"] for answer in answers)

read = lambda name: open(name, "rb").read()
credentials = grpc.ssl_channel_credentials(read(ca), read(key), read(cert))
with grpc.secure_channel(f"localhost:{rpc}", credentials) as channel:
    health = health_pb2_grpc.HealthStub(channel)
    answer = health.Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING, answer
with grpc.insecure_channel(f"localhost:{rpc}") as channel:
    try:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        raise SystemExit("answered in clear text")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
print("good")
