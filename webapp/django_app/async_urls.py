"""All paths lead to the asynchronous view."""

from __future__ import annotations

from webapp.django_app.door import aview, failed, refused, urls

__all__ = ["handler400", "handler404", "handler500", "urlpatterns"]

urlpatterns = urls(aview)
handler400 = handler404 = refused
handler500 = failed
