"""Flask with its defaults: gunicorn flask_app:app"""

from flask import Flask

app = Flask(__name__)


@app.route("/v1/login")
def login():
    return "REACHED"
