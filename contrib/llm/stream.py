"""Streams the answer of a language model within a budget of tokens: reserve, stream, commit.

usage: EARRRL=http://127.0.0.1:8080 python3 stream.py USER PROMPT MAX_TOKENS [STOP_AFTER]

The server needs a rule `tokens`. STOP_AFTER is the number of tokens after which the reader leaves.
"""
import json
import os
import sys
import urllib.error
import urllib.request

EARRRL = os.environ.get("EARRRL", "http://127.0.0.1:8080")


def call(path, body):
    """Returns the status and the JSON of a call to the server."""
    request = urllib.request.Request(
        EARRRL + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def model(prompt, max_tokens):
    """Stands for a model: yields one token at a time, and a cached prompt costs nothing."""
    yield from (prompt.split() * max_tokens)[:max_tokens]


def estimate(prompt, max_tokens):
    """Returns an upper bound: about four bytes a token of the prompt, and the whole answer."""
    return len(prompt.encode()) // 4 + 1 + max_tokens


def answer(user, prompt, max_tokens):
    """Yields the tokens of the answer. The reservation is committed however the stream ends."""
    wanted = estimate(prompt, max_tokens)
    status, held = call(
        "/v1/reserve",
        {"rule": "tokens", "key": user, "cost": wanted, "ttl": 600, "at_most": True},
    )
    if status != 200:
        raise PermissionError(f"denied; retry after {held['retry_after']} s")
    max_tokens = max(0, min(max_tokens, held["granted"] - (wanted - max_tokens)))
    used = 0
    try:
        for token in model(prompt, max_tokens):
            used += 1
            yield token
    finally:
        if held["reservation"]:
            call("/v1/commit", {"reservation": held["reservation"], "cost": used})


def main():
    user, prompt, max_tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
    stop_after = int(sys.argv[4]) if len(sys.argv) > 4 else max_tokens
    count = 0
    try:
        stream = answer(user, prompt, max_tokens)
        for _ in stream:
            count += 1
            if count == stop_after:
                break
        stream.close()
    except PermissionError as error:
        print(error)
        sys.exit(1)
    print(count)


main()
