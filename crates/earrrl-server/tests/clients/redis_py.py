"""redis-py in both protocols, with a pool, a pipeline and a wrong token. Prints "good"."""

import sys

import redis

port, token = int(sys.argv[1]), sys.argv[2]

for protocol in (2, 3):
    client = redis.Redis(port=port, password=token, protocol=protocol, client_name="test")
    assert client.ping()
    key = f"py-{protocol}"
    assert client.execute_command("CL.THROTTLE", key, 1, 1, 60) == [0, 2, 1, -1, 60]
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(100):
            pipeline.execute_command("CL.THROTTLE", key, 1, 1, 60)
        answers = pipeline.execute()
    assert [answer[0] for answer in answers] == [0] + 99 * [1], answers
    with client.pipeline() as pipeline:
        pipeline.execute_command("CL.THROTTLE", f"{key}-multi", 1, 1, 60)
        pipeline.execute_command("EARRRL.ALLOW", "api", f"{key}-multi")
        assert pipeline.execute() == [[0, 2, 1, -1, 60], [1, 4, 0]]
    decision = client.execute_command("EARRRL.CHECK", "api", key)
    if protocol == 3:
        assert decision[b"allowed"] is True and decision[b"remaining"] == 4, decision
    else:
        assert decision[:2] == [b"allowed", 1], decision
    try:
        client.execute_command("EARRRL.RESET", "api", key)
        raise SystemExit("the check token may not reset")
    except redis.exceptions.NoPermissionError:
        pass
    client.close()

try:
    redis.Redis(port=port, password="wrong").ping()
    raise SystemExit("a wrong token was taken")
except redis.exceptions.AuthenticationError:
    print("good")
