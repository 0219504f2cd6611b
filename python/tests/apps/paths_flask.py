"""A Flask service with one handler, limited by path."""

import os

from flask import Flask

from earrrl import RateLimits, Rule
from earrrl.wsgi import RateLimitMiddleware

rules = [Rule("key", "fixed-window 9999/3650d", ["client", "path"]), Rule("paths", "fixed-window 9999/3650d", paths=["/v1/login"])]
app = Flask(__name__)
app.wsgi_app = RateLimitMiddleware(app.wsgi_app, RateLimits(rules))


@app.get("/v1/login")
def login():
    return "REACHED"


@app.get("/pid")
def pid():
    return str(os.getpid())
