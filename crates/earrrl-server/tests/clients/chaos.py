"""redis-py: for each line on standard input some single requests and transactions. Prints how many
decisions were answered, and how many requests were told that the server can't now."""

import random
import sys

import redis
from redis.backoff import ConstantBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError, ResponseError
from redis.retry import Retry

TOLD = ("overloaded", "too many connections", "is stopping")


class TokenFile(CredentialProvider):
    """The present token in a file, which is read for each connection. redis-py counts a wrong token
    among the lost connections and repeats the request, so each attempt has to see the present one."""

    def get_credentials(self):
        with open(sys.argv[2], encoding="ascii") as file:
            return (file.read(),)


clients = [
    redis.Redis(
        port=int(sys.argv[1]),
        credential_provider=TokenFile(),
        protocol=protocol,
        retry=Retry(ConstantBackoff(0.01), 1000, supported_errors=(ConnectionError,)),
        # A server that does not answer ends this script, instead of making it wait for ever.
        socket_timeout=60,
        retry_on_error=[ConnectionError],
    )
    for protocol in (2, 3)
]


def single(client, key):
    client.execute_command("EARRRL.CHECK", "bucket", key)
    return 1


def transaction(client, key):
    with client.pipeline() as pipeline:
        pipeline.execute_command("CL.THROTTLE", key, 15, 30, 60)
        pipeline.execute_command("EARRRL.ALLOW", "average", key)
        return len(pipeline.execute())


for _ in sys.stdin:
    answered, told = 0, 0
    for number in range(20):
        client, ask = clients[number % 2], (single, transaction)[number // 2 % 2]
        try:
            answered += ask(client, f"py-{random.randrange(50_000)}")
        except ResponseError as error:
            if not any(text in str(error) for text in TOLD):
                raise
            told += 1
            client.connection_pool.disconnect()
    print(answered, told, flush=True)
