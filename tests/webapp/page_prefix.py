"""The FastAPI app under a path, as behind a proxy that serves other apps, too."""

from starlette.applications import Starlette
from starlette.routing import Mount

from webapp.fastapi_app import app

site = Starlette(routes=[Mount("/demo", app)])
