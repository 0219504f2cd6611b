"""A Flask service with flask-limiter, whose storage is a URI."""

import os

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

import earrrl.limits

app = Flask(__name__)
limiter = Limiter(get_remote_address, app=app, storage_uri=os.environ["STORAGE_URI"], strategy=os.environ["STRATEGY"])


@app.get("/")
@limiter.limit("5/minute")
def hello():
    return "hello"


@app.get("/long")
@limiter.limit("5/year")
def long():
    return "hello"


@app.get("/pid")
def pid():
    return str(os.getpid())
