"""Asks a gateway with the OpenAI-compatible API, and prints how many tokens have arrived.

usage: python3 chat.py URL USER PROMPT MAX_TOKENS [STOP_AFTER]

STOP_AFTER is the number of tokens after which this client leaves.
"""
import json
import sys
import urllib.error
import urllib.request


def main():
    url, user, prompt, max_tokens = sys.argv[1:5]
    stop_after = int(sys.argv[5]) if len(sys.argv) > 5 else None
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": int(max_tokens)}
    request = urllib.request.Request(
        url + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "X-User": user},
    )
    count = 0
    try:
        with urllib.request.urlopen(request, timeout=30) as events:
            for line in events:
                count += b'"content"' in line
                if count == stop_after:
                    break
    except urllib.error.HTTPError as error:
        wait = error.headers.get("Retry-After")
        sys.exit(f"{error.code}; retry after {wait} s")
    print(count)


main()
