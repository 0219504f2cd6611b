"""A Flask service with one handler of a blueprint, which has a limit of its own."""

import os

from flask import Blueprint, Flask

from earrrl import RateLimits

limits = RateLimits()
app = Flask(__name__)
part = Blueprint("part", __name__, url_prefix="/v1")


@part.get("/login")
@limits.limit("9999/year", name="login")
def login():
    return "REACHED"


@app.get("/pid")
def pid():
    return str(os.getpid())


app.register_blueprint(part)
