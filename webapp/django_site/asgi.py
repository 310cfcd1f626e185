"""The site under ASGI: ``uvicorn --lifespan off webapp.django_site.asgi:application``."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.django_site.async_settings")

application = get_asgi_application()
