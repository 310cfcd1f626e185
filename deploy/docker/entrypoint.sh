#!/bin/sh
# Gives a command its secrets: NAME_FILE=/run/secrets/x becomes NAME with what that file holds.
# Only these names: WEBAPP_API_KEYS_FILE, for one, is a setting of its own.
set -eu
for name in CELERY_BROKER_URL CELERY_RESULT_BACKEND WEBAPP_SECRET WEBAPP_RATE_STORE FLOWER_BASIC_AUTH; do
    eval "file=\${${name}_FILE-}"
    [ -z "$file" ] && continue
    value=$(cat "$file") || exit 1
    export "$name=$value"
done
exec "$@"
