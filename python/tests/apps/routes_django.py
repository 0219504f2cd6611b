"""A Django service with one view, which has a limit of its own, and the patterns that many write."""

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import include, path, re_path

from earrrl import RateLimits

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="of a test")
limits = RateLimits()


@limits.limit("9999/year", name="login")
def login(_):
    return HttpResponse("REACHED")


below = [path("login", login), re_path(r"^login/$", login)]
urlpatterns = [path("v1/", include(below)), re_path(r"^v1/login$", login), path("pid", lambda _: HttpResponse(os.getpid()))]
app = get_wsgi_application()
