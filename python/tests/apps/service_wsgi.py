"""A Flask service with the middleware for WSGI."""

import os

from flask import Flask

from earrrl import RateLimits, Rule
from earrrl.wsgi import RateLimitMiddleware

rule = Rule("address", "gcra 5/d burst=5", ["client", "path"], exempt=lambda environ: environ["PATH_INFO"] == "/pid")
app = Flask(__name__)
app.wsgi_app = RateLimitMiddleware(app.wsgi_app, RateLimits([rule], path=os.environ["STATE"]))


@app.get("/")
@app.get("/long")
def hello():
    return "hello"


@app.get("/pid")
def pid():
    return str(os.getpid())
