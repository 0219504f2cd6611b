"""Django with a path, and with the pattern that many write: gunicorn django_app:app"""

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path, re_path

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="of a test")


def login(_):
    return HttpResponse("REACHED")


urlpatterns = [path("v1/login", login), re_path(r"^v1/login$", login), re_path(r"^v1/login/$", login)]
app = get_wsgi_application()
