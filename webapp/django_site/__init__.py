"""The Django site: ``gunicorn --threads 64 webapp.django_site.wsgi``."""
