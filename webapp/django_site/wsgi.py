"""The site under WSGI: ``gunicorn --threads 64 webapp.django_site.wsgi``."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.django_site.settings")

application = get_wsgi_application()
