"""Ids are random UUIDs."""

from __future__ import annotations

from uuid import RFC_4122, UUID

from celery_batch.client.publish.message import new_id


def test_ids_are_random_uuids() -> None:
    """Every id is a UUID of version 4 in its usual form, and no two are the same."""
    ids = [new_id() for _ in range(2000)]
    parsed = [UUID(each) for each in ids]

    assert 2000 == len({*ids})
    assert ids == [str(each) for each in parsed]
    assert {(4, RFC_4122)} == {(each.version, each.variant) for each in parsed}
