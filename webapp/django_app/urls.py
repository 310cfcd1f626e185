"""All paths lead to the synchronous view."""

from __future__ import annotations

from webapp.django_app.door import failed, refused, urls, view

__all__ = ["handler400", "handler404", "handler500", "urlpatterns"]

urlpatterns = urls(view)
handler400 = handler404 = refused
handler500 = failed
