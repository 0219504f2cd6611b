"""A FastAPI service with the middleware for ASGI."""

import os

from fastapi import FastAPI

from earrrl import RateLimits, Rule
from earrrl.asgi import RateLimitMiddleware

rule = Rule("address", "gcra 5/d burst=5", ["client", "path"], exempt=lambda scope: scope["path"] == "/pid")
app = FastAPI()
app.add_middleware(RateLimitMiddleware, limits=RateLimits([rule], path=os.environ["STATE"]))


@app.get("/")
@app.get("/long")
def hello():
    return "hello"


@app.get("/pid")
def pid():
    return os.getpid()
