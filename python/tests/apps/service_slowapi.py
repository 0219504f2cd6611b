"""A FastAPI service with slowapi, whose storage is a URI."""

import os

from fastapi import FastAPI, Request
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address

import earrrl.limits

limiter = Limiter(key_func=get_remote_address, storage_uri=os.environ["STORAGE_URI"], strategy=os.environ["STRATEGY"])
app = FastAPI()
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)


@app.get("/")
@limiter.limit("5/minute")
def hello(request: Request):
    return "hello"


@app.get("/long")
@limiter.limit("5/year")
def long(request: Request):
    return "hello"


@app.get("/pid")
def pid():
    return os.getpid()
