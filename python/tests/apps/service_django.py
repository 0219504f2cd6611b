"""A Django service with the middleware for WSGI, and a view that asks a limiter."""

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

from earrrl import Limiter, RateLimits, Rule
from earrrl.wsgi import RateLimitMiddleware

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"])
longer = Limiter("gcra 5/d burst=5", path=f"{os.environ['STATE']}/longer")


def hello(request):
    return HttpResponse("hello")


def long(request):
    return HttpResponse("hello") if longer.check(request.META["REMOTE_ADDR"]) else HttpResponse(status=429)


def pid(request):
    return HttpResponse(os.getpid())


urlpatterns = [path("", hello), path("long", long), path("pid", pid)]
rule = Rule("address", "gcra 5/d burst=5", exempt=lambda environ: environ["PATH_INFO"] != "/")
app = RateLimitMiddleware(get_wsgi_application(), RateLimits([rule], path=f"{os.environ['STATE']}/rules"))
