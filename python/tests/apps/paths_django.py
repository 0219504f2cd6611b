"""A Django service with one handler and the patterns that many write, limited by path."""

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path, re_path

from earrrl import RateLimits, Rule
from earrrl.wsgi import RateLimitMiddleware

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="of a test")


def login(_):
    return HttpResponse("REACHED")


rules = [Rule("key", "fixed-window 9999/3650d", ["client", "path"]), Rule("paths", "fixed-window 9999/3650d", paths=["/v1/login"])]
urlpatterns = [path("v1/login", login), re_path(r"^v1/login$", login), re_path(r"^v1/login/$", login), path("pid", lambda _: HttpResponse(os.getpid()))]
app = RateLimitMiddleware(get_wsgi_application(), RateLimits(rules))
